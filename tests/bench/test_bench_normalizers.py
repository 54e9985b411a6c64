"""The benchmark measures what it says, on sizes that take no time."""

from __future__ import annotations

import json

import pytest

from attnscope.bench.normalizers import SUBJECTS, measure
from attnscope.cli import run
from attnscope.errors import InputError


def test_one_result_for_each_normalizer_and_length() -> None:
    report = measure(rows=3, lengths=(17, 31), repeats=1, subjects=["sparsemax", "ssmax"])
    assert [(r["normalizer"], r["length"]) for r in report["results"]] == [
        (name, length) for length in (17, 31) for name in ("sparsemax", "ssmax")
    ]
    for result in report["results"]:
        assert result["rows"] == 3 * 1024 // result["length"]
        assert result["forward_ratio"] > 0
        assert result["total_ratio"] > 0
        assert result["largest_error"] < 1e-6


def test_the_command_prints_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--rows", "2", "--lengths", "13", "--repeats", "1"]
    arguments = ["bench", "normalizers", *sizes, "--only", "sparsemax", "--json"]
    assert run(arguments) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["benchmark"] == "normalizers"
    assert [r["normalizer"] for r in report["results"]] == ["sparsemax"]


def test_the_command_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "normalizers", "--rows", "2", "--lengths", "13", "--repeats", "1", "--only", "entmax15"]) == 0
    assert "entmax15" in capsys.readouterr().out


def test_an_unknown_normalizer_is_named() -> None:
    with pytest.raises(InputError, match=f"no benchmark is named argmax: choose from {next(iter(SUBJECTS))}"):
        measure(subjects=["argmax"])
