"""The paper's empirical claims, answered from the tables: `claims.json`."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

from attnscope.experiments.claims import distance, geometry, gradient
from attnscope.experiments.claims.evidence import Claim, Evidence, Measurement, Verdict, merged
from attnscope.experiments.settings import SINKS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

CLAIMS: tuple[Claim, ...] = (*distance.CLAIMS, *geometry.CLAIMS, *gradient.CLAIMS)
DIMENSIONS = ("form", "vectors", "first key")
__all__ = ["CLAIMS", "Claim", "Evidence", "Measurement", "answer"]


def answer(tables: dict[str, pl.DataFrame], vectors: Sequence[str]) -> list[dict[str, Any]]:
    """Every claim with its place, rule, measurements and verdicts, ready for JSON."""
    readings = [Evidence(tables, kind, sink) for kind, sink in product(vectors, SINKS)]
    return [_answer(claim, readings) for claim in CLAIMS]


def _answer(claim: Claim, readings: list[Evidence]) -> dict[str, Any]:
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for e in readings:
        forms = {"printed": claim.printed} | ({"corrected": claim.corrected} if claim.corrected else {})
        for form, measure in forms.items():
            measured = measure(e)
            verdict = merged(one.verdict for one in measured)
            found[form, e.vectors, e.sink] = {
                "form": form,
                "vectors": e.vectors,
                "first_key": e.sink,
                "verdict": verdict,
                "depends_on": _told_apart(measured) if verdict == "depends" else [],
                "measured": [one.as_dict() for one in measured],
            }
    judged: dict[tuple[str, str, str], Verdict] = {key: one["verdict"] for key, one in found.items() if one["verdict"]}
    overall = merged(judged.values())
    depends = _dimensions(judged) if overall == "depends" else []
    inside = sorted({name for one in found.values() if one["verdict"] == "depends" for name in one["depends_on"]})
    return {
        "id": claim.id,
        "place": claim.place,
        "claim": claim.statement,
        "rule": claim.rule,
        "corrected_as": claim.corrected_as or None,
        "verdict": overall or "not measured",
        "printed": merged(v for (form, *_), v in judged.items() if form == "printed"),
        "corrected": merged(v for (form, *_), v in judged.items() if form == "corrected"),
        "depends_on": depends + inside,
        "readings": list(found.values()),
    }


def _told_apart(measured: list[Measurement]) -> list[str]:
    """What a form depends on: the window if an interval crosses its range, else whatever its measurements vary."""
    on = []
    if any(one.verdict == "depends" for one in measured):
        on.append("window")
    if len({one.verdict for one in measured} - {"depends"}) > 1:
        names = " ".join(one.name for one in measured)
        on.append("eps" if "eps = " in names else "T" if "T = " in names else "N" if "N = " in names else "measure")
    return on or ["measure"]


def _dimensions(judged: dict[tuple[str, str, str], Verdict]) -> list[str]:
    """The dimensions along which the verdict changes while the others stay."""
    found = []
    for place, name in enumerate(DIMENSIONS):
        groups: dict[tuple[str, ...], set[Verdict]] = {}
        for key, verdict in judged.items():
            groups.setdefault((*key[:place], *key[place + 1 :]), set()).add(verdict)
        if any(len(verdicts) > 1 for verdicts in groups.values()):
            found.append(name)
    return found
