"""States: heads built to be of each, and the errors of real rows against plain loops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from models import build, byte_tokenizer

from attnscope.diagnosis.heads import label
from attnscope.diagnosis.observing import HeadOutputs, WindowRows, row_measures, shorter_lengths, state_rows
from attnscope.diagnosis.running import diagnose
from attnscope.diagnosis.states import STATES, Thresholds
from attnscope.measure.specification import Rows, softmax_weights

KEYS, DIMS = 211, 23
ROWS = tuple(range(107, 211, 4))


def rows_of(logits: torch.Tensor, values: torch.Tensor) -> WindowRows:
    """One head with these logits (queries, keys) and causal visibility."""
    visible = torch.arange(KEYS) <= torch.tensor(ROWS)[:, None]
    rows = Rows(0, ROWS, logits[list(ROWS)][None], visible[None], values[None])
    outputs = HeadOutputs.of(softmax_weights(rows), values[None])
    columns = row_measures(rows, outputs, Thresholds(), torch.Generator().manual_seed(0), nulls=True)
    window = WindowRows()
    window.rows[0, 0] = {name: value[0].double().numpy() for name, value in columns.items()}
    window.contexts[0, 0] = outputs.context[0].float().numpy()
    return window


def constructed(state: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and values of a head that is of the state by construction."""
    generator = torch.Generator().manual_seed(5)
    values = torch.randn(KEYS, DIMS, generator=generator, dtype=torch.float64)
    logits = torch.zeros(KEYS, KEYS, dtype=torch.float64)
    places = torch.arange(KEYS)
    if state == "sink-bound":
        logits[:, 0] = 12
    elif state == "constant":
        values = torch.ones(DIMS, dtype=torch.float64) + values  # averages over many keys lie near the common part
        logits[:, 0] = -30
    elif state == "local":
        near = (places[:, None] - places).abs()
        logits = -0.7 * near.double()
    elif state == "broad":
        logits = (
            torch.rand(KEYS, KEYS, generator=generator) < 0.3
        ).double() * 5  # another third of the keys in each row
    elif state == "selective":
        chosen = torch.randint(1, 90, (KEYS, 3), generator=generator)
        logits.scatter_(1, chosen, 9.0)
    return logits, values


@pytest.mark.parametrize("state", STATES)
def test_a_head_built_to_be_of_a_state_gets_it(state: str) -> None:
    found = label([rows_of(*constructed(state))], (0, 0), Thresholds())
    assert found.state == state
    assert found.state_share > 0.9
    assert found.off_share == (1.0 if state == "sink-bound" else 0.0)


def test_weight_on_the_first_key_alone_does_not_make_a_head_sink_bound() -> None:
    logits, values = constructed("sink-bound")
    values[0] = 0  # nearly all weight on a key without value: the rest decides the output
    found = label([rows_of(logits, values)], (0, 0), Thresholds())
    assert found.off_share == 1.0
    assert found.state != "sink-bound"


def test_limits_move_labels() -> None:
    window = rows_of(*constructed("local"))
    error = float(label([window], (0, 0), Thresholds()).errors["local"])
    assert label([window], (0, 0), Thresholds(local=error * 0.99)).state != "local"
    assert label([window], (0, 0), Thresholds(local=error * 1.01)).state == "local"


def test_a_head_at_a_limit_is_unsure_and_names_the_other_side() -> None:
    window = rows_of(*constructed("local"))
    error = float(label([window], (0, 0), Thresholds()).errors["local"])
    at_the_limit = label([window], (0, 0), Thresholds(local=error * 1.001))
    assert at_the_limit.state == "local"
    assert 0.2 < at_the_limit.sureness < 0.8
    assert not at_the_limit.sure
    assert at_the_limit.edge == "selective"
    far = label([window], (0, 0), Thresholds(local=error * 3))
    assert (far.sureness, far.edge) == (1.0, None)


