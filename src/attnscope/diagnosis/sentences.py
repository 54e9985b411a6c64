"""Helpers to write findings."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnscope.diagnosis.states import Severity

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


def column(heads: Described, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """One number of the evidence for every head; NaN where it is missing."""
    return np.array([head["evidence"][name] for head in heads], dtype=np.float64)


def counted(number: int, what: str = "head") -> str:
    """A number and its noun, in the plural where needed."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
