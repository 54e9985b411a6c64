"""Which rows are measured, what-ifs on the same logits, and blocks of rows: each against the plain way."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import numpy as np
import oracle
import polars as pl
import pytest
import torch
from models import build, byte_tokenizer
from polars.testing import assert_frame_equal

from attnscope.capture.huggingface import observed
from attnscope.errors import InputError
from attnscope.measure.settings import memory_size, plan
from attnscope.normalizers import Softmax, entmax, parse
from attnscope.scanning import scan
from attnscope.store import tables
from attnscope.swapping import swap

TOP_N = [1, 4]


def test_some_rows_are_spread_evenly_and_end_with_the_last() -> None:
    settings = plan(1024, length=100, rows=7)
    positions = settings.positions(100)
    assert len(positions) == 7
    assert positions[-1] == 99
    steps = np.diff([-1, *positions])
    assert steps.max() - steps.min() <= 1
    assert plan(1024, length=100, rows="all").positions(100) == tuple(range(100))
    assert plan(1024, length=5, rows=64).positions(5) == (0, 1, 2, 3, 4)


def test_all_rows_hold_the_last_rows_of_every_length(tokenizer: Any, text: str) -> None:
    """Fault 4."""
    model = build("llama-gqa")
    every = scan(model, text, tokenizer=tokenizer, length=43, rows="all", top_n=TOP_N, bounds="paper")
    last = scan(model, text, tokenizer=tokenizer, length=43, lengths=[2, 17, 43], top_n=TOP_N, bounds="paper")
    assert every.rows.group_by("layer", "head").len()["len"].unique().to_list() == [43]
    some = pl.col("length").is_in([2, 17, 43])
    assert_frame_equal(every.rows.filter(some), last.rows, rel_tol=1e-12)
    assert_frame_equal(every.topn.filter(some), last.topn, rel_tol=1e-12)
    first = every.rows.filter(length=1)
    assert first["entropy_ratio"].is_null().all()  # ln 1 = 0
    assert (first["max_weight"] == 1).all()
    assert every.topn.filter(length=1).is_empty()  # no N is below one


def test_the_block_size_changes_nothing(tokenizer: Any, text: str) -> None:
    """Faults 6 and 15."""
    model = build("mistral-window")
    whole = scan(model, text, tokenizer=tokenizer, length=41, rows="all", top_n=TOP_N, bounds="paper")
    tight = scan(model, text, tokenizer=tokenizer, length=41, rows="all", top_n=TOP_N, bounds="paper", memory_budget=1)
    assert_frame_equal(whole.rows, tight.rows, rel_tol=1e-12)
    assert_frame_equal(whole.topn, tight.topn, rel_tol=1e-12)


def test_an_encoder_gives_rows_of_each_length(text: str) -> None:
    model = build("bert")
    tokenizer = byte_tokenizer(special=True)
    result = scan(model, text, tokenizer=tokenizer, lengths=[11, 17], rows=3, top_n=[3])
    found = result.rows.filter(layer=0, head=0).select("length", "position").rows()
    assert sorted(found) == [(11, 3), (11, 7), (11, 10), (17, 5), (17, 11), (17, 16)]


def test_what_ifs_share_one_forward_and_the_logits_of_the_model(tokenizer: Any, text: str) -> None:
    model = build("llama-gqa")
    forwards: list[int] = []
    handle = model.model.register_forward_pre_hook(lambda *_: forwards.append(1))
    result = scan(
        model,
        text,
        tokenizer=tokenizer,
        length=29,
        lengths=[13, 29],
        top_n=TOP_N,
        bounds="paper",
        normalizers=["entmax:alpha=1.3", "sparsemax"],
        temperatures=[0.5],
    )
    handle.remove()
    assert len(forwards) == 1
    labels = ["entmax:alpha=1.3", "own", "sparsemax"]
    assert result.rows["normalizer"].unique().sort().to_list() == sorted(
        [*labels, *(f"{label}:temperature=0.5" for label in labels)]
    )
    plain = scan(model, text, tokenizer=tokenizer, length=29, lengths=[13, 29], top_n=TOP_N, bounds="paper")
    assert_frame_equal(result.rows.filter(normalizer=tables.OWN), plain.rows)
    assert_frame_equal(result.topn.filter(normalizer=tables.OWN), plain.topn)


def test_what_if_columns_agree_with_the_oracle_on_weights_made_by_hand(tokenizer: Any, text: str) -> None:
    model = build("gpt2")
    calls: list[tuple[np.ndarray, np.ndarray]] = []
    ids = torch.tensor([tokenizer(text)["input_ids"][:23]])
    with torch.no_grad(), observed(model, lambda call: calls.append((call.logits([22]), call.value[0].double()))):
        model(input_ids=ids)
    options: Any = {"length": 23, "lengths": [23], "top_n": [4], "bounds": "paper"}
    result = scan(model, text, tokenizer=tokenizer, normalizers=["entmax:alpha=1.3"], **options)
    lines = result.topn.filter(normalizer="entmax:alpha=1.3")
    assert lines.height == 15
    for line in lines.iter_rows(named=True):
        logits, values = calls[line["layer"]]
        weights = entmax(logits[line["head"], 0], alpha=1.3).numpy()
        for name, value in oracle.topn_columns(weights, values[line["head"]].numpy(), 4).items():
            assert line[name] == pytest.approx(value, rel=1e-6, abs=1e-9), name


@pytest.mark.parametrize(
    "spec", ["sigmoid", "sigmoid:temperature=0.2", "softmax1", "sparsemax", "softmax:temperature=0.1"]
)
def test_columns_of_rows_are_those_of_the_weights_whatever_they_sum_to(spec: str, tokenizer: Any, text: str) -> None:
    model = build("gpt2")
    rows = scan(model, text, tokenizer=tokenizer, length=29, rows="all", top_n=[4], normalizers=[spec]).rows
    calls: list[torch.Tensor] = []
    with torch.no_grad(), observed(model, lambda call: calls.append(call.logits(list(range(29))))):
        model(input_ids=torch.tensor([tokenizer(text)["input_ids"][:29]]))
    for line in rows.filter(normalizer=spec).iter_rows(named=True):
        position = line["position"]
        weights = parse(spec).weights(calls[line["layer"]][line["head"], position, : position + 1]).numpy()
        positive = weights[weights > 0]
        entropy = -math.fsum(positive * np.log(positive))
        assert line["entropy"] == pytest.approx(entropy, rel=1e-9, abs=1e-12)
        if position:
            assert line["entropy_ratio"] == pytest.approx(entropy / math.log(position + 1), rel=1e-9, abs=1e-12)
        assert line["weight_sum"] == pytest.approx(math.fsum(weights), rel=1e-12)
        assert line["participation"] == pytest.approx(1 / math.fsum(weights**2), rel=1e-12)
        assert line["max_weight"] == pytest.approx(weights.max(), rel=1e-12)
        assert line["support"] == len(positive)


@pytest.mark.parametrize("swapped", [False, True])
def test_rows_with_weights_below_zero_have_sets_without_values(swapped: bool, tokenizer: Any, text: str) -> None:
    model = build("gpt2")
    calls: list[torch.Tensor] = []
    with torch.no_grad(), observed(model, lambda call: calls.append(call.logits(list(range(9))))):
        model(input_ids=torch.tensor([tokenizer(text)["input_ids"][:9]]))
    spec, what_ifs = ("own", []) if swapped else ("sa_softmax_raw", ["sa_softmax_raw"])
    with swap(model, "sa_softmax_raw", layers=[0]) if swapped else nullcontext():
        result = scan(
            model, text, tokenizer=tokenizer, length=9, rows="all", top_n=[1], normalizers=what_ifs, bounds="paper"
        )
    lines = result.topn.filter(normalizer=spec, layer=0)
    measures = lines.select(pl.exclude("window", "layer", "head", "position", "length", "n", "normalizer"))
    missing = measures.select(pl.all().is_null() | pl.all().is_nan()).to_numpy()
    keys = lines.select("head", "position").iter_rows()
    negative = [bool((calls[0][head, position, : position + 1] < 0).any()) for head, position in keys]
    assert set(negative) == {True, False}
    np.testing.assert_array_equal(missing, np.repeat(np.array(negative)[:, None], missing.shape[1], 1))


@pytest.mark.parametrize("spec", ["softmax:temperature=0.7", "sparsemax", "entmax:alpha=1.4", "ssmax:s=0.6"])
def test_a_what_ifs_jacobian_norm_is_that_of_its_own_derivative(spec: str, tokenizer: Any, text: str) -> None:
    model = build("gpt2")
    result = scan(model, text, tokenizer=tokenizer, length=19, lengths=[19], top_n=[4], normalizers=[spec])
    calls: list[torch.Tensor] = []
    with torch.no_grad(), observed(model, lambda call: calls.append(call.logits([18]))):
        model(input_ids=torch.tensor([tokenizer(text)["input_ids"][:19]]))
    normalizer = parse(spec)
    for line in result.rows.filter(normalizer=spec, head=2).iter_rows(named=True):
        jacobian = torch.autograd.functional.jacobian(normalizer.weights, calls[line["layer"]][2, 0])
        assert line["jacobian_norm"] == pytest.approx(np.linalg.norm(jacobian.numpy(), 2), rel=1e-6, abs=1e-9)
        assert line["jacobian_bound"] >= line["jacobian_norm"] - 1e-9


def test_a_temperature_divides_the_sink_too(tokenizer: Any, text: str) -> None:
    model = build("gpt-oss-sinks", "eager")
    result = scan(model, text, tokenizer=tokenizer, length=13, lengths=[9], top_n=[2], temperatures=[2.0])
    calls: list[tuple[torch.Tensor, torch.Tensor]] = []
    with torch.no_grad(), observed(model, lambda call: calls.append((call.logits([8]), call.sinks))):
        model(input_ids=torch.tensor([tokenizer(text)["input_ids"][:13]]))
    for line in result.rows.filter(normalizer="own:temperature=2", layer=0).iter_rows(named=True):
        logits, sinks = calls[0]
        scores = torch.cat([logits[line["head"], 0, :9], sinks[line["head"], None]]) / 2
        assert line["weight_sum"] == pytest.approx(1 - scores.softmax(-1)[-1].item(), rel=1e-9)


def test_normalizer_objects_are_taken_as_they_are(tokenizer: Any, text: str) -> None:
    model = build("gpt2")
    result = scan(
        model,
        text,
        tokenizer=tokenizer,
        length=13,
        top_n=[2],
        normalizers=[Softmax(temperature=0.5), Softmax(temperature=2.0)],
    )
    assert result.rows["normalizer"].unique().sort().to_list() == ["own", "softmax", "softmax#2"]


def test_temperatures_that_differ_by_little_keep_their_names(tokenizer: Any, text: str) -> None:
    result = scan(build("gpt2"), text, tokenizer=tokenizer, length=13, top_n=[2], temperatures=[0.5, 0.5000001])
    labels = ["own", "own:temperature=0.5", "own:temperature=0.5000001"]
    assert result.rows["normalizer"].unique().sort().to_list() == labels


def test_a_size_of_memory_is_read() -> None:
    assert memory_size("9" * 400 + "TB") >= 2**60
    assert [memory_size(text) for text in ("512MB", "2 GB", "1.5g", "10kb", "77", 5)] == [
        512 * 2**20,
        2 * 2**30,
        3 * 2**29,
        10 * 2**10,
        77,
        5,
    ]


@pytest.mark.parametrize("spec", ["ssmax:temperature=warm", "ssmax:temperature=-1", "sparsemax:temperature=0"])
def test_a_temperature_that_is_none_is_refused(spec: str) -> None:
    with pytest.raises(InputError, match="temperature"):
        parse(spec)


def test_out_of_memory_halves_the_block_then_leaves_the_layer_out(
    tokenizer: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 16."""
    from attnscope.scanning.measuring import ScanMeasurer

    model = build("gpt2")
    sizes: list[int] = []
    measure = ScanMeasurer._block

    def with_little_memory(self: Any, window: Any, rows: Any, *rest: Any) -> None:
        sizes.append(len(rows.positions))
        if len(rows.positions) > 3 or rows.layer == 1:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")
        measure(self, window, rows, *rest)

    plain = scan(model, text, tokenizer=tokenizer, length=17, rows="all", top_n=TOP_N, bounds="paper")
    monkeypatch.setattr(ScanMeasurer, "_block", with_little_memory)
    result = scan(model, text, tokenizer=tokenizer, length=17, rows="all", top_n=TOP_N, bounds="paper")
    assert sizes[:4] == [17, 8, 4, 2]
    assert {(head["layer"], head["reason"]) for head in result.skipped_heads} == {
        (1, "out of memory on a single row of 17 keys")
    }
    assert_frame_equal(result.topn, plain.topn.filter(pl.col("layer") != 1), rel_tol=1e-12)
