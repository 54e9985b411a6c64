"""Attention patterns of a scan, against the weights that the model's own eager attention returns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from models import build

import attnscope
from attnscope.capture.tokens import special_tokens
from attnscope.intervals import evenly_spaced
from attnscope.scanning import ScanResult, scan
from attnscope.scanning.measuring import CELLS
from attnscope.store import tables


def eager_weights(family: str, ids: list[int], **inputs: Any) -> list[np.ndarray]:
    """(heads, queries, keys) of each layer, as the model itself computes them."""
    with torch.no_grad():
        output = build(family, attention="eager")(torch.tensor([ids]), output_attentions=True, **inputs)
    return [layer[0].double().numpy() for layer in output.attentions]


def patterns_of(result: ScanResult) -> pl.DataFrame:
    assert result.token_weights
    assert result.token_weights.patterns is not None
    return result.token_weights.patterns


def check(patterns: pl.DataFrame, weights: list[np.ndarray]) -> None:
    """Every cell against the sum of the weights of its keys; null only where that is zero."""
    assert patterns.schema == tables.PATTERNS
    assert patterns.height
    for line in patterns.iter_rows(named=True):
        row = weights[line["layer"]][line["head"], line["position"]]
        assert line["first_key_weight"] == pytest.approx(row[line["first_key"]], abs=1e-5)
        for cell, value in enumerate(line["weights"]):
            start = line["first_key"] + cell * line["keys_per_cell"]
            keys = row[start : start + line["keys_per_cell"]]
            assert len(keys)
            assert (value or 0.0) == pytest.approx(keys.sum(), abs=1e-5)
            assert value is not None or not keys.any()


@pytest.mark.parametrize("length", [61, 64, 127])
@pytest.mark.parametrize("family", ["gpt2", "llama-gqa", "mistral-window", "gpt-oss-sinks"])
def test_cells_are_sums_of_the_weights_of_the_model(family: str, length: int, tokenizer: Any, text: str) -> None:
    model = build(family, attention="eager" if family == "gpt-oss-sinks" else "sdpa")
    patterns = patterns_of(scan(model, text, tokenizer=tokenizer, length=length, top_n=[3]))
    check(patterns, eager_weights(family, tokenizer(text)["input_ids"][:length]))


def test_cells_are_null_exactly_where_all_their_keys_are_hidden(tokenizer: Any, text: str) -> None:
    for line in patterns_of(scan(build("gpt2"), text, tokenizer=tokenizer, length=127, top_n=[3])).iter_rows(
        named=True
    ):
        starts = np.arange(len(line["weights"])) * line["keys_per_cell"]
        assert [value is None for value in line["weights"]] == (starts > line["position"]).tolist()


def test_an_encoder_keeps_the_pattern_of_its_longest_input(text: str) -> None:
    from models import byte_tokenizer

    words = byte_tokenizer(special=True)
    patterns = patterns_of(scan(build("bert"), text, tokenizer=words, lengths=[17, 43], top_n=[3]))
    before, after = special_tokens(words)
    tokens = words(text, add_special_tokens=False)["input_ids"][: 43 - len(before) - len(after)]
    check(patterns, eager_weights("bert", [*before, *tokens, *after]))
    assert patterns["position"].max() == 42


def test_rows_of_padding_have_no_pattern() -> None:
    ids = list(range(3, 26))
    mask = [0] * 10 + [1] * 13
    result = scan(
        build("llama-gqa"),
        inputs={"input_ids": torch.tensor([ids]), "attention_mask": torch.tensor([mask])},
        top_n=[3],
    )
    patterns = patterns_of(result)
    assert patterns["position"].unique().to_list() == list(range(10, 23))
    assert patterns["first_key"].unique().to_list() == [10]
    check(patterns, eager_weights("llama-gqa", ids, attention_mask=torch.tensor([mask])))


def test_a_small_memory_budget_changes_nothing(tokenizer: Any, text: str) -> None:
    options: Any = {"tokenizer": tokenizer, "length": 97, "top_n": [3]}
    whole, pieces = (patterns_of(scan(build("gpt2"), text, **options, memory_budget=size)) for size in ("1GB", 40_000))
    assert pieces.equals(whole)


def test_patterns_have_at_most_64_rows_and_64_runs_of_keys(tokenizer: Any, text: str) -> None:
    patterns = patterns_of(scan(build("gpt2"), text, tokenizer=tokenizer, length=127, top_n=[3], windows=2))
    assert patterns["window"].unique().to_list() == [0]
    assert patterns.group_by("layer", "head").len()["len"].unique().to_list() == [CELLS]
    assert patterns["weights"].list.len().unique().to_list() == [CELLS]


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 1000, 4097])
def test_rows_are_spread_evenly_and_end_with_the_last(length: int) -> None:
    rows = evenly_spaced(length, CELLS)
    steps = np.diff((-1, *rows))
    assert rows[-1] == length - 1
    assert len(rows) == min(CELLS, length)
    assert steps.max() - steps.min() <= 1


def test_patterns_are_read_back_and_runs_without_them_open(tokenizer: Any, text: str, tmp_path: Path) -> None:
    result = scan(build("gpt2"), text, tokenizer=tokenizer, length=31, top_n=[3], out=tmp_path)
    assert patterns_of(attnscope.ScanResult.load(tmp_path)).equals(patterns_of(result))
    (tmp_path / "patterns.parquet").unlink()
    again = attnscope.ScanResult.load(tmp_path)
    assert again.token_weights
    assert again.token_weights.patterns is None
    again.save(tmp_path)
    assert not (tmp_path / "patterns.parquet").exists()
