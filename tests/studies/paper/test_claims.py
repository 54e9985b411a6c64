"""The rule that turns measurements into verdicts, on the claims of a tiny model."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
from models import build
from reproductions import collect

from attnscope.intervals import Estimate
from attnscope.studies.paper.claims import answer
from attnscope.studies.paper.evidence import NO_INTERVAL, Measurement, both_ends, every
from attnscope.studies.paper.figures import draw

BETWEEN_ENDS = {
    *("critical-share", "critical-sublinear", "critical-below-6-percent"),
    *("expectation-linear", "converge-at-100", "corollary-2i"),
}


@pytest.fixture(scope="module")
def tables() -> dict[str, pl.DataFrame]:
    return collect(build("gpt2"), length=128, windows=3)


@pytest.fixture(scope="module")
def claims(tables: dict[str, pl.DataFrame]) -> list[dict[str, Any]]:
    return answer(tables)


def test_every_claim_is_measured(claims: list[dict[str, Any]]) -> None:
    late = {"plateau-beyond-20", "bound-tightens", "converge-at-100", "uniform-selection"}  # at N = 100
    assert {claim["id"] for claim in claims if claim["verdict"] == "not measured"} <= late
    assert len({claim["id"] for claim in claims}) == len(claims) == 33


def test_verdicts_follow_from_the_numbers(claims: list[dict[str, Any]]) -> None:
    for claim in claims:
        for reading in claim["readings"]:
            verdicts = set()
            for one in reading["measured"]:
                low, high = (
                    default if end is None else end
                    for end, default in zip(one["accepted"], (-np.inf, np.inf), strict=True)
                )
                least, most = one["interval"]
                inside, outside = low <= least and most <= high, most < low or least > high
                counted = one["name"].startswith("share of") and one["accepted"] == [1.0, 1.0]
                verdict = "agrees" if inside else "disagrees" if outside or counted else "depends"
                assert one["verdict"] == verdict
                verdicts.add(verdict)
            between = reading["form"] == "corrected" and claim["id"] in BETWEEN_ENDS
            if not verdicts:
                assert reading["verdict"] is None
            elif between:
                assert reading["verdict"] == (verdicts.pop() if len(verdicts) == 1 else "depends")
            else:
                worst = next(one for one in ("disagrees", "depends", "agrees") if one in verdicts)
                assert reading["verdict"] == worst


def measured(*verdicts: str) -> list[Measurement]:
    estimates = {"agrees": Estimate(1, 1, 1), "disagrees": Estimate(3, 3, 3), "depends": Estimate(1, 0, 3)}
    return [Measurement("x", estimates[verdict], (0.5, 1.5), f"N = {n}") for n, verdict in enumerate(verdicts)]


def test_one_disagreeing_measurement_refutes_a_form() -> None:
    assert every(measured("agrees", "agrees")) == "agrees"
    assert every(measured("agrees", "depends")) == "depends"
    assert every(measured("agrees", "depends", "disagrees")) == "disagrees"
    assert every([]) is None


def test_both_ends_must_have_the_same_verdict() -> None:
    assert both_ends(measured("agrees", "disagrees")) == "depends"
    assert both_ends(measured("disagrees", "disagrees")) == "disagrees"


def test_one_line_refutes_a_bound(tables: dict[str, pl.DataFrame]) -> None:
    first = (pl.int_range(pl.len()) == 0) & (pl.col("reading") == "literal")
    distance = pl.when(first).then(1e9).otherwise(pl.col("distance"))
    broken = tables | {"protocol_distance": tables["protocol_distance"].with_columns(distance=distance)}
    claim = next(claim for claim in answer(broken) if claim["id"] == "bound-safe")
    assert {one["rows"]: one["verdict"] for one in claim["readings"]} == {"literal": "disagrees", "visible": "agrees"}


def test_a_verdict_changes_with_the_numbers(tables: dict[str, pl.DataFrame]) -> None:
    same = tables["protocol_separability"].with_columns(separability=pl.lit(0.8), separability_closed=pl.lit(None))
    verdicts = {claim["id"]: claim["verdict"] for claim in answer(tables | {"protocol_separability": same})}
    assert verdicts["separability-plateau"] == "agrees"
    assert verdicts["separability-falls"] == "disagrees"


def test_one_window_decides_only_claims_about_every_line(tables: dict[str, pl.DataFrame]) -> None:
    one = {name: table.filter(window=0) if "window" in table.columns else table for name, table in tables.items()}
    universal = {"bound-safe", "upper-bound-holds", "lower-bound-holds", "dashed-bound-holds", "expectation-formula"}
    for claim in answer(one):
        for reading in claim["readings"]:
            if claim["id"] in universal or not reading["measured"]:
                continue
            assert reading["verdict"] == "depends", claim["id"]
            assert reading["depends_on"] == [NO_INTERVAL]
            assert all(number["interval"] is None for number in reading["measured"])
    for figure in draw(one).values():
        figure.chart().to_dict()  # altair checks the chart against its schema
