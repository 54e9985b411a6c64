"""The benchmark measures what it says, on sizes that take no time."""

from __future__ import annotations

import json

import pytest
import torch

from attnscope.errors import InputError
from attnscope.normalizers import parse
from benchmarks.__main__ import run
from benchmarks._oracle import ORACLES
from benchmarks.normalizers import SUBJECTS, measure


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
    arguments = ["normalizers", *sizes, "--only", "sparsemax", "--json"]
    assert run(arguments) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["benchmark"] == "normalizers"
    assert [r["normalizer"] for r in report["results"]] == ["sparsemax"]


def test_the_command_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["normalizers", "--rows", "2", "--lengths", "13", "--repeats", "1", "--only", "entmax15"]) == 0
    assert "entmax15" in capsys.readouterr().out


@pytest.mark.parametrize("label", SUBJECTS)
def test_the_oracle_tells_a_right_normalizer_from_a_wrong_one(label: str) -> None:
    report = measure(rows=2, lengths=(101,), repeats=1, subjects=[label])
    assert report["results"][0]["largest_error"] < 1e-6
    z = torch.randn(3, 101, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    assert float((parse(label)(1.01 * z) - torch.from_numpy(ORACLES[label](z.numpy()))).abs().max()) > 1e-6


def test_lengths_are_separated_by_commas_as_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--rows", "2", "--lengths", "13,17", "--repeats", "1"]
    assert run(["normalizers", *sizes, "--only", "softmax,sparsemax", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [(r["normalizer"], r["length"]) for r in report["results"]] == [
        (name, length) for length in (13, 17) for name in ("softmax", "sparsemax")
    ]
    assert run(["normalizers", "--lengths", "13 17"]) == 2
    assert "--lengths takes whole numbers separated by commas" in capsys.readouterr().err


def test_sizes_beyond_the_memory_are_refused_with_what_they_need() -> None:
    with pytest.raises(InputError, match=r"would need [\d,.]+ GiB of memory"):
        measure(lengths=(10**13,))


def test_an_unknown_normalizer_is_named() -> None:
    with pytest.raises(InputError, match=f"no benchmark is named argmax: choose from {SUBJECTS[0]}"):
        measure(subjects=["argmax"])
