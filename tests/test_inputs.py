"""Any module on tensors: the tables against projections and a softmax written out by hand, row by row."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from models import build
from torch import nn

import attnscope
from attnscope.errors import InputError, ModelError
from attnscope.scanning import ScanResult, scan
from attnscope.store import tables

BATCH, TOKENS, HEADS, SIZE = 3, 11, 2, 5
WIDTH = HEADS * SIZE
TOP_N = (1, 4)

Row = tuple[np.ndarray, np.ndarray]  # logits of the visible keys, and their vectors


def states(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def attention(seed: int = 1) -> nn.MultiheadAttention:
    torch.manual_seed(seed)
    module = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=torch.float64).eval()
    nn.init.normal_(module.in_proj_bias)
    return module


def projected(module: nn.MultiheadAttention, x: torch.Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Queries, keys and values of one item as (tokens, heads, size), by the module's matrices."""
    weight, bias = module.in_proj_weight.detach().numpy(), module.in_proj_bias.detach().numpy()
    everything = x.numpy() @ weight.T + bias
    query, key, value = (part.reshape(-1, HEADS, SIZE) for part in np.split(everything, 3, axis=1))
    return query, key, value


def row_of(query: np.ndarray, key: np.ndarray, value: np.ndarray, head: int, row: int, seen: list[int]) -> Row:
    return key[seen, head] @ query[row, head] / SIZE**0.5, value[seen, head]


def check(result: ScanResult, truth: Callable[[int, int, int, int], Row]) -> None:
    """Every line of both tables against `truth(window, layer, head, position)`."""
    assert result.rows.schema == tables.ROWS
    assert result.topn.schema == tables.TOPN
    for line in result.rows.iter_rows(named=True):
        logits, _ = truth(line["window"], line["layer"], line["head"], line["position"])
        for name, value in oracle.row_columns(logits).items():
            assert line[name] == (None if value is None else pytest.approx(value, rel=1e-9, abs=1e-12)), name
    for line in result.topn.iter_rows(named=True):
        logits, vectors = truth(line["window"], line["layer"], line["head"], line["position"])
        weights = oracle.weights(logits)
        doubtful = oracle.undecided(weights, vectors, line["n"])
        for name, value in oracle.topn_columns(weights, vectors, line["n"]).items():
            if name not in doubtful:
                assert line[name] == pytest.approx(value, rel=1e-8, abs=1e-12), name


def test_multihead_attention_on_a_padded_batch() -> None:
    """Faults 1 and 2."""
    module, x = attention(), states(BATCH, TOKENS, WIDTH)
    padding = torch.zeros(BATCH, TOKENS, dtype=torch.bool)
    padding[1, 7:] = True
    padding[2, :4] = True
    real = [list(range(TOKENS)), list(range(7)), list(range(4, TOKENS))]
    result = scan(
        module,
        inputs={"query": x, "key": x, "value": x, "key_padding_mask": padding},
        rows=5,
        top_n=TOP_N,
        bounds="paper",
    )
    assert result.rows["window"].unique().to_list() == [0, 1, 2]
    for window, seen in enumerate(real):
        mine = result.rows.filter(window=window)
        assert (mine["length"] == len(seen)).all()
        assert mine["position"].unique().sort().to_list()[-1] == seen[-1]
        assert len(mine) == HEADS * 5
    assert result.run["dropped_rows"] == HEADS * 8
    assert result.run["text"]["tokens"] == sum(map(len, real))
    check(result, lambda w, _, head, row: row_of(*projected(module, x[w]), head, row, real[w]))


def test_every_layer_of_an_encoder_and_the_last_row_of_each_item() -> None:
    torch.manual_seed(5)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 13, batch_first=True, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = nn.TransformerEncoder(layer, 2)
    module.train()
    module.layers[0].dropout.eval()
    modes = [part.training for part in module.modules()]
    x = states(2, TOKENS, WIDTH)
    result = scan(module, inputs=x, top_n=TOP_N, bounds="paper")
    assert [part.training for part in module.modules()] == modes  # each part is put back as it was
    module.eval()
    with torch.no_grad():
        entering = [x, module.layers[0](x)]
    assert sorted(result.rows["layer"].unique().to_list()) == [0, 1]
    assert (result.rows["position"] == TOKENS - 1).all()
    everything = list(range(TOKENS))

    def truth(window: int, number: int, head: int, row: int) -> Row:
        own: Any = module.layers[number]
        return row_of(*projected(own.self_attn, entering[number][window]), head, row, everything)

    check(result, truth)
    names = [entry["module"] for entry in result.run["model"]["heads"]]
    assert names == ["layers.0.self_attn", "layers.1.self_attn"]


