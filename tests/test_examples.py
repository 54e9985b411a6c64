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


def test_the_notebook_runs_and_every_cell_shows_something(monkeypatch: pytest.MonkeyPatch, model_folder: Path) -> None:
    """The cells on a tiny model: the last expression of each has an output for a notebook."""
    import ast

    import attnscope

    scan, compare = attnscope.scan, attnscope.compare
    text = "The quick brown fox jumps over the lazy dog; 0123456789 (again and again). " * 9
    monkeypatch.setattr(attnscope, "scan", lambda **given: scan(model_folder, text, length=64, **given))
    less = {"lengths": [32, 64], "top_n": 5}
    monkeypatch.setattr(attnscope, "compare", lambda **given: compare(model_folder, text, **(given | less)))
    monkeypatch.setattr(attnscope.ScanResult, "show", lambda self: self)
    names: dict[str, Any] = {}
    cells = (EXAMPLES / "notebook.py").read_text("utf-8").split("# %%\n")[1:]
    for cell in cells:
        *before, last = ast.parse(cell.split("# %% [markdown]")[0]).body
        exec(compile(ast.Module(before, []), "cell", "exec"), names)
        assert isinstance(last, ast.Expr)
        shown = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
        assert any(hasattr(shown, name) for name in ("_repr_html_", "_repr_mimebundle_"))
