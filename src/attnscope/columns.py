"""Every measured quantity, declared once: its name, what it means in one line, how it is computed, its unit.

Everything that names a quantity follows from here: the schema of the tables, the arrays that the compiled loops fill
(`RowArrays`, `SetArrays`), the tables in docs/columns.md and docs/diagnosis.md, the headings of the terminal, the
labels and hints of the page, `findings.json`. A quantity has one name; its label for people is that name with spaces.

To add a column: state it in `theory/` and call it in `measure/` (the specification), fill the array of its name in the
compiled loop, and declare it here. Meanings may use numbers of a run: `{n}`, the size of the top set, and the limits
of a diagnosis (`diagnosis.thresholds.limit_words`).
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

VectorKind = Literal["value", "output", "hidden", "hidden_unit", "embedding"]  # what the weights average
VECTOR_KINDS: tuple[VectorKind, ...] = get_args(VectorKind)

_ABBREVIATIONS = {"kl": "KL"}


@dataclass(frozen=True)
class Column:
    """A measured quantity: one number per row, per row and size N of the top set, per head or per normalizer."""

    name: str
    meaning: str  # one line in plain words, without a period
    formula: str  # where `theory/` states it, or what it is
    unit: str = ""
    reading: str = ""  # how to read its size, in full sentences
    style: Literal["share", "number"] = "number"
    fixed: bool = False  # whether a color scale for it always runs from 0 to 1
    integer: bool = False
    of_top_set: bool = False  # depends on the size of the top set
    paper_bound: bool = False  # needs all pairs of keys: null unless the paper's bounds are asked for
    interval: bool = False  # has a 95% interval, in `<name>_low` and `<name>_high`

    def label(self, n: int | None = None) -> str:
        """Its name for people: "Sink weight"; with the size of the top set, "Separability (N = 20)"."""
        words = _ABBREVIATIONS.get(self.name) or self.name.replace("_", " ").capitalize()
        return f"{words} (N = {n})" if n is not None and self.of_top_set else words

    def sentence(self, numbers: Mapping[str, object]) -> str:
        """Its meaning and how to read it, with the numbers of a run filled in."""
        text = f"{self.meaning[0].upper()}{self.meaning[1:]}. {self.reading}"
        return text.format_map(numbers).rstrip()


ROWS = (
    Column("entropy", "entropy of the weights", "-sum of alpha ln alpha", "nats"),
    Column(
        "entropy_ratio",
        "how evenly the weight is spread: entropy as a share of its largest value, ln length",
        "entropy / ln length",
        reading="0: all weight on one token; 1: the same weight on every token. Null for one key, above 1 where the "
        "weights sum to more than one.",
        fixed=True,
    ),
    Column("max_weight", "weight of the token that gets most", "max of alpha", style="share", fixed=True),
    Column(
        "sink_weight",
        "weight on the first token that the row sees",
        "alpha of the first visible key",
        reading="Many heads put weight there when they have nothing to do. The weight alone does not say how much the "
        "first token contributes to the output: its value vector can be small.",
        style="share",
        fixed=True,
    ),
    Column(
        "participation",
        "effective number of tokens that share the weight",
        "1 / sum of alpha²",
        "keys",
        reading="1: one token takes all the weight; as many as the row sees: all weigh the same. It counts weight, not "
        "what the tokens contribute to the output.",
    ),
    Column(
        "support",
        "number of tokens with any weight",
        "#{alpha > 0}",
        "keys",
        reading="With softmax, every token that the row sees has some; sparse normalizers give most of them none.",
        integer=True,
    ),
    Column("weight_sum", "sum of the weights: below one with sinks, anything with a sigmoid", "sum of alpha"),
    Column(
        "logit_range",
        "largest minus smallest visible logit, the scores before softmax",
        "max l - min l",
        reading="Where it is near 0, no token stands out.",
    ),
    Column(
        "jacobian_norm",
        "how strongly the weights react to the logits: spectral norm of the normalizer's Jacobian, 1/T included",
        "theory.gradient.jacobian_norm",
        reading="At most 0.5 for softmax. Near 0 hardly any gradient passes through the weights.",
    ),
    Column("jacobian_bound", "bound on the Jacobian norm: h(alpha_max) for softmax", "theory.gradient.jacobian_bound"),
)

TOPN = (
    Column(
        "top_mass",
        "weight of the top set, the N tokens with the largest weights",
        "sum of alpha over the top set",
        reading="The rest of the weight is spread over all other tokens.",
        style="share",
        fixed=True,
        of_top_set=True,
    ),
    Column("distance", "summed distance of the other tokens to the context", "eq. (7)", "length of vectors"),
    Column(
        "distance_bound_printed",
        "bound on the distance",
        "Theorem 1(1) as printed",
        "length of vectors",
        paper_bound=True,
    ),
    Column("distance_lower", "lower bound on the distance, for any set and any weights", "B4", "length of vectors"),
    Column("distance_upper", "upper bound on the distance, for any set and any weights", "B3", "length of vectors"),
    Column(
        "expected_printed",
        "expected distance over random sets (a misprint: it can be off by orders of magnitude)",
        "main term of Theorem 1(2) as printed",
        "length of vectors",
    ),
    Column("expected_lower", "lower bound on the expectation over random sets of N", "E1", "length of vectors"),
    Column("expected_upper", "upper bound on the expectation over random sets of N", "E1", "length of vectors"),
    Column(
        "epsilon_printed",
        "bound on the remainder of the expectation; infinite where a denominator vanishes",
        "Theorem 1(2) as printed",
        "length of vectors",
    ),
    Column(
        "separability",
        "share of the top set that lies strictly nearer to the context than every other token, unit vectors",
        "eq. (10)",
        reading="The context is the weighted sum of the top set. A low share means that the output no longer "
        "distinguishes the tokens that the head selects from the rest.",
        style="share",
        fixed=True,
        of_top_set=True,
        interval=True,
    ),
    Column("radius", "distance of the nearest other token to the context, unit vectors", "min of |s - y_j|"),
    Column("delta", "distance of the two nearest tokens to each other, unit vectors", "A2", paper_bound=True),
    Column("separability_lower_printed", "lower bound on separability", "Theorem 2(1) as printed", paper_bound=True),
    Column("separability_upper_printed", "upper bound on separability", "Theorem 2(2) as printed", paper_bound=True),
    Column("separability_lower", "lower bound on separability, always true", "T2a", paper_bound=True),
    Column("separability_upper", "upper bound on separability, always true", "T2a"),
)

# Made of several columns.
DERIVED = (
    Column(
        "distance_ratio",
        "distance of the other tokens to the context, over what a random top set would give",
        "distance / mean of expected_lower and expected_upper",
        reading="1: no different from a random set.",
        of_top_set=True,
    ),
)

# One number for each head, over the rows of a diagnosis (`findings.json`).
DIAGNOSIS = (
    Column(
        "sureness",
        "how often other rows of the same text would give the head the same label",
        "share of bootstrap draws with the same state",
        style="share",
        fixed=True,
    ),
    Column(
        "state_share",
        "share of rows that would get the head's label on their own",
        "share of rows in the head's state",
        style="share",
        fixed=True,
    ),
    Column(
        "off_share",
        "share of rows with more than {off} of the weight on the first token",
        "share of rows with sink_weight > off_weight",
        style="share",
        fixed=True,
    ),
    Column(
        "over_sharp_share",
        "share of rows with more than {sharp} of the weight on one token",
        "share of rows with max_weight > over_sharp_weight",
        style="share",
        fixed=True,
    ),
    Column(
        "error_first_key",
        "relative error of the output when all weight goes to the first token",
        "mean of |c - c_rule| / |c|",
        style="share",
    ),
    Column(
        "error_mean_output",
        "relative error of the output when it is replaced by the head's mean output",
        "mean of |c - c_rule| / |c|",
        style="share",
    ),
    Column(
        "error_local",
        "relative error of the output when only the first token and the nearest {near} keep weight",
        "mean of |c - c_rule| / |c|",
        style="share",
    ),
    Column(
        "error_top_share",
        "relative error of the output when only the {top} of tokens with the largest weights keep weight",
        "mean of |c - c_rule| / |c|",
        style="share",
    ),
    Column(
        "tokens_needed",
        "how many of the largest weights give the head's output within {enough}",
        "mean over rows of the smallest k with |c - c_k| <= enough |c|",
        "keys",
        interval=True,
    ),
    Column(
        "share_needed",
        "tokens needed as a share of the tokens that the row sees",
        "mean of tokens needed / length",
        style="share",
        fixed=True,
    ),
    Column(
        "growth_exponent",
        "how tokens needed grows with the length of the text: exponent of a power law",
        "slope of ln tokens needed against ln length",
        reading="0: not at all; 0.5: like the square root of the length; 1: in proportion to it.",
        interval=True,
    ),
    Column(
        "participation_without_sink",
        "participation among the tokens after the first one",
        "1 / sum of (alpha / rest)² without the first key, rest = their weight",
        "keys",
    ),
    Column(
        "sink_contribution",
        "size of the first token's part of the output, relative to the output",
        "|alpha_0 x_0| / |c|",
        reading="Near 0 the first token takes weight and contributes next to nothing.",
        style="share",
    ),
    Column(
        "residual_share",
        "size of what the head adds to the residual stream, relative to the stream",
        "|W_O (g c)| / |h|, g the gate or norm, h the layer's input",
        style="share",
    ),
    Column(
        "residual_change",
        "change of the residual stream, relative to it, when only the {top} of tokens with the largest weights keep "
        "weight in this head",
        "|W_O (g (c - c_rule))| / |h|",
        style="share",
    ),
    Column(
        "gate",
        "mean size of the gate between the head's output and the output projection, in models that have one",
        "mean of |g|",
    ),
    Column(
        "gate_shut",
        "share of rows in which the mean size of the gate is below 1%",
        "share of rows with mean |g| < 0.01",
        style="share",
    ),
    Column(
        "separability_without_sink",
        "separability when the first token is left out",
        "eq. (10) without the first key",
        style="share",
        fixed=True,
        of_top_set=True,
    ),
    Column(
        "null_uniform",
        "separability of the same top set with equal weights",
        "eq. (10) with alpha = 1 / length",
        reading="What the choice of tokens gives without their weights.",
        style="share",
        fixed=True,
        of_top_set=True,
    ),
    Column(
        "null_random",
        "separability of random sets of the same size",
        "eq. (10) for a random set",
        reading="What chance gives.",
        style="share",
        fixed=True,
        of_top_set=True,
    ),
)

# One number for each normalizer of a comparison, beside the columns above.
COMPARISON = (
    Column("perplexity", "perplexity of the model on the text", "exp of the mean loss"),
    Column("agreement", "share of positions with the same most probable next token", "", style="share"),
    Column("kl", "KL divergence of the next-token distribution from the unmodified model's", "", "nats"),
    Column(
        "defined",
        "share of rows with at least N tokens of weight: the others have no separability",
        "share of rows with support >= N",
        style="share",
    ),
    Column("time_ratio", "time of a forward pass over that of the unmodified model", ""),
    Column("memory_ratio", "peak memory of a forward pass over that of the unmodified model", ""),
)

# One number for each head and measured step of a training run, beside the columns above (`monitor/`).
TRAINING = (
    Column(
        "max_logit",
        "largest logit, the score before softmax",
        "max of l over visible keys and measured rows",
        reading="A logit that keeps growing comes near the limits of the model's number type, or of its mask.",
    ),
    Column(
        "logit_std",
        "how far the logits of a row lie apart",
        "standard deviation of l over visible keys",
        reading="Near 0 the weights are uniform; large values leave all weight to one token.",
    ),
)

# One number for each trained model and tested length of `attnscope recall`, beside `jacobian_norm`.
RECALL = (
    Column("accuracy", "share of questions that a trained model answers right", "", style="share", interval=True),
    Column(
        "ceiling", "share that a reader who knows the task answers right, with the same examples", "", style="share"
    ),
    Column("answer_weight", "weight on the items that hold the answer", "sum of alpha over them", style="share"),
    Column(
        "answer_weight_limit",
        "the most weight that any permutation-equivariant rule with this Jacobian budget can give one item",
        "Theorem S: max of sparsemax(K z)",
        style="share",
    ),
)

# One number for each head, predicted for longer inputs (`heads.parquet` of a horizon).
HORIZON = (
    Column(
        "mass_kept",
        "weight of the 5 largest keys at {to} tokens, predicted, as a share of what it is at {base}",
        "top-5 mass at the last length / top-5 mass at the base length",
        reading="1: longer inputs change nothing. Below 0.5 the head thins, below 0.25 it is diluted.",
        style="share",
    ),
    Column(
        "half_length",
        "length at which the head has lost half of its top-5 mass at {base} tokens, predicted",
        "where the curve of the top-5 mass crosses half of its value at the base length",
        "tokens",
        reading="Nothing: not before {to} tokens.",
    ),
    Column(
        "reach",
        "distance beyond which positions leave a key less than a tenth of the weight that it gets at its best distance",
        "largest distance with mean weight of the same keys >= 0.1 of the largest",
        "tokens",
        reading="Nothing: further than {to} tokens. A head of short reach can hold because it does not look further.",
    ),
)

_GROUPS = (ROWS, TOPN, DERIVED, DIAGNOSIS, COMPARISON, TRAINING, RECALL, HORIZON)
COLUMNS = {column.name: column for group in _GROUPS for column in group}

ROW_NAMES = tuple(column.name for column in ROWS)
SET_NAMES = tuple(column.name for column in TOPN)
PAPER_BOUNDS = tuple(column.name for column in TOPN if column.paper_bound)

# What the compiled loops fill: one array per column, (rows,) and (rows, sets).
RowArrays: Any = namedtuple("RowArrays", ROW_NAMES)  # type: ignore[misc]
SetArrays: Any = namedtuple("SetArrays", SET_NAMES)  # type: ignore[misc]


def label(name: str, n: int | None = None) -> str:
    """The label of a quantity for people: its name with spaces, and the size of the top set if it depends on one."""
    return COLUMNS[name].label(n)


def head_name(layer: int, head: int) -> str:
    """How people read a head: "L3H5" is head 5 of layer 3, both counted from 0."""
    return f"L{layer}H{head}"
