"""What is measured of each head, against plain float64 computations of the same batch."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from typing import Any

import definitions
import numpy as np
import polars as pl
import pytest
import torch
from models import build
from torch import nn
from training import HEADS, ITEMS, TOKENS, WIDTH, CustomAttention, OnTokens, batches, gpt2, train

import attnscope
from attnscope.monitor.run_files import MEASURES

ALL = 10**6
N = 20
FROM_DEFINITION = [name for name in MEASURES if name != "null_random"]


def measured_once(model: nn.Module, **settings: Any) -> pl.DataFrame:
    monitor = attnscope.Monitor(model, every=1, **({"rows": ALL, "sequences": ALL} | settings))
    train(model, 1, monitor)
    assert (monitor.errors, monitor.last_error) == (0, None)
    return monitor.heads


def by_definition(rows: Iterator[tuple[Any, Any]]) -> dict[str, float]:
    """The measures of a head from the logits and vectors of its rows, one row at a time."""
    values: dict[str, list[float]] = {name: [] for name in FROM_DEFINITION}
    for logits, vectors in rows:
        weights = definitions.softmax(logits)
        found = definitions.of_row(logits, weights)
        found |= {"max_logit": max(logits), "logit_std": float(np.std(logits))}
        if len(logits) > N:
            of_set, _ = definitions.of_set(weights, vectors, N)
            found |= {name: of_set[name] for name in ("top_mass", "separability")}
        for name, of_name in values.items():
            if found.get(name) is not None:
                of_name.append(found[name])
    return {name: max(each) if name == "max_logit" else math.fsum(each) / len(each) for name, each in values.items()}


def causal_rows(query: Any, key: Any, value: Any) -> Iterator[tuple[Any, Any]]:
    """Logits and vectors of each row of each item: (items, tokens, size) arrays of one head."""
    for q, k, v in zip(query, key, value, strict=True):
        for row in range(len(q)):
            yield k[: row + 1] @ q[row] / math.sqrt(q.shape[-1]), v[: row + 1]


def assert_lines(table: pl.DataFrame, expected: dict[tuple[int, int], dict[str, float]]) -> None:
    for line in table.iter_rows(named=True):
        found = expected[line["layer"], line["head"]]
        assert {name: line[name] for name in found} == pytest.approx(found, rel=1e-4, abs=1e-6)
    assert table.height == len(expected)


def test_gpt2_agrees_with_a_dense_computation() -> None:
    inputs: list[np.ndarray[Any, Any]] = []
    twin = gpt2(dropout=0.0).double()
    for block in twin.transformer.h:
        block.attn.c_attn.register_forward_hook(lambda module, args, output: inputs.append(output.detach().numpy()))
    twin(input_ids=next(batches(1)))
    expected = {}
    for layer, projected in enumerate(inputs):
        query, key, value = np.split(projected, 3, -1)
        for head in range(HEADS):
            size = WIDTH // HEADS
            part = slice(head * size, (head + 1) * size)
            expected[layer, head] = by_definition(causal_rows(query[..., part], key[..., part], value[..., part]))
    assert_lines(measured_once(gpt2(dropout=0.0)), expected)


def test_dropout_does_not_change_what_is_measured_of_the_first_layer() -> None:
    def first_layer(dropout: float) -> pl.DataFrame:
        torch.manual_seed(5)
        model = OnTokens(CustomAttention("written out")).train()
        model.body.dropout.p = dropout
        return measured_once(model).drop("null_random")

    assert first_layer(0.0).equals(first_layer(0.6))


@pytest.mark.parametrize("family", ["gpt2", "llama-gqa", "mistral-window", "gemma2-softcap", "gpt-oss-sinks", "bert"])
def test_values_agree_with_a_scan_of_the_same_batch(family: str) -> None:
    model = build(family, "eager" if family in ("gemma2-softcap", "gpt-oss-sinks") else "sdpa")
    ids = next(batches(1))
    result = attnscope.scan(model, inputs={"input_ids": ids}, rows="all", top_n=[N], progress=False)
    keys = ["layer", "head"]
    scanned = result.rows.group_by(keys).agg(
        pl.len().cast(pl.Int32).alias("rows"), pl.col("length", "entropy_ratio", "max_weight", "participation").mean(),
        pl.col("sink_weight", "jacobian_norm", "jacobian_bound").mean(),
    )  # fmt: skip
    sets = result.topn.group_by(keys).agg(pl.col("top_mass", "separability").mean())
    scanned = scanned.join(sets, keys, how="left").sort(keys)
    model.train()
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    monitor = attnscope.Monitor(model, every=1, rows=ALL, sequences=ALL)
    model(input_ids=ids)
    monitor.step()
    assert (monitor.errors, monitor.last_error) == (0, None)
    heads = monitor.heads.select(scanned.columns)
    assert heads["rows"].equals(scanned["rows"])
    for name in scanned.columns:
        assert heads[name].is_null().equals(scanned[name].is_null())
        assert heads[name].drop_nulls().to_list() == pytest.approx(scanned[name].drop_nulls().to_list(), rel=1e-9), name


def test_padding_is_not_measured() -> None:
    model = gpt2(dropout=0.0)
    ids = next(batches(1))
    mask = torch.ones_like(ids)
    mask[0, :17] = 0
    mask[1, -3:] = 0
    monitor = attnscope.Monitor(model, every=1, rows=ALL, sequences=ALL)
    model(input_ids=ids, attention_mask=mask)
    monitor.step()
    rows = int(mask.sum())
    assert monitor.heads["rows"].to_list() == [rows] * 6
    lengths = [row + 1 for item in mask.sum(1).tolist() for row in range(item)]
    assert monitor.heads["length"].to_list() == pytest.approx([sum(lengths) / rows] * 6)


def test_sampled_rows_are_rows_of_the_batch() -> None:
    """The sums over three rows of one item, for some choice of them."""
    inputs = []
    twin = OnTokens(CustomAttention("sdpa")).double()
    model = OnTokens(CustomAttention("sdpa")).train()
    twin.load_state_dict(model.state_dict())
    twin.body.projection.register_forward_hook(lambda module, args, output: inputs.append(output.detach().numpy()))
    twin(next(batches(1)))
    query, key, value = np.split(inputs[0].reshape(ITEMS, TOKENS, 3 * HEADS, -1), 3, 2)
    table = measured_once(model, rows=1, sequences=1)
    assert table["rows"].to_list() == [1] * HEADS
    for head in range(HEADS):
        rows = list(causal_rows(query[:, :, head], key[:, :, head], value[:, :, head]))
        found = [float(np.std(logits)) for logits, _ in rows if len(logits) == table["length"][head]]
        assert len(found) == ITEMS
        assert min(abs(each - table["logit_std"][head]) for each in found) < 1e-6


def test_the_random_null_is_that_of_random_sets() -> None:
    """Means over all rows of all items lie within the noise of many draws by the definition."""
    torch.manual_seed(5)
    model = OnTokens(CustomAttention("sdpa")).train()
    with torch.no_grad():
        model.embedding.weight.mul_(3)
    inputs = []
    model.body.projection.register_forward_hook(lambda module, args, output: inputs.append(output.detach().double()))
    table = measured_once(model)
    query, key, value = np.split(inputs[0].numpy().reshape(ITEMS, TOKENS, 3 * HEADS, -1), 3, 2)
    draw = np.random.default_rng(0)
    for head in range(HEADS):
        means = []
        for logits, vectors in causal_rows(query[:, :, head], key[:, :, head], value[:, :, head]):
            if len(logits) <= N:
                continue
            y = definitions.softmax(logits)[:, None] * vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
            for _ in range(20):
                chosen = np.isin(np.arange(len(y)), draw.permutation(len(y))[:N])
                far = np.linalg.norm(y - y[chosen].sum(0), axis=1)
                means.append((far[chosen] < far[~chosen].min()).mean())
        assert table["null_random"][head] == pytest.approx(np.mean(means), abs=0.06)
        assert table["separability"][head] > table["null_random"][head]


def with_learned_normalizers() -> tuple[pl.DataFrame, pl.DataFrame, list[float]]:
    """Parameters and heads of two steps, and the parameters after them."""
    model = gpt2(dropout=0.0)
    with attnscope.swap(model, attnscope.normalizers.LearnedSSMax, layers=[1]):
        monitor = attnscope.Monitor(model, every=1)
        train(model, 2, monitor)
        rule = next(part for part in model.modules() if isinstance(part, attnscope.normalizers.LearnedSSMax))
    return monitor.parameters, monitor.heads, rule.s.detach().tolist()


def test_parameters_of_learned_normalizers_are_watched() -> None:
    parameters, heads, last = with_learned_normalizers()
    gc.collect()  # the registry stays wrapped as long as a swapped layer is known to someone
    assert parameters["layer"].unique().to_list() == [1]
    assert parameters.filter(step=1)["value"].to_list() == pytest.approx([0.43] * HEADS)
    after_one = parameters.filter(step=2)["value"].to_list()
    assert after_one != pytest.approx([0.43] * HEADS, rel=1e-6)
    assert last != pytest.approx(after_one, rel=1e-6)  # of the forward, before the second update
    assert heads.filter(layer=1)["jacobian_norm"].null_count() == 0


def test_a_number_that_is_not_finite_leaves_its_head_out() -> None:
    """Fault 11."""
    model = gpt2(dropout=0.0)
    with torch.no_grad():
        model.transformer.h[1].attn.c_attn.bias[WIDTH + 2 * WIDTH // HEADS] = math.nan  # a key of head 2
    whole = measured_once(gpt2(dropout=0.0))
    monitor = attnscope.Monitor(model, every=1, rows=ALL, sequences=ALL)
    model(input_ids=next(batches(1)))
    monitor.step()
    table = monitor.heads
    broken = (pl.col("layer") == 1) & (pl.col("head") == 2)
    assert table.filter(broken).select(MEASURES).row(0) == (None,) * len(MEASURES)
    assert table.filter(~broken).equals(whole.filter(~broken))
    assert monitor.errors == 0
    assert [(line["layer"], line["head"], line["kind"]) for line in monitor.alarms.to_dicts()] == [(1, 2, "not-finite")]


def test_logits_of_a_bfloat16_model_are_those_of_its_own_queries_and_keys() -> None:
    model = OnTokens(CustomAttention("sdpa")).train().bfloat16()
    inputs = []
    model.body.projection.register_forward_hook(lambda module, args, output: inputs.append(output.detach().double()))
    table = measured_once(model)
    query, key, value = np.split(inputs[0].numpy().reshape(ITEMS, TOKENS, 3 * HEADS, -1), 3, 2)
    expected = {
        (0, head): by_definition(causal_rows(query[:, :, head], key[:, :, head], value[:, :, head]))
        for head in range(HEADS)
    }
    assert_lines(table, expected)


class BiasedAttention(nn.Module):
    """Attention with a small bias that is passed as a mask, as for relative positions."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = x.unflatten(-1, (HEADS, -1)).transpose(1, 2)
        bias = torch.linspace(-0.3, 0, TOKENS).expand(TOKENS, TOKENS)
        mixed = nn.functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=bias)
        return x + mixed.transpose(1, 2).flatten(2)


def test_a_bias_that_is_passed_as_a_mask_is_no_limit_of_the_logits() -> None:
    model = OnTokens(BiasedAttention())
    monitor = attnscope.Monitor(model, every=1)
    train(model, 1, monitor)
    assert monitor.heads["max_logit"].min() > 0.3
    assert monitor.alarms.is_empty()
