"""The paper's empirical claims, evaluated on the tables of a reproduction: `claims.json`."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

from attnscope.experiments.claims import distance, geometry, gradient
from attnscope.studies.paper.evidence import (
    NO_INTERVAL,
    Claim,
    Evidence,
    Measure,
    Measurement,
    Rule,
    Verdict,
    every,
    merged,
)
from attnscope.studies.paper.settings import SINKS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

CLAIMS: tuple[Claim, ...] = (*distance.CLAIMS, *geometry.CLAIMS, *gradient.CLAIMS)
Labels = dict[str, str]
"""What distinguishes a reading, e.g. {"vectors": "value", "first_key": "kept"}."""
__all__ = ["CLAIMS", "Claim", "Evidence", "Labels", "Measurement", "answer", "answer_claim", "readings_of"]


def readings_of(tables: dict[str, pl.DataFrame], vectors: Sequence[str]) -> list[Evidence]:
    """The tables of each kind of vectors, with and without the first key."""
    return [Evidence(tables, kind, sink) for kind, sink in product(vectors, SINKS)]


def answer(readings: Sequence[Evidence]) -> list[dict[str, Any]]:
    """Every claim with its place in the paper, rule, measurements and verdicts, ready for JSON."""
    labeled = [({"vectors": e.vectors, "first_key": e.sink}, e) for e in readings]
    return [answer_claim(claim, labeled) for claim in CLAIMS]


def answer_claim(claim: Claim, readings: Sequence[tuple[Labels, Evidence]]) -> dict[str, Any]:
    """One claim, measured in each form and reading; its verdict depends on the labels along which they differ."""
    results: list[dict[str, Any]] = []
    verdicts: list[tuple[Labels, Verdict]] = []
    forms: dict[str, tuple[Measure, Rule]] = {"printed": (claim.printed, every)}
    if claim.corrected:
        forms["corrected"] = (claim.corrected, claim.corrected_rule)
    for labels, e in readings:
        for form, (measure, rule) in forms.items():
            measured = measure(e)
            verdict = rule(measured)
            results.append(
                {
                    "form": form,
                    **labels,
                    "verdict": verdict,
                    "depends_on": _causes(measured) if verdict == "depends" else [],
                    "holds_at": _where(measured, "agrees"),
                    "fails_at": _where(measured, "disagrees"),
                    "measured": [one.as_dict() for one in measured],
                }
            )
            if verdict:
                verdicts.append(({"form": form, **labels}, verdict))
    overall = merged(verdict for _, verdict in verdicts)
    between = _dimensions(verdicts) if overall == "depends" else []
    within = sorted({name for one in results if one["verdict"] == "depends" for name in one["depends_on"]})
    return {
        "id": claim.id,
        "place": claim.place,
        "claim": claim.statement,
        "rule": claim.rule,
        "corrected_as": claim.corrected_as or None,
        "verdict": overall or "not measured",
        "printed": merged(verdict for labels, verdict in verdicts if labels["form"] == "printed"),
        "corrected": merged(verdict for labels, verdict in verdicts if labels["form"] == "corrected"),
        "depends_on": between + within,
        "readings": results,
    }


def _causes(measured: list[Measurement]) -> list[str]:
    """What the verdict of a form depends on: the window if an interval crosses its range, else the end of E1."""
    crossing = [one for one in measured if one.verdict == "depends"]
    if any(not one.estimate.has_interval for one in crossing):
        return [NO_INTERVAL]
    return ["window"] if crossing else ["end of E1"]


def _where(measured: list[Measurement], verdict: Verdict) -> list[str]:
    """The N, eps or T at which the measurement has this verdict."""
    return [one.at for one in measured if one.at and one.verdict == verdict]


def _dimensions(verdicts: list[tuple[Labels, Verdict]]) -> list[str]:
    """The labels along which the verdict changes while the others are fixed."""
    varying = []
    for name in verdicts[0][0]:
        groups: dict[tuple[str, ...], set[Verdict]] = {}
        for labels, verdict in verdicts:
            others = tuple(value for key, value in labels.items() if key != name)
            groups.setdefault(others, set()).add(verdict)
        if any(len(group) > 1 for group in groups.values()):
            varying.append(name.replace("_", " "))
    return varying
