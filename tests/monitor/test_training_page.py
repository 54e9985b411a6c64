"""The data of a training run's page: which steps it has, and nothing lost from sight, against plain loops."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import polars as pl
import pytest
from training_runs import RECORD, Training, made_alarm, made_training, measured_step

import attnscope
from attnscope.monitor import page as module
from attnscope.monitor.page import choose_steps, scalar_points, training_data
from attnscope.monitor.run_files import HEADS, MEASURES, TrainingFiles
from attnscope.show.page import unpacked


def thinned(folder: Path, room: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(module, "_MOST_STEPS", room)
    return training_data(attnscope.monitor.load(folder))


@pytest.mark.parametrize(("count", "room"), [(5, 12), (12, 12), (13, 12), (1000, 12), (1000, 171), (171, 170)])
@pytest.mark.parametrize("alarms", [0, 1, 4, 300])
def test_the_ends_and_the_alarms_are_kept_and_the_rest_is_even(count: int, room: int, alarms: int) -> None:
    steps = [50 * (k + 1) for k in range(count)]
    raised = [steps[(7 * k + 3) % count] for k in range(alarms)]
    chosen = choose_steps(steps, raised, room)
    assert chosen == sorted(set(chosen))
    assert set(chosen) <= set(steps)
    assert len(chosen) == min(count, room)
    assert {steps[0], steps[-1]} <= set(chosen)
    if len(set(raised)) <= room // 2 - 1:
        assert set(raised) <= set(chosen)
    indices = [steps.index(step) for step in chosen]
    gaps = [after - before for before, after in pairwise(indices)]
    assert max(gaps) <= 2 * math.ceil(count / (room - room // 2)) + 1


def test_the_numbers_of_the_shown_steps_are_those_that_were_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = thinned(made_training(tmp_path / "run", 70), 13, monkeypatch)
    assert len(data["steps"]) == 13
    assert data["measured_steps"] == 70
    assert 3050 in data["steps"]  # of the alarm
    at = 0
    for step in data["steps"]:
        for line in measured_step(step).iter_rows(named=True):
            assert (data["heads"]["layer"][at % 15], data["heads"]["head"][at % 15]) == (line["layer"], line["head"])
            for name in MEASURES:
                assert data["columns"][name][at] == pytest.approx(line[name], rel=1e-3)
            at += 1
    assert all(len(data["columns"][name]) == at for name in MEASURES)


def test_the_range_covers_every_step_that_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = thinned(made_training(tmp_path / "run", 70), 13, monkeypatch)
    before = 0
    for k, step in enumerate(data["steps"]):
        lines = [line for s in range(before + 50, step + 1, 50) for line in measured_step(s).iter_rows(named=True)]
        for name in MEASURES:
            values = [line[name] for line in lines]
            expected = {"low": min(values), "median": median(values), "high": max(values)}
            for kind, value in expected.items():
                assert data[kind][name][k] == pytest.approx(value, rel=1e-3), (step, name, kind)
        before = step


def test_numbers_that_are_none_are_missing_and_hide_no_others(tmp_path: Path) -> None:
    training = Training(tmp_path)
    broken = pl.when(head=2).then(pl.lit(math.nan)).when(head=3).then(pl.lit(math.inf)).otherwise(pl.col("max_logit"))
    training.files.add_table("heads", measured_step(50).with_columns(max_logit=broken).filter(~pl.col("head").eq(4)))
    training.measure(100)
    data = training_data(attnscope.monitor.load(tmp_path))
    assert [value is None for value in data["columns"]["max_logit"][:5]] == [False, False, True, True, True]
    finite = measured_step(50).filter(pl.col("head") < 2)["max_logit"]
    assert data["high"]["max_logit"][0] == pytest.approx(max(finite), rel=1e-3)
    assert json.dumps(data, allow_nan=False)


@pytest.mark.parametrize("count", [1, 7, 799, 800, 801, 2500])
def test_the_loss_is_kept_as_means_with_their_range(count: int) -> None:
    values = [float(value) for value in np.random.default_rng(count).normal(size=count)]
    table = pl.DataFrame({"step": range(1, count + 1), "name": "loss", "value": values})
    points = scalar_points(table)
    assert points["measured"] == count
    assert len(points["step"]) == min(count, 800)
    assert points["step"][-1] == count
    start = 0
    for k, end in enumerate(points["step"]):
        part = values[start:end]
        assert part
        assert points["value"][k] == pytest.approx(sum(part) / len(part), rel=1e-3, abs=1e-9)
        assert points["low"][k] == pytest.approx(min(part), rel=1e-3)
        assert points["high"][k] == pytest.approx(max(part), rel=1e-3)
        start = end
    assert points["broken"] is None


def test_a_loss_that_is_no_number_is_named_by_its_step() -> None:
    table = pl.DataFrame({"step": [1, 2, 3], "name": "loss", "value": [1.0, None, math.inf]})
    points = scalar_points(table)
    assert points["broken"] == 2
    assert points["value"] == [1, None, None]


def test_parameters_of_normalizers_are_measures_too(tmp_path: Path) -> None:
    training = Training(tmp_path, 1, 2)
    training.measure(50)
    lines = {"step": 50, "layer": 0, "head": [0, 1], "name": "alpha", "value": [1.5, 1.25]}
    training.files.add_table("parameters", pl.DataFrame(lines))
    data = training_data(attnscope.monitor.load(tmp_path))
    assert data["columns"]["alpha"] == [1.5, 1.25]
    assert data["measures"]["alpha"]["label"] == "alpha"


def test_only_the_first_alarms_of_very_many_are_on_the_page(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.measure(50, tuple(made_alarm(50, 0, k % 5, f"kind {k}") for k in range(600)))
    data = training_data(attnscope.monitor.load(tmp_path))
    assert data["alarm_count"] == 600
    assert [alarm["kind"] for alarm in data["alarms"]] == [f"kind {k}" for k in range(500)]


@pytest.mark.parametrize(("layers", "heads", "steps"), [(30, 9, 2000), (48, 64, 40)])
def test_the_page_of_a_long_run_stays_small(layers: int, heads: int, steps: int, tmp_path: Path) -> None:
    """Fault 25: noise compresses worst."""
    random = np.random.default_rng(0)
    keys = {
        "step": np.repeat(50 * np.arange(1, steps + 1), layers * heads),
        "layer": np.tile(np.repeat(np.arange(layers), heads), steps),
        "head": np.tile(np.arange(heads), steps * layers),
    }
    noise = {name: random.uniform(0, 1, len(keys["step"])) for name in ("length", *MEASURES)}
    files = TrainingFiles(tmp_path)
    files.write_record(RECORD | {"status": "finished"})
    files.add_table("heads", pl.DataFrame({**keys, "rows": 16, **noise}).cast(dict(HEADS)))
    page = attnscope.monitor.load(tmp_path).page()
    assert len(page) < 5_000_000
    shown = unpacked(page.split('id="data">')[1].split("<")[0])
    assert shown["measured_steps"] == steps
    assert 12 <= len(shown["steps"]) < steps


def test_hostile_names_stay_text_and_the_page_needs_nothing_from_outside(tmp_path: Path) -> None:
    """Faults 20 and 21."""
    hostile = "</script><script>alert(1)</script>\u202e&\"'<img src=x onerror=alert(2)>"
    pages = []
    for name in ("plain", hostile):
        training = Training(tmp_path / str(len(pages)), model={"name": name}, last_error=name, errors=1)
        training.measure(50, ({**made_alarm(50, kind=name), "advice": name},))
        training.files.add_lines("scalars", [{"step": 50, "name": name, "value": 1.0}])
        pages.append(attnscope.monitor.load(tmp_path / str(len(pages))).page())
    for tag in ("<script", "</script", "<img"):
        assert pages[0].count(tag) == pages[1].count(tag)
    policy = pages[1].split('Content-Security-Policy" content="')[1].split('"')[0]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "connect-src" not in policy
    assert "unsafe" not in policy
