"""The parts that findings are made of."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

Severity = Literal["note", "watch", "act"]
Described = list[dict[str, Any]]
"""Heads as `findings.json` has them."""


def finding(
    name: str, severity: Severity, title: str, sentence: str, advice: str, heads: Described, **evidence: Any
) -> dict[str, Any]:
    """A finding without its rank."""
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
    """The heads with one of these states."""
    return [head for head in heads if head["state"] in states]


def column(heads: Described, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """One number of the evidence of every head; NaN where it is missing."""
    return np.array([head["evidence"][name] for head in heads], dtype=np.float64)


def counted(number: int, what: str = "head") -> str:
    """A number of things in words."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
