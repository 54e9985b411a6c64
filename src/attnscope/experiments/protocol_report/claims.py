"""The paper's claims, evaluated on the row averages of its own algorithms and compared with those of the last rows.

The claims and their rules are those of `attnscope.experiments.claims`, measured on each head's average over rows. The
protocol has the proved range of the expectation but draws no random sets, so the corrected form of a claim on the
expectation is judged at both ends of that range.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from attnscope.experiments import claims as paper
from attnscope.experiments.claims import Claim, Evidence, Measurement, answer_claim
from attnscope.experiments.claims.distance import ENDS, EQUAL, LATE_N, LINEAR
from attnscope.experiments.claims.gradient import maxima
from attnscope.experiments.protocol_report.evidence import readings
from attnscope.studies.paper.evidence import ROUNDING, Measure, both_ends, merged
from attnscope.studies.paper.settings import FIXED_N, SATURATION_N, SEPARABILITY_N, STEPS

if TYPE_CHECKING:
    from attnscope.experiments.claims import Labels

SHARE = 0.06  # of the tokens, in the caption of Figure 2
ABOUT = (0.05, 0.07)
FLAT = 0.1  # how far separability may move from N = 16 on and still be called saturated


@dataclass(frozen=True)
class ProtocolClaim:
    """A claim with the figure that shows it and the protocol's table that answers it."""

    figure: str
    table: str
    claim: Claim


def _paper(name: str, **changes: Any) -> Claim:
    return replace(next(claim for claim in paper.CLAIMS if claim.id == name), **changes)


def _every_head(measure: Measure) -> Measure:
    """The same measure, named for what is counted here: averages of heads, not rows."""

    def measured(e: Evidence) -> list[Measurement]:
        return [replace(one, name=one.name.replace("share of rows", "share of heads' averages")) for one in measure(e)]

    return measured


def _ends(name: str, measure: Any) -> Measure:
    """A measure at both ends of the proved range of the expectation."""
    return lambda e: [one for end in ENDS for one in measure(e, f"expected_{end}", f"{name}, E1 {end}")]


def _exponent(e: Evidence, column: str, name: str) -> list[Measurement]:
    return e.exponent(name, e.table("topn").filter(n=FIXED_N), pl.median(column), LINEAR)


def _converged(e: Evidence, column: str, name: str) -> list[Measurement]:
    ratio = (pl.col("distance") / pl.col(column)).median()
    return e.measure(name, e.longest("topn").filter(n=LATE_N), ratio, EQUAL)


def criticals(e: Evidence, expectation: str, kind: str = "first") -> pl.DataFrame:
    """The critical N by window and length, `n`; the length itself, and `none`, where no N is accepted."""
    n = pl.col(kind)
    table = e.table("critical").filter(expectation=expectation)
    return table.with_columns(none=n.is_null(), n=n.fill_null(pl.col("length")).cast(pl.Float64))


def _critical_share(accepted: tuple[float, float], every_length: bool, *expectations: str) -> Measure:
    def measured(e: Evidence) -> list[Measurement]:
        share = (pl.col("n") / pl.col("length")).first()
        measurements = []
        for expectation in expectations:
            table = criticals(e, expectation)
            lengths = table["prefix"].unique().sort().to_list()
            suffix = "" if expectation == "printed" else f", E1 {expectation}"
            for length in lengths if every_length else lengths[-1:]:
                at = f"L = {length}"
                measurements += e.measure(f"critical N / L{suffix}", table.filter(prefix=length), share, accepted, at)
        return measurements

    return measured


def _critical_exponent(*expectations: str) -> Measure:
    def measured(e: Evidence) -> list[Measurement]:
        measurements = []
        for expectation in expectations:
            table = criticals(e, expectation).filter(pl.mean("none").over("prefix") < 0.5)
            suffix = "" if expectation == "printed" else f", E1 {expectation}"
            measurements += e.exponent(
                f"exponent b of critical N = c L^b{suffix}", table, pl.first("n"), (-np.inf, 0.999)
            )
        return measurements

    return measured


