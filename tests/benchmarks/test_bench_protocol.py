"""The protocol's benchmark: its report, and what it refuses."""

from __future__ import annotations

import json
import sys

import pytest

from attnscope.errors import InputError
from benchmarks.__main__ import run
from benchmarks.protocol import ALGORITHMS, measure


@pytest.mark.thorough
def test_each_algorithm_beside_the_forward_and_the_papers_time(capfd: pytest.CaptureFixture[str]) -> None:
    sizes = ["--length", "33", "--layers", "1", "--heads", "2", "--width", "8", "--repeats", "1"]
    assert run(["protocol", *sizes, "--only", "5", "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert [result["algorithm"] for result in report["results"]] == [5]
    for result in report["results"]:
        assert result["seconds"] > result["forward_seconds"] > 0
        assert result["time_ratio"] > 1
        assert result["times_faster"] == pytest.approx(result["paper_seconds"] / result["seconds"], rel=0.01, abs=0.1)
        assert (result["peak_bytes"] is not None) == (sys.platform == "linux")


def test_the_papers_minutes() -> None:
    """24 min, 37 min, 17 h 4 min, 7 min and 1 min."""
    assert [about.paper_minutes for about in ALGORITHMS.values()] == [24, 37, 17 * 60 + 4, 7, 1]


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(InputError, match="algorithms 1 to 5; received 6"):
        measure(algorithms=[1, 6])
    with pytest.raises(InputError, match=r"^length takes a whole number from 8 up; received 4"):
        measure(length=4)
    with pytest.raises(InputError, match="width must be a multiple of heads; received 8 and 3"):
        measure(layers=1, heads=3, width=8, repeats=1)
