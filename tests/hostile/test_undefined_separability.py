"""Top sets larger than a row's support: keys of weight zero fill them up, so their separability says nothing."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import polars as pl
import pytest
import torch
from models import build, byte_tokenizer
from rich.console import Console

from attnscope.capture.models import Model
from attnscope.capture.text import Text
from attnscope.cli import run
from attnscope.diagnosis.observing import separability_columns
from attnscope.scanning import ScanResult, scan, view
from attnscope.scanning.overview import Overview
from attnscope.scanning.page_data import page_data
from attnscope.show import terminal
from attnscope.store.tables import within_support
from attnscope.studies.compare.comparing import Comparison, compare
from attnscope.studies.compare.guidelines import guidelines, small_active_set, trend
from attnscope.studies.compare.view import capacity_figure

TEXT = "The quick brown fox jumps over the lazy dog; 0123456789 (again and again). " * 9


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(build("llama-gqa"), byte_tokenizer(), "tiny", None)


@pytest.fixture(scope="module")
def result(model: Model) -> ScanResult:
    return scan(model, TEXT, length=48, lengths=[16, 48], top_n=[3, 5], normalizers=["topk:k=3", "sparsemax"])


def test_an_overfull_top_set_measures_the_support_and_not_the_separation() -> None:
    """Fault 31. Orthogonal keys are all separable; with keys of weight zero in the set, the row seems to lose them."""
    weights, x = np.array([0.5, 0.3, 0.2, *[0.0] * 12]), np.eye(15)
    found = {n: oracle.topn_columns(weights, x, n)["separability"] for n in (1, 2, 3, 6, 12)}
    assert found == {1: 1, 2: 1, 3: 1, 6: 3 / 6, 12: 3 / 12}


def test_sets_are_judged_within_the_support_only(result: ScanResult) -> None:
    """Fault 31."""
    judged = within_support(result.rows, result.topn)
    keys = ["window", "layer", "head", "position", "normalizer"]
    support = {tuple(line[k] for k in keys): line["support"] for line in result.rows.to_dicts()}
    assert judged.height == result.topn.height
    both = set()
    for line, raw in zip(judged.to_dicts(), result.topn.to_dicts(), strict=True):
        inside = support[tuple(line[k] for k in keys)] >= line["n"]
        both.add(inside)
        assert line["separability"] == (raw["separability"] if inside else None)
        assert (line["top_mass"], line["distance"]) == (raw["top_mass"], raw["distance"])
    assert both == {True, False}


def test_the_summary_and_the_page_leave_undefined_separability_out(result: ScanResult) -> None:
    """Fault 31."""
    topn = result.topn.filter(n=5)
    console = Console(record=True, width=200, file=io.StringIO())
    terminal.write(console, view.blocks(Overview.of(result.rows, topn, result.run)))
    line = next(line for line in console.export_text().splitlines() if line.strip().startswith("topk:k=3"))
    assert line.split()[1:3] == ["-", "-"]
    tried = page_data(Overview.of(result.rows, topn, result.run))["what_if"]
    at = tried["labels"].index("topk:k=3")
    columns = {name: values[at :: len(tried["labels"])] for name, values in tried["columns"].items()}
    assert set(columns["separability"]) == {None}
    assert set(columns["top_mass"]) == {1}


def test_a_comparison_says_in_which_rows_separability_is_defined(model: Model) -> None:
    """Fault 31."""
    compared = compare(model, Text(TEXT, "t"), ["topk:k=3", "topk:k=5"], lengths=[41], top_n=5)
    by_name = {(line["mode"], line["normalizer"]): line for line in compared.table.to_dicts()}
    for mode in ("what-if", "swapped"):
        assert (by_name[mode, "topk:k=3"]["separability"], by_name[mode, "topk:k=3"]["defined"]) == (None, 0)
        assert by_name[mode, "topk:k=5"]["defined"] == by_name[mode, "own"]["defined"] == 1
    console = Console(record=True, width=200, file=io.StringIO())
    compared.print_summary(console)
    printed = console.export_text()
    assert "*" not in printed
    assert "-: fewer than N tokens have weight" in printed
    Comparison(compared.table.with_columns(defined=0.5), compared.run).print_summary(console)
    assert "*: mean over the rows with N tokens of weight" in console.export_text()
    chart = capacity_figure(compared.table).chart().to_json()
    assert "topk:k=3" not in chart
    assert "topk:k=5" in chart
    nothing = capacity_figure(compared.table.filter(normalizer="topk:k=3"))  # an empty chart is a chart
    assert nothing.chart().to_json()


def swept(separability: list[float | None]) -> tuple[pl.DataFrame, dict[str, float]]:
    """The table of a sweep over k = 8, 32, ..., and the share of the length that each k is."""
    names = [f"topk:k={8 * 4**i}" for i in range(len(separability))]
    table = pl.DataFrame({"normalizer": names, "separability": separability, "perplexity": 9.0, "support": 8.0})
    table = table.with_columns(defined=pl.col("separability").is_not_null().cast(pl.Float64))
    return table, {name: 8 * 4**i / 512 for i, name in enumerate(names)}


def test_a_guideline_is_judged_over_the_whole_sweep_where_it_is_defined() -> None:
    """Fault 31. With k = 8 there is no top 20 to judge; 0.646 at k = 32 against 0.542 with all keys agrees."""
    found = small_active_set(*swept([None, 0.646, 0.6, 0.542]))
    assert found.verdict == "agrees"
    assert "not defined at 0.0156" in found.measured
    for part in ("0.646 at 0.0625", "0.6 at 0.25", "0.542 at 1"):
        assert part in found.measured
    assert small_active_set(*swept([None, 0.5, 0.7, 0.6])).verdict == "undecided"  # it moves both ways
    assert small_active_set(*swept([None, None, None, 0.6])).verdict == "undecided"
    assert [trend(values) for values in ([3, 2, 1], [1, 2, 3], [1, 3, 2], [2.0, 2.01], [1.0])] == [
        "agrees",
        "disagrees",
        "undecided",
        "undecided",
        "undecided",
    ]


def test_guidelines_of_a_model_leave_out_what_is_not_defined(model: Model) -> None:
    """Fault 31."""
    small, entropy, _ = guidelines(model, Text(TEXT, "t"), lengths=[16, 96], top_n=20).findings
    assert [round(96 * line["share"]) for line in small.table] == [2, 6, 24, 96]
    assert [line["separability"] is None for line in small.table] == [True, True, False, False]
    assert [line["length"] for line in entropy.table] == [96]  # rows of 16 keys have no top 20
    assert entropy.verdict == "undecided"


def test_the_guidelines_command_survives_lengths_below_the_top_set(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    book = tmp_path / "book.txt"
    book.write_text(TEXT, encoding="utf-8")
    options = ["--text", str(book), "--lengths", "8,48", "--out", str(tmp_path / "out"), "--json"]
    assert run(["guidelines", str(model_folder), *options]) == 0
    assert json.loads(capsys.readouterr().out)["findings"][1]["verdict"] == "undecided"


def test_a_diagnosis_of_sparse_rows_has_no_separability_beyond_their_support() -> None:
    """Fault 31."""
    weights = torch.zeros(1, 3, 12, dtype=torch.float64)
    for row, support in enumerate((2, 4, 5)):
        weights[0, row, :support] = torch.arange(support, 0, -1, dtype=torch.float64)
    weights /= weights.sum(-1, keepdim=True)
    vectors = torch.randn(1, 12, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    visible = torch.ones(1, 3, 12, dtype=torch.bool)
    columns: dict[str, Any] = separability_columns(weights, visible, vectors, 4, torch.Generator().manual_seed(2))
    for name in ("separability", "null_uniform", "null_random"):
        assert columns[name].isnan().tolist() == [[True, False, False]], name
    assert columns["separability_without_sink"].isnan().tolist() == [[True, True, False]]