def plain_errors(weights: np.ndarray, values: np.ndarray, position: int, near: int) -> dict[str, float]:
    """The errors of one row, from the definitions, over its visible keys."""
    count = len(weights)

    def output(kept: list[int]) -> np.ndarray:
        total = sum(weights[i] for i in kept)
        return sum((weights[i] / total) * values[i] for i in kept)

    own = sum(weights[i] * values[i] for i in range(count))
    nearest = sorted(range(count), key=lambda i: (abs(i - position), i))[:near]
    top = sorted(range(count), key=lambda i: -weights[i])[: math.ceil(0.05 * count)]
    norm = math.sqrt(float(own @ own))
    distance = {
        "first_key": own - values[0],
        "local": own - output(sorted({0, *nearest})),
        "top_share": own - output(top),
    }
    return {name: math.sqrt(float(d @ d)) / norm for name, d in distance.items()} | {"own": own}  # type: ignore[dict-item]


def eager(model: Any, ids: list[int], values_of: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    """Weights (heads, rows, keys) and values (heads, keys, dims) of each layer from the model's own eager attention."""
    model.set_attn_implementation("eager")
    values: list[torch.Tensor] = []
    hooks = values_of(model, values)
    with torch.no_grad():
        attentions = model(input_ids=torch.tensor([ids]), output_attentions=True).attentions
    for hook in hooks:
        hook.remove()
    return [(w[0].double().numpy(), v.double().numpy()) for w, v in zip(attentions, values, strict=True)]


def gpt2_values(model: Any, store: list[torch.Tensor]) -> list[Any]:
    def keep(module: Any, args: Any, output: torch.Tensor) -> None:
        store.append(output[0].split(35, -1)[2].unflatten(-1, (5, 7)).transpose(0, 1))

    return [block.attn.c_attn.register_forward_hook(keep) for block in model.transformer.h]


def bert_values(model: Any, store: list[torch.Tensor]) -> list[Any]:
    def keep(module: Any, args: Any, output: torch.Tensor) -> None:
        store.append(output[0].unflatten(-1, (5, 7)).transpose(0, 1))

    return [layer.attention.self.value.register_forward_hook(keep) for layer in model.encoder.layer]


@pytest.mark.parametrize(("family", "hook"), [("gpt2", gpt2_values), ("bert", bert_values)])
def test_errors_of_a_model_agree_with_plain_loops(family: str, hook: Any, text: str) -> None:
    model, tokenizer = build(family), byte_tokenizer(special=family == "bert")
    found = diagnose(model, text, tokenizer=tokenizer, length=53, windows=2, rows=11)
    plain = byte_tokenizer()(text)["input_ids"]
    size = 53 if family == "gpt2" else 51
    starts = [int((i + 0.5) * len(plain) / 2 - size / 2) for i in range(2)]
    inputs = [plain[s : s + size] if family == "gpt2" else [256, *plain[s : s + size], 256] for s in starts]
    layers = [eager(model, ids, hook) for ids in inputs]
    positions = state_rows(53, 11, causal=family == "gpt2")
    for head in found["heads"]:
        rows = [
            plain_errors(
                layers[window][head["layer"]][0][head["head"], p][: p + 1 if family == "gpt2" else 53],
                layers[window][head["layer"]][1][head["head"]],
                p,
                8,
            )
            for window in range(2)
            for p in positions
        ]
        for name in ("first_key", "local", "top_share"):
            expected = np.mean([row[name] for row in rows])
            assert head["evidence"][f"error_{name}"] == pytest.approx(expected, rel=2e-3), (head["layer"], name)
        mean = np.mean([row["own"] for row in rows], axis=0)
        expected = np.mean([np.linalg.norm(row["own"] - mean) / np.linalg.norm(row["own"]) for row in rows])
        assert head["evidence"]["error_mean_output"] == pytest.approx(expected, rel=2e-3)


def test_rows_of_the_states_lie_in_the_second_half() -> None:
    rows = state_rows(1024, 64, causal=True)
    assert (len(rows), rows[0], rows[-1]) == (64, 519, 1023)
    assert state_rows(512, 4, causal=False) == (127, 255, 383, 511)
    assert state_rows(10, 64, causal=True) == (5, 6, 7, 8, 9)
    lengths = shorter_lengths(1024)
    assert (lengths[0], lengths[-1], len(lengths)) == (16, 512, 16)
    assert shorter_lengths(20) == ()
