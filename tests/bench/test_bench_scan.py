"""The scan's benchmark: its report, and its naive way as an oracle for the scan."""

from __future__ import annotations

import json

import polars as pl
import pytest
import torch
import transformers

from attnscope.bench import naive
from attnscope.bench.scan import RandomTokens, measure
from attnscope.capture.models import Model
from attnscope.capture.text import Text
from attnscope.cli import run
from attnscope.errors import InputError
from attnscope.scanning import scan

LENGTH, LAYERS, HEADS = 131, 2, 3


def test_the_naive_way_gives_the_columns_of_the_scan() -> None:
    torch.manual_seed(3)
    config = transformers.GPT2Config(
        n_positions=LENGTH, n_layer=LAYERS, n_head=HEADS, n_embd=33, vocab_size=97, initializer_range=0.15
    )
    module = transformers.GPT2LMHeadModel(config).eval().double()
    tokens = RandomTokens(97, LENGTH)
    top_n = [1, 5, 10, 20, 100]
    expected = naive.scan_all(module, tokens.ids, top_n)
    result = scan(Model(module, tokens, "tiny", None), Text("x", "random"), length=LENGTH, top_n=top_n, rows="all")
    # The model's own weights are float32: the columns agree as far as those agree with ours.
    for name in ("entropy", "max_weight", "participation", "weight_sum", "jacobian_bound", "sink_weight"):
        measured = torch.tensor(result.rows[name].to_list(), dtype=torch.float64).view(LAYERS, HEADS, LENGTH)
        right = torch.stack([layer[name] for layer in expected])
        torch.testing.assert_close(measured, right, rtol=2e-4, atol=1e-6, msg=name)
    for index, n in enumerate(top_n):
        table = result.topn.filter(pl.col("n") == n)
        for name in table.columns[7:]:
            measured = torch.tensor(table[name].to_list(), dtype=torch.float64).view(LAYERS, HEADS, LENGTH - n)
            right = torch.stack([layer[name][:, n:, index] for layer in expected]).double()
            close = torch.isclose(measured, right, rtol=2e-3, atol=1e-5)
            # Counts may differ by a token where two distances tie in float32, and L - 1 = N leaves no spread.
            assert close[..., 1:].double().mean() > 0.99, name


def test_one_result_for_each_subject() -> None:
    report = measure(length=19, layers=1, heads=2, width=8, rows=3, repeats=1, subjects=["last", "nnsight"])
    assert [result["subject"] for result in report["results"]] == ["last", "nnsight", "rows=3"]
    for result in report["results"]:
        if result["installed"]:
            assert result["time_ratio"] > 0
            assert result["peak_bytes"] is None or result["peak_bytes"] >= 0


def test_the_command_prints_one_json_object(capfd: pytest.CaptureFixture[str]) -> None:
    sizes = ["--length", "13", "--layers", "1", "--heads", "1", "--width", "4", "--repeats", "1"]
    assert run(["bench", "scan", *sizes, "--only", "last", "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["benchmark"] == "scan"
    assert report["results"][0]["forward_seconds"] > 0


def test_an_unknown_subject_is_named() -> None:
    with pytest.raises(InputError, match="no benchmark is named magic: choose from last, all, naive"):
        measure(subjects=["magic"])
