"""Every claim is recomputed from the tables with numpy and scipy, window by window."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
from claim_oracles import ORACLES, Table
from models import build
from reproductions import collect

from attnscope.experiments.claims import CLAIMS, answer, readings_of
from attnscope.experiments.figures import critical
from attnscope.intervals import Estimate
from attnscope.studies.paper.evidence import NO_INTERVAL, Measurement, both_ends, every

WINDOWS = 3
LENGTHS = (32, 64, 128)


@pytest.fixture(scope="module")
def tables() -> dict[str, pl.DataFrame]:
    return collect(build("gpt2"), length=128, windows=WINDOWS, draws=99)


@pytest.fixture(scope="module")
def claims(tables: dict[str, pl.DataFrame]) -> dict[str, dict[str, Any]]:
    return {claim["id"]: claim for claim in answer(readings_of(tables, ["value"]))}


def test_every_form_of_every_claim_has_an_oracle() -> None:
    forms = {(claim.id, "printed") for claim in CLAIMS} | {
        (claim.id, "corrected") for claim in CLAIMS if claim.corrected
    }
    assert set(ORACLES) == forms


@pytest.mark.parametrize("sink", ["kept", "dropped"])
@pytest.mark.parametrize(("claim", "form"), sorted(ORACLES))
def test_claims_follow_from_the_tables(
    tables: dict[str, pl.DataFrame], claims: dict[str, dict[str, Any]], claim: str, form: str, sink: str
) -> None:
    reading = next(one for one in claims[claim]["readings"] if (one["form"], one["first_key"]) == (form, sink))
    expected = [one for one in ORACLES[claim, form](Table(tables, sink)) if one is not None]
    assert len(reading["measured"]) == len(expected)
    for one, oracle in zip(reading["measured"], expected, strict=True):
        assert one["value"] == pytest.approx(np.median(oracle), rel=1e-7, abs=1e-9), one["name"]
        if np.ndim(oracle):  # resampled windows are among the windows
            assert np.min(oracle) - 1e-9 <= one["interval"][0] <= one["interval"][1] <= np.max(oracle) + 1e-9


def test_verdicts_follow_from_the_numbers(claims: dict[str, dict[str, Any]]) -> None:
    for claim in claims.values():
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
            between = reading["form"] == "corrected" and claim["id"] in ("critical-share", "critical-sublinear")
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


def test_one_row_refutes_a_bound(tables: dict[str, pl.DataFrame]) -> None:
    assert tables["topn"]["sink"][0] == "kept"
    first = pl.int_range(pl.len()) == 0
    broken = tables["topn"].with_columns(
        distance_lower=pl.when(first).then(1e9).otherwise(pl.col("distance_lower")),
    )
    claim = {claim["id"]: claim for claim in answer(readings_of(tables | {"topn": broken}, ["value"]))}["bound-safe"]
    verdicts = {(one["form"], one["first_key"]): one["verdict"] for one in claim["readings"]}
    assert verdicts == {
        ("printed", "kept"): "agrees",
        ("corrected", "kept"): "disagrees",
        ("printed", "dropped"): "agrees",
        ("corrected", "dropped"): "agrees",
    }


def test_one_window_decides_only_claims_about_every_row(tables: dict[str, pl.DataFrame]) -> None:
    one = {name: table.filter(window=0) if "window" in table.columns else table for name, table in tables.items()}
    universal = {"bound-safe", "upper-bound-holds", "lower-bound-holds", "dashed-bound-holds"}
    readings = readings_of(one, ["value"])
    for claim in answer(readings):
        for reading in claim["readings"]:
            if claim["id"] in universal or not reading["measured"]:
                continue
            assert reading["verdict"] == "depends", claim["id"]
            assert reading["depends_on"] == [NO_INTERVAL]
            assert all(number["interval"] is None for number in reading["measured"])
    figure = critical.figure(readings[0])
    figure.chart().to_dict()  # altair checks the chart against its schema
    assert "no interval" in figure.caption
    assert figure.data.filter(panel="length")["low"].null_count() == 2 * 3 * len(LENGTHS)


def test_rows_of_a_window_are_not_independent_samples() -> None:
    claims = answer(readings_of(collect(build("gpt2"), length=64, windows=1, rows=4, draws=19), ["value"]))
    plateau = next(claim for claim in claims if claim["id"] == "separability-plateau")
    assert plateau["depends_on"] == [NO_INTERVAL]


def test_too_few_draws_for_the_level_measure_nothing(tables: dict[str, pl.DataFrame]) -> None:
    few_draws = tables | {"drawn": tables["drawn"].with_columns(draws=pl.lit(50))}
    uniform = next(claim for claim in answer(readings_of(few_draws, ["value"])) if claim["id"] == "uniform-selection")
    assert uniform["corrected"] is None
