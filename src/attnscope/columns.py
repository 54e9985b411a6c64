"""The columns of `rows.parquet` and `topn.parquet`, each declared once.

Everything that names a column follows from here: the schema of the tables, the table in docs/architecture.md, the
arrays that the compiled loops fill (`RowArrays`, `SetArrays`), and the words of the report.

To add a column: state it in `theory/` and call it in `measure/` (the specification), fill the array of its name in the
compiled loop, and declare it here.
"""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Display:
    """How the report shows a column. `{n}` in its texts stands for the size of the top set."""

    label: str
    sentence: str
    style: Literal["share", "number"] = "number"
    fixed: bool = False  # whether its color scale always runs from 0 to 1


@dataclass(frozen=True)
class Column:
    """A measured quantity: one number per row, or per row and size N of the top set."""

    name: str
    meaning: str
    formula: str  # where `theory/` states it, or what it is
    unit: str = ""
    integer: bool = False
    paper_bound: bool = False  # needs all pairs of keys: null unless the paper's bounds are asked for
    display: Display | None = None


ROWS = (
    Column("entropy", "entropy of the weights", "-sum of alpha ln alpha", "nats"),
    Column(
        "entropy_ratio",
        "entropy as a share of its largest value, ln length; null for one key, above one where weights sum to more",
        "entropy / ln length",
        display=Display(
            "Evenness",
            "How evenly the weight is spread, from 0 (all on one token) to 1 (the same for every token): the entropy "
            "of the weights over its largest possible value, the logarithm of the length.",
            fixed=True,
        ),
    ),
    Column(
        "max_weight",
        "largest weight",
        "max of alpha",
        display=Display(
            "Largest weight", "The share of the weight on the one token that gets most.", "share", fixed=True
        ),
    ),
    Column(
        "sink_weight",
        "weight of the first visible key",
        "alpha of the first visible key",
        display=Display(
            "Weight of the first token",
            "The share of the weight on the first token the head sees. Many heads rest there when they have nothing to "
            "do: close to 100% the head is switched off for this row.",
            "share",
            fixed=True,
        ),
    ),
    Column(
        "participation",
        "number of tokens in use",
        "1 / sum of alpha²",
        "keys",
        display=Display(
            "Tokens in use",
            "How many tokens the head really averages: 1 if one token takes all the weight, as many as it sees if all "
            "weigh the same.",
        ),
    ),
    Column(
        "support",
        "number of weights above zero",
        "#{alpha > 0}",
        "keys",
        integer=True,
        display=Display(
            "Tokens with weight",
            "How many tokens get any weight at all. With softmax that is every token it sees; sparse normalizers give "
            "most tokens exactly zero.",
        ),
    ),
    Column("weight_sum", "sum of the weights: below one with sinks, anything with a sigmoid", "sum of alpha"),
    Column(
        "logit_range",
        "largest minus smallest visible logit",
        "max l - min l",
        display=Display(
            "Range of the logits",
            "The largest minus the smallest logit (the scores before softmax) of a row. Without one no token stands "
            "out.",
        ),
    ),
    Column(
        "jacobian_norm",
        "spectral norm of the Jacobian of the row's normalizer in its logits (1/T included), exact",
        "theory.gradient.jacobian_norm",
        display=Display(
            "Sensitivity",
            "How strongly the weights can react to a change of the logits (the scores before softmax): the spectral "
            "norm of softmax's Jacobian, at most 0.5. Near 0 the head hardly learns: its gradient vanishes.",
        ),
    ),
    Column("jacobian_bound", "bound on the Jacobian norm: h(alpha_max) for softmax", "theory.gradient.jacobian_bound"),
)

TOPN = (
    Column(
        "top_mass",
        "weight of the top set",
        "sum of alpha over the top set",
        display=Display(
            "Weight of the top {n}",
            "The share of the weight on the {n} tokens that get most. The rest is spread over all other tokens.",
            "share",
            fixed=True,
        ),
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
        "share of the top set strictly nearer to the context than every other token, unit vectors",
        "eq. (10)",
        display=Display(
            "Separability",
            "Of the {n} tokens with the largest weights, the share that lie nearer to their weighted sum than every "
            "other token. Low means that what the head hands on no longer tells its favorites from the rest.",
            "share",
            fixed=True,
        ),
    ),
    Column("radius", "distance of the nearest other token to the context, unit vectors", "min of |s - y_j|"),
    Column("delta", "distance of the two nearest tokens to each other, unit vectors", "A2", paper_bound=True),
    Column("separability_lower_printed", "lower bound on separability", "Theorem 2(1) as printed", paper_bound=True),
    Column("separability_upper_printed", "upper bound on separability", "Theorem 2(2) as printed", paper_bound=True),
    Column("separability_lower", "lower bound on separability, always true", "T2a", paper_bound=True),
    Column("separability_upper", "upper bound on separability, always true", "T2a"),
)

# Numbers of the report that are made of several columns.
DERIVED = {
    "distance_ratio": Display(
        "Distance to the rest",
        "How far the other tokens lie from the weighted sum of the top {n}, compared with what {n} tokens chosen at "
        "random would give. 1 means no better than chance.",
    ),
}

ROW_NAMES = tuple(column.name for column in ROWS)
SET_NAMES = tuple(column.name for column in TOPN)
PAPER_BOUNDS = tuple(column.name for column in TOPN if column.paper_bound)

# What the compiled loops fill: one array per column, (rows,) and (rows, sets).
RowArrays: Any = namedtuple("RowArrays", ROW_NAMES)  # type: ignore[misc]
SetArrays: Any = namedtuple("SetArrays", SET_NAMES)  # type: ignore[misc]
