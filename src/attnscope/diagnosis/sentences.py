"""Helpers to write findings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from attnscope.diagnosis.states import STATES, Severity
from attnscope.diagnosis.thresholds import Thresholds, limit_words

Described = list[dict[str, Any]]
"""Entries of `findings.json`, one for each head."""


def finding(
    name: str, severity: Severity, title: str, sentence: str, advice: str, heads: Described, **evidence: Any
) -> dict[str, Any]:
    """A finding as `findings.json` has it, without its rank."""
    return {
        "id": name,
        "severity": severity,
        "title": title,
        "sentence": sentence,
        "evidence": evidence,
        "advice": advice,
        "heads": [[head["layer"], head["head"]] for head in heads],
    }


def carrying(heads: Described, *states: str) -> Described:
    """The heads with one of these labels."""
    return [head for head in heads if head["state"] in states]


def listed_states(heads: Described, names: Iterable[str], thresholds: Thresholds) -> str:
    """States with the number of their heads and what is enough for those: "53 local (...), 137 selective (...)"."""
    counts = {name: len(carrying(heads, name)) for name in names}
    words = limit_words(thresholds.as_json())
    return ", ".join(f"{count} {name} ({STATES[name].part.format(**words)})" for name, count in counts.items() if count)


def times(effect: Mapping[str, Any]) -> str:
    """How many times two effects inside the model are apart, with the range over the held-out windows."""
    windows = len(effect["ratio_windows"])
    spread = f"{_ratio(effect['ratio_low'])} to {_ratio(effect['ratio_high'])} over {windows} windows"
    return f"{_ratio(effect['ratio'])} times ({spread if windows > 1 else 'one window'})"


def _ratio(value: float | None) -> str:
    if value is None:
        return "infinitely many"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def effect_words(
    prediction: Mapping[str, Any], thresholds: Mapping[str, Any], labeled: str = "them", others: str = "other heads"
) -> str:
    """What putting a state's rule into its heads does to the model, compared with other heads."""
    state = STATES[prediction["state"]]
    rule = state.rule.words.format(**limit_words(thresholds))
    larger, smaller = (others, labeled) if state.enough else (labeled, others)  # as predicted
    return f"{rule} in {larger} changes the next-token distribution {times(prediction)} as much as in {smaller}"


def column(heads: Described, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """One number of the evidence for every head; NaN where it is missing."""
    return np.array([head["evidence"][name] for head in heads], dtype=np.float64)