def _flat(e: Evidence) -> list[Measurement]:
    table = e.longest("topn")
    middle = {n: pl.col("separability").filter(pl.col("n") == n).median() for n in SEPARABILITY_N}
    return [
        one
        for n in SEPARABILITY_N
        if n > SATURATION_N
        for one in e.measure(
            f"median separability less that at N = {SATURATION_N}",
            table,
            middle[n] - middle[SATURATION_N],
            (-FLAT, FLAT),
            f"N = {n}",
        )
    ]


def _excess(direction: str) -> Measure:
    """The largest ratio of g to the dashed bound over all T, for each eps."""

    def measured(e: Evidence) -> list[Measurement]:
        name = "largest g / min{1/(4T), sqrt 2} over T"
        ratio = (pl.col("g") / pl.col("printed")).max()
        table = maxima(e, direction)
        return [
            one
            for step in STEPS
            for one in e.measure(name, table.filter(step=step), ratio, (-np.inf, 1 + ROUNDING), f"eps = {step:g}")
        ]

    return measured


_BOTH: dict[str, Any] = {"corrected_as": "at both ends of the proved range of E", "corrected_rule": both_ends}
_DISTANCE, _CRITICAL = "protocol_distance", "protocol_critical"
_SEPARABILITY, _GRADIENT = "protocol_separability", "protocol_gradient"
_bound_safe, _upper, _lower = (_paper(name) for name in ("bound-safe", "upper-bound-holds", "lower-bound-holds"))

CLAIMS: tuple[ProtocolClaim, ...] = (
    ProtocolClaim("2a", _DISTANCE, _paper("distance-linear")),
    ProtocolClaim(
        "2a",
        _DISTANCE,
        _paper("expectation-linear", corrected=_ends("exponent of the median expectation in L", _exponent), **_BOTH),
    ),
    ProtocolClaim(
        "2a",
        _DISTANCE,
        replace(
            _bound_safe, rule="every head's average below that of the bound", printed=_every_head(_bound_safe.printed),
            corrected=None, corrected_as="",
        ),
    ),
    ProtocolClaim("2b", _DISTANCE, _paper("plateau-beyond-20")),
    ProtocolClaim(
        "2b",
        _DISTANCE,
        _paper(
            "bound-tightens", rule="bound / distance falls by at least 5% from N = 5 to 100", corrected=None,
            corrected_as="",
        ),
    ),
    ProtocolClaim(
        "2b", _DISTANCE, _paper("converge-at-100", corrected=_ends("distance / expectation", _converged), **_BOTH)
    ),
    ProtocolClaim(
        "2c",
        _CRITICAL,
        Claim(
            "critical-below-6-percent",
            "Caption of Fig. 2",
            "fewer than 6% of the tokens are selected before distance and expectation become indistinguishable",
            "first N that the KS test accepts at most 0.06 of the longest L (no such N counts as L)",
            _critical_share((-np.inf, SHARE), False, "printed"),
            _critical_share((-np.inf, SHARE), False, *ENDS),
            **_BOTH,
        ),
    ),
    ProtocolClaim(
        "2c",
        _CRITICAL,
        _paper(
            "critical-share",
            rule="first N that the KS test accepts, over L, between 0.05 and 0.07 at every L (no such N counts as L)",
            printed=_critical_share(ABOUT, True, "printed"),
            corrected=_critical_share(ABOUT, True, *ENDS),
        ),
    ),
    ProtocolClaim(
        "2c",
        _CRITICAL,
        _paper("critical-sublinear", printed=_critical_exponent("printed"), corrected=_critical_exponent(*ENDS)),
    ),
    ProtocolClaim("3", _SEPARABILITY, _paper("separability-falls")),
    ProtocolClaim(
        "3",
        _SEPARABILITY,
        Claim(
            "separability-flat",
            "Section 3.2, Fig. 3",
            "from N of about 16 on it saturates",
            f"median over heads at every larger N within {FLAT} of that at N = {SATURATION_N}",
            _flat,
        ),
    ),
    ProtocolClaim("3", _SEPARABILITY, _paper("separability-plateau")),
    ProtocolClaim("3", _SEPARABILITY, _paper("at-most-80-percent")),
    ProtocolClaim("3", _SEPARABILITY, _paper("upper-bound-tracks", corrected=None, corrected_as="")),
    ProtocolClaim(
        "3",
        _SEPARABILITY,
        replace(
            _upper, rule="every head's average below that of the bound", printed=_every_head(_upper.printed),
            corrected=None, corrected_as="",
        ),
    ),
    ProtocolClaim(
        "3",
        _SEPARABILITY,
        replace(
            _lower, rule="every head's average above that of the bound", printed=_every_head(_lower.printed),
            corrected=None, corrected_as="",
        ),
    ),
    ProtocolClaim("4", _GRADIENT, _paper("one-over-t")),
    ProtocolClaim(
        "4",
        _GRADIENT,
        Claim(
            "below-dashed-curve",
            "Fig. 4",
            "the curves stay below the dashed bound min{1/(4T), sqrt 2}",
            "largest g / bound over T at most 1, for each eps",
            _excess("random"),
            _excess("worst"),
            "in the worst direction",
        ),
    ),
    *(
        ProtocolClaim("4", _GRADIENT, _paper(name))
        for name in ("smaller-step-larger", "collapse-above-one", "two-orders", "near-the-limit")
    ),
)  # fmt: skip


