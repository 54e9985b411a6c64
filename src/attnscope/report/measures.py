"""The words of the report: what each measure is called, and what it says in one plain sentence.

Measured columns bring their words along (`attnscope.columns`); those of a diagnosis are here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from attnscope import columns
from attnscope.columns import Display

# In the order in which the page offers them.
HEAD_MEASURES = (
    "participation",
    "separability",
    "sink_weight",
    "max_weight",
    "top_mass",
    "entropy_ratio",
    "distance_ratio",
    "jacobian_norm",
    "logit_range",
    "support",
)
_DISPLAYED = columns.DERIVED | {c.name: c.display for c in (*columns.ROWS, *columns.TOPN) if c.display is not None}
MEASURES = {name: _DISPLAYED[name] for name in HEAD_MEASURES}
ROW_MEASURES = tuple(name for name in HEAD_MEASURES if name in columns.ROW_NAMES)
SET_MEASURES = tuple(name for name in HEAD_MEASURES if name not in columns.ROW_NAMES)

# What a diagnosis knows of every head beside its state and the errors that decide it: shown like measures of the scan.
EVIDENCE = {
    "tokens_in_use": Display(
        "Tokens needed",
        "How many of its largest weights the head needs for its output to come within {enough} of what it is, in the "
        "mean over the rows of the diagnosis.",
    ),
    "growth_exponent": Display(
        "Growth of the need",
        "How the number of tokens needed grows with the length of the text: 0 not at all, 0.5 like its square root, 1 "
        "in proportion.",
    ),
    "sureness": Display(
        "Sureness of the label",
        "How often other rows of the same kind of text would give the head the same label.",
        "share",
        fixed=True,
    ),
}


def explained_evidence(thresholds: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The numbers of a diagnosis for the page, with its limits filled in."""
    words = {"enough": f"{100 * thresholds.get('enough', 0.1):g}%"}
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