class LoopOfRows(nn.Module):
    """Attention that nobody could see from outside: its kernel is a loop over rows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.project = nn.Linear(WIDTH, 3 * WIDTH, dtype=torch.float64)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        query, key, value = (part.unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for part in self.project(x).chunk(3, -1))
        attnscope.capture.record(query, key, value, causal=True, bias=bias, scale=0.25)
        rows = []
        for row in range(x.shape[1]):
            logits = (query[:, :, row, None] * key[:, :, : row + 1]).sum(-1) / 4 + bias[:, :, row, : row + 1]
            grown = logits.exp()
            rows.append((grown[..., None] * value[:, :, : row + 1]).sum(2) / grown.sum(-1, keepdim=True))
        return torch.stack(rows, 2)


def test_a_module_that_records_and_all_rows() -> None:
    module, x, bias = LoopOfRows(), states(2, 7, WIDTH), states(2, HEADS, 7, 7, seed=9)
    with torch.no_grad():
        query, key, value = (part.numpy().reshape(2, 7, HEADS, SIZE) for part in module.project(x).chunk(3, -1))
    result = scan(module, inputs=(x, bias), rows="all", top_n=[2], bounds="paper")
    assert result.rows.height == 2 * HEADS * 7

    def truth(window: int, layer: int, head: int, row: int) -> Row:
        logits = key[window, : row + 1, head] @ query[window, row, head] / 4
        return logits + bias[window, head, row, : row + 1].numpy(), value[window, : row + 1, head]

    check(result, truth)


@pytest.mark.parametrize("vectors", ["value", "output", "hidden"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_an_item_of_a_padded_batch_is_the_item_alone(side: str, vectors: Any) -> None:
    """Faults 3 and 15."""
    model = build("llama-gqa").double()
    ids = torch.randint(2, 250, (2, 17), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    short = slice(6, None) if side == "left" else slice(0, 11)
    mask[1] = 0
    mask[1, short] = 1
    places = (mask.cumsum(-1) - 1).clamp(min=0)
    inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": places}
    both = scan(model, inputs=inputs, rows=4, top_n=[1, 3], bounds="paper", vectors=vectors)
    alone = scan(model, inputs={"input_ids": ids[1:, short]}, rows=4, top_n=[1, 3], bounds="paper", vectors=vectors)
    for table in ("rows", "topn"):
        mine = getattr(both, table).filter(window=1).drop("window", "position", "normalizer")
        expected = getattr(alone, table).drop("window", "position", "normalizer")
        assert mine.height == expected.height > 0
        np.testing.assert_allclose(mine.to_numpy(), expected.to_numpy(), rtol=1e-9, atol=1e-10)


def test_it_agrees_with_the_scan_of_a_text(tokenizer: Any, text: str) -> None:
    model = build("gpt2")
    ids = tokenizer(text)["input_ids"][:41]
    mine = scan(
        model, inputs={"input_ids": torch.tensor([ids])}, tokenizer=tokenizer, rows=7, top_n=[3], bounds="paper"
    )
    usual = scan(model, text, tokenizer=tokenizer, length=41, rows=7, top_n=[3], bounds="paper")
    assert mine.rows.equals(usual.rows)
    assert mine.topn.equals(usual.topn)
    assert mine.token_weights is not None
    assert usual.token_weights is not None
    assert mine.token_weights.tokens == usual.token_weights.tokens
    assert mine.token_weights.weights.equals(usual.token_weights.weights)


def test_it_is_saved_with_a_report(tmp_path: Path) -> None:
    x = states(2, TOKENS, WIDTH)
    result = scan(attention(), inputs=(x, x, x), rows="all", out=tmp_path / "run", normalizers=["sparsemax"])
    again = ScanResult.load(tmp_path / "run")
    assert again.rows.equals(result.rows)
    assert again.topn.equals(result.topn)
    assert again.run == result.run
    assert again.run["settings"]["windows"] == 2
    assert again.run["settings"]["length"] == TOKENS
    assert again.run["model"]["family"] == "torch"
    assert (tmp_path / "run" / "report.html").stat().st_size > 50_000
    assert not (tmp_path / "run" / ".parts").exists()


def test_a_function_may_run_the_module() -> None:
    module, x = attention(), states(1, TOKENS, WIDTH)
    given = scan(module, inputs=(x, x, x), top_n=[3], bounds="paper")
    called = scan(module, inputs=lambda: module(x, x, x), top_n=[3], bounds="paper")
    assert called.topn.equals(given.topn)
    assert called.run["text"]["sha256"] is None
    assert len(given.run["text"]["sha256"]) == 64


@pytest.mark.parametrize(
    "options",
    [{"text": "x"}, {"length": 3}, {"lengths": [3]}, {"windows": 2}, {"bos": True}, {"diagnose": True}],
    ids=lambda options: next(iter(options)),
)
def test_what_is_about_a_text_is_refused(options: dict[str, Any]) -> None:
    x = states(1, TOKENS, WIDTH)
    with pytest.raises(InputError, match=f"leave out .*{next(iter(options))}"):
        scan(attention(), inputs=(x, x, x), **options)


def test_a_module_without_inputs_is_told_of_them() -> None:
    with pytest.raises(InputError, match=r"inputs=\.\.\."):
        scan(attention(), "a text", tokenizer=object())


def test_a_module_that_does_not_attend_is_refused() -> None:
    with pytest.raises(ModelError, match=r"capture\.record"):
        scan(nn.Linear(3, 2), inputs=torch.ones(1, 3))
