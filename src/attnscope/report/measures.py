"""The words of the report: what each measure is called, what it says in one plain sentence, and how it is written.

The page shows the sentence wherever the name stands; nothing on it uses a word that is not explained here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Measure:
    """A measure as people read it."""

    label: str
    sentence: str
    style: Literal["share", "number"] = "number"
    fixed: bool = False  # whether its color scale is always 0 to 1


# In the order in which the page offers them. `{n}` is the size of the top set shown.
MEASURES = {
    "participation": Measure(
        "Tokens in use",
        "How many tokens the head really averages: 1 if one token takes all the weight, as many as it sees if all "
        "weigh the same.",
    ),
    "separability": Measure(
        "Separability",
        "Of the {n} tokens with the largest weights, the share that lie nearer to their weighted sum than every other "
        "token. Low means that what the head hands on no longer tells its favorites from the rest.",
        "share",
        fixed=True,
    ),
    "sink_weight": Measure(
        "Weight of the first token",
        "The share of the weight on the first token the head sees. Many heads rest there when they have nothing to do: "
        "close to 100% the head is switched off for this row.",
        "share",
        fixed=True,
    ),
    "max_weight": Measure(
        "Largest weight",
        "The share of the weight on the one token that gets most.",
        "share",
        fixed=True,
    ),
    "top_mass": Measure(
        "Weight of the top {n}",
        "The share of the weight on the {n} tokens that get most. The rest is spread over all other tokens.",
        "share",
        fixed=True,
    ),
    "entropy_ratio": Measure(
        "Evenness",
        "How evenly the weight is spread, from 0 (all on one token) to 1 (the same for every token): the entropy of "
        "the weights over its largest possible value, the logarithm of the length.",
        "number",
        fixed=True,
    ),
    "distance_ratio": Measure(
        "Distance to the rest",
        "How far the other tokens lie from the weighted sum of the top {n}, compared with what {n} tokens chosen at "
        "random would give. 1 means no better than chance.",
    ),
    "jacobian_norm": Measure(
        "Sensitivity",
        "How strongly the weights can react to a change of the logits (the scores before softmax): the spectral norm "
        "of softmax's Jacobian, at most 0.5. Near 0 the head hardly learns: its gradient vanishes.",
    ),
    "logit_range": Measure(
        "Range of the logits",
        "The largest minus the smallest logit (the scores before softmax) of a row. Without one no token stands out.",
    ),
    "support": Measure(
        "Tokens with weight",
        "How many tokens get any weight at all. With softmax that is every token it sees; sparse normalizers give most "
        "tokens exactly zero.",
    ),
}

# What a diagnosis knows of every head beside its state: shown like the measures of the scan.
EVIDENCE = {
    "tokens_in_use": Measure(
        "Tokens needed",
        "How many of its largest weights the head needs for its output to come within {enough} of what it is, in the "
        "mean over the rows of the diagnosis.",
    ),
    "growth_exponent": Measure(
        "Growth of the need",
        "How the number of tokens needed grows with the length of the text: 0 not at all, 0.5 like its square root, 1 "
        "in proportion.",
    ),
    "error_top_share": Measure(
        "Error with the top {top}",
        "How far the head's output moves when only the {top} of tokens with the largest weights are kept.",
        "share",
    ),
    "error_local": Measure(
        "Error with neighbors only",
        "How far the head's output moves when only the first token and the nearest {near} are kept.",
        "share",
    ),
    "error_mean_output": Measure(
        "Error with its mean output",
        "How far the head's output lies from its own mean over all rows.",
        "share",
    ),
    "error_first_key": Measure(
        "Error with the first token only",
        "How far the head's output moves when all weight goes to the first token.",
        "share",
    ),
    "sureness": Measure(
        "Sureness of the label",
        "How often other rows of the same kind of text would give the head the same label.",
        "share",
        fixed=True,
    ),
}

# The numbers that the map and the list of heads can show.
HEAD_MEASURES = tuple(MEASURES)
SET_MEASURES = ("separability", "top_mass", "distance_ratio")
ROW_MEASURES = tuple(name for name in MEASURES if name not in SET_MEASURES)


def explained_evidence(thresholds: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The numbers of a diagnosis for the page, with its limits filled in."""
    words = {
        "enough": f"{100 * thresholds.get('enough', 0.1):g}%",
        "top": f"{100 * thresholds.get('top_share', 0.05):g}%",
        "near": f"{thresholds.get('near_keys', 8):g}",
    }
    return {
        name: asdict(measure) | {"label": measure.label.format(**words), "sentence": measure.sentence.format(**words)}
        for name, measure in EVIDENCE.items()
    }


def explained(n: int) -> dict[str, dict[str, Any]]:
    """The measures for the page, with the size of the top set filled in."""
    return {
        name: asdict(measure) | {"label": measure.label.format(n=n), "sentence": measure.sentence.format(n=n)}
        for name, measure in MEASURES.items()
    }
