"""The examples run at a small scale and give the results they describe."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_fine_tuning_a_swapped_model_lowers_its_loss(capsys: pytest.CaptureFixture[str]) -> None:
    load("finetune_swapped").main(["--steps", "6", "--length", "64", "--only", "entmax15", "lipmax"])
    results = json.loads(capsys.readouterr().out)["results"]
    assert [result["normalizer"] for result in results] == ["entmax15", "lipmax"]
    for result in results:
        assert result["after"]["loss"] < result["before"]["loss"]
        separability, defined = result["after"]["separability"], result["after"]["defined"]
        assert 0 <= defined <= 1
        assert separability is None if defined == 0 else 0 <= separability <= 1
    assert results[0]["learned_range"] is None
    assert results[1]["learned_range"][0] < results[1]["learned_range"][1]
