"""The benchmark of workers: its report, and what it refuses."""

from __future__ import annotations

import importlib.util
import json

import pytest

from attnscope.errors import InputError
from benchmarks.__main__ import run
from benchmarks.scale import measure


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray")
def test_the_figures_of_a_small_run(capfd: pytest.CaptureFixture[str]) -> None:
    sizes = ["--length", "16", "--windows", "8", "--many", "200", "--repeats", "1"]
    assert run(["scale", *sizes, "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["identical"] is True
    assert len(report["tables"]) == 4
    assert 4 <= report["killed_after_windows"] <= 8
    (seconds,) = report["seconds"]
    assert report["two_workers_to_one"] == pytest.approx(seconds["one_worker"] / seconds["two_workers"], abs=1e-3)
    assert report["driver_memory_ratio"] > 0
    assert report["report_seconds"] > 0


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(InputError, match="windows takes a whole number from 4 up; received 3"):
        measure(windows=3)
    with pytest.raises(InputError, match="only takes speed or memory; received 'time'"):
        measure(only=("time",))


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_the_extra_is_named() -> None:
    with pytest.raises(InputError, match=r"need Ray, which is not installed; pip install 'attnscope\[ray\]'"):
        measure()
