"""Which quantities the page shows of every head, with their labels and meanings (`attnscope.columns`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attnscope import columns
from attnscope.diagnosis.states import RULES, limit_words

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
ROW_MEASURES = tuple(name for name in HEAD_MEASURES if name in columns.ROW_NAMES)
SET_MEASURES = tuple(name for name in HEAD_MEASURES if name not in columns.ROW_NAMES)

# What a diagnosis adds.
EVIDENCE = (
    "tokens_needed",
    "growth_exponent",
    "residual_change",
    "sink_contribution",
    "sureness",
    *(rule.error for rule in RULES),
)


def explained(n: int) -> dict[str, dict[str, Any]]:
    """The measures of a scan for the page, with the size of the top set filled in."""
    return {name: explained_measure(name, n, {"n": n}) for name in HEAD_MEASURES}


def explained_evidence(thresholds: Mapping[str, Any], n: int) -> dict[str, dict[str, Any]]:
    """The numbers of a diagnosis for the page, with its limits filled in."""
    return {name: explained_measure(name, n, limit_words(thresholds)) for name in EVIDENCE}


def explained_measure(name: str, n: int | None, numbers: Mapping[str, object]) -> dict[str, Any]:
    """Label, meaning, unit and style of a declared quantity, with the numbers of a run filled in."""
    column = columns.COLUMNS[name]
    return {
        "label": column.label(n),
        "sentence": column.sentence(numbers),
        "unit": column.unit,
        "style": column.style,
        "fixed": column.fixed,
    }