def answer_protocol(tables: dict[str, pl.DataFrame]) -> list[dict[str, Any]]:
    """The claims that the protocol's tables decide, in the form of `claims.answer`, with figure and nearest reading."""
    shaped: dict[str, list[tuple[Labels, Evidence]]] = {}
    answers = []
    for one in CLAIMS:
        if one.table not in shaped:
            shaped[one.table] = readings(tables, one.table)
        answered = answer_claim(one.claim, shaped[one.table])
        nearest: dict[str, Any] = min(answered["readings"], key=_miss, default={})
        for reading in answered["readings"]:
            reading["nearest"] = reading is nearest and bool(reading["measured"])
        answers.append(answered | {"figure": one.figure})
    return answers


def combine(protocol: list[dict[str, Any]], last: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The claims decided by the protocol, each with where the last rows disagree, followed by all other claims.

    `last_rows` has the verdicts of the last rows, `disagreement` the sentence about it or None.
    """
    by_id = {
        claim["id"]: claim | {"readings": [{"rows": "last", **one, "nearest": False} for one in claim["readings"]]}
        for claim in last
    }
    combined = []
    for claim in protocol:
        other = by_id.pop(claim["id"], None)
        combined.append(
            claim
            | {
                "readings": claim["readings"] + (other["readings"] if other else []),
                "last_rows": {key: other[key] for key in ("verdict", "printed", "corrected")} if other else None,
                "disagreement": _disagreement(claim, other) if other else None,
            }
        )
    return combined + [claim | {"figure": None, "last_rows": None, "disagreement": None} for claim in by_id.values()]


def _disagreement(claim: dict[str, Any], other: dict[str, Any]) -> str | None:
    """A sentence that says which forms have a different verdict in the last rows (with all keys, as here)."""
    differing = []
    for form in ("printed", "corrected"):
        here, there = (
            merged(
                one["verdict"]
                for one in asked["readings"]
                if (one["form"], one["first_key"]) == (form, "kept") and one["verdict"]
            )
            for asked in (claim, other)
        )
        if here and there and here != there:
            differing.append(f"the {form} form {there} in the last rows and {here} in averages over all rows")
    return "; ".join(differing) or None


def _miss(reading: dict[str, Any]) -> tuple[float, float]:
    """How far a reading's values lie outside their ranges on average, then how far from the middle of the ranges."""
    outside, off = [], []
    for one in reading["measured"]:
        low, high = (-math.inf if one["accepted"][0] is None else one["accepted"][0]), one["accepted"][1]
        high = math.inf if high is None else high
        outside.append(max(low - one["value"], one["value"] - high, 0.0))
        middle = (low + high) / 2
        off.append(abs(one["value"] - middle) if math.isfinite(middle) else 0.0)
    return (round(float(np.mean(outside)), 9), round(float(np.mean(off)), 9)) if outside else (math.inf, math.inf)
