"""The monitor's benchmark: its report, and what it refuses."""

from __future__ import annotations

import json
import sys

import pytest

from attnscope.errors import InputError
from benchmarks.__main__ import run
from benchmarks.monitor import measure

SIZES = ["--length", "33", "--layers", "1", "--heads", "2", "--width", "8", "--batch", "2"]


@pytest.mark.thorough
def test_the_ratios_of_a_watched_run_to_a_plain_one(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["monitor", *SIZES, "--every", "3", "--steps", "6", "--measured", "3", "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["identical"] is True
    assert report["errors"] == 0
    for ratios in (report["measured_step"], report["unmeasured_step"]):
        assert 0 < ratios["quartiles"][0] <= ratios["wall_ratio"] <= ratios["quartiles"][1]
        assert ratios["cpu_ratio"] > 0
    assert set(report["training"]) == {"wall_ratio", "cpu_ratio"}
    assert (report["memory_ratio"] is not None) == (sys.platform == "linux")


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(InputError, match="width must be a multiple of heads; received 8 and 3"):
        measure(layers=1, heads=3, width=8)
    with pytest.raises(InputError, match="every takes a whole number from 1 up; received 0"):
        measure(layers=1, heads=2, width=8, every=0)
