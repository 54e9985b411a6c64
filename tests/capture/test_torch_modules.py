"""PyTorch's own attention, and modules of one's own: seen as it is computed, and not changed by a bit."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import attnscope
from attnscope.capture.attention import AttentionCall
from attnscope.capture.forward import run
from attnscope.errors import InputError, ModelError

BATCH, TOKENS, HEADS, WIDTH = 3, 11, 5, 35


def softmax(call: Any, item: int = 0) -> torch.Tensor:
    rows = range(call.queries)
    logits = call.logits(rows, item).masked_fill(~call.visible(rows, item), -torch.inf)
    return torch.softmax(logits, -1).nan_to_num(0)


def states(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def seen(module: nn.Module, inputs: Any) -> tuple[Any, list[Any]]:
    calls: list[Any] = []
    return run(module, inputs, calls.append), calls


@pytest.mark.parametrize("batch_first", [True, False], ids=["batch-first", "tokens-first"])
@pytest.mark.parametrize("masked", ["none", "causal", "padding", "both", "additive"])
def test_multihead_attention_gives_its_own_weights(batch_first: bool, masked: str) -> None:
    torch.manual_seed(1)
    module = nn.MultiheadAttention(WIDTH, HEADS, batch_first=batch_first).eval()
    x = states(BATCH, TOKENS, WIDTH) if batch_first else states(TOKENS, BATCH, WIDTH)
    later = torch.triu(torch.ones(TOKENS, TOKENS, dtype=torch.bool), 1)
    padding = torch.zeros(BATCH, TOKENS, dtype=torch.bool)
    padding[1, 7:] = True
    options: dict[str, Any] = {"need_weights": False}
    if masked in ("causal", "both"):
        options["attn_mask"] = later
    if masked in ("padding", "both"):
        options["key_padding_mask"] = padding
    if masked == "additive":
        options["attn_mask"] = states(BATCH * HEADS, TOKENS, TOKENS, seed=3)
    with torch.no_grad():
        alone = module(x, x, x, **options)[0]
        own = module(x, x, x, **(options | {"need_weights": True, "average_attn_weights": False}))[1]
    output, calls = seen(module, {"query": x, "key": x, "value": x, **options})
    assert torch.equal(output[0], alone)
    assert len(calls) == 1
    for item in range(BATCH):
        rows = 7 if "key_padding_mask" in options and item == 1 else TOKENS  # padded queries are dropped
        torch.testing.assert_close(
            softmax(calls[0], item)[:, :rows], own[item, :, :rows].double(), rtol=1e-5, atol=1e-6
        )
        assert (softmax(calls[0], item)[:, rows:] == 0).all()


def test_multihead_attention_across_two_sequences_with_sizes_of_their_own_and_added_keys() -> None:
    torch.manual_seed(2)
    module = nn.MultiheadAttention(
        WIDTH, HEADS, kdim=13, vdim=17, add_bias_kv=True, add_zero_attn=True, batch_first=True
    ).eval()
    query, key, value = states(1, 4, WIDTH), states(1, 7, 13, seed=1), states(1, 7, 17, seed=2)
    with torch.no_grad():
        own = module(query, key, value, average_attn_weights=False)[1]
    _, calls = seen(module, (query, key, value))
    assert calls[0].cross
    torch.testing.assert_close(softmax(calls[0]), own[0].double(), rtol=1e-5, atol=1e-6)


def encoder(norm_first: bool = False, batch_first: bool = True) -> nn.TransformerEncoder:
    torch.manual_seed(3)
    layer = nn.TransformerEncoderLayer(36, 4, 19, norm_first=norm_first, batch_first=batch_first)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.TransformerEncoder(layer, 2).eval()


@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
def test_the_fast_path_of_an_encoder_is_kept_and_seen(norm_first: bool, padded: bool) -> None:
    """The kernels of the fast path round differently from the slow one: bit-identity shows that it ran."""
    module = encoder(norm_first)
    x = states(BATCH, TOKENS, 36)
    padding = torch.zeros(BATCH, TOKENS, dtype=torch.bool)
    padding[1, 6:] = True
    inputs = {"src": x, "src_key_padding_mask": padding if padded else None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested tensors are a prototype
        with torch.no_grad():
            alone = module(**inputs)
        output, calls = seen(module, inputs)
    assert torch.equal(output, alone)
    assert [call.module for call in calls] == [layer.self_attn for layer in module.layers]
    first = module.layers[0]
    h = first.norm1(x) if norm_first else x
    with torch.no_grad():
        own = first.self_attn(h, h, h, padding if padded else None, average_attn_weights=False)[1]
    for item, rows in enumerate((TOKENS, 6 if padded else TOKENS, TOKENS)):
        torch.testing.assert_close(
            softmax(calls[0], item)[:, :rows, :rows], own[item, :, :rows, :rows].double(), rtol=1e-4, atol=1e-6
        )


def test_forward_methods_are_put_back() -> None:
    before = (nn.MultiheadAttention.forward, nn.TransformerEncoderLayer.forward, nn.TransformerEncoder.forward)
    module = encoder()

    def fail(call: Any) -> None:
        raise KeyError("on purpose")

    with pytest.raises(KeyError, match="on purpose"):
        run(module, states(1, 5, 36), fail)
    assert before == (nn.MultiheadAttention.forward, nn.TransformerEncoderLayer.forward, nn.TransformerEncoder.forward)


class Written(nn.Module):
    """Attention as people write it by hand."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        torch.manual_seed(4)
        self.project = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.project(x).chunk(3, -1))
        if self.way == "kernel":
            return functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        if self.way == "record":
            attnscope.capture.record(query, key, value, causal=True)
            return functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        scores = query @ key.mT / query.shape[-1] ** 0.5
        later = torch.triu(torch.ones_like(scores, dtype=torch.bool), 1)
        weights = torch.softmax(scores.masked_fill(later, -torch.inf), -1)
        if self.way == "einsum":
            return torch.einsum("bhqk,bhkd->bhqd", weights, value)
        if self.way == "keywords":
            torch.matmul(input=query, other=key.mT)  # another product in between
            return torch.matmul(other=value, input=weights)
        if self.way == "changed":
            weights = weights * torch.rand_like(weights)
        return weights @ value


@pytest.mark.parametrize("way", ["kernel", "softmax", "einsum", "keywords", "record"])
def test_attention_of_ones_own_is_seen_once(way: str) -> None:
    module, x = Written(way), states(BATCH, TOKENS, WIDTH)
    with torch.no_grad():
        alone = module(x)
    output, calls = seen(module, x)
    assert torch.equal(output, alone)
    assert [call.module for call in calls] == [module]
    query, key, _ = (
        part.unflatten(-1, (HEADS, -1)).transpose(1, 2).double().detach() for part in module.project(x).chunk(3, -1)
    )
    for item in range(BATCH):
        for row in range(TOKENS):  # the definition, row by row
            logits = (query[item, :, row, None] * key[item, :, : row + 1]).sum(-1) / 7**0.5
            expected = logits.exp() / logits.exp().sum(-1, keepdim=True)
            torch.testing.assert_close(softmax(calls[0], item)[:, row, : row + 1], expected, rtol=1e-4, atol=1e-6)


def test_weights_changed_behind_the_softmax_are_refused() -> None:
    with pytest.raises(ModelError, match="Written"):
        run(Written("changed"), states(1, TOKENS, WIDTH), lambda call: None)


def test_a_module_without_attention_is_told_of_record() -> None:
    with pytest.raises(ModelError, match=r"capture\.record"):
        run(nn.Linear(3, 2), states(1, 3), lambda call: None)


def test_record_is_idle_outside_a_scan_and_checks_shapes_inside() -> None:
    wrong = states(2, 3)
    attnscope.capture.record(wrong, wrong, wrong)

    class Wrong(nn.Module):
        def forward(self, x: torch.Tensor) -> None:
            attnscope.capture.record(x, x, x)

    with pytest.raises(InputError, match=r"\(2, 3\)"):
        run(Wrong(), wrong, lambda call: None)


class Recorded(nn.Module):
    """Says what it is told to."""

    def __init__(self, mask: torch.Tensor | None = None, **options: Any) -> None:
        super().__init__()
        self.mask, self.options = mask, options

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        attnscope.capture.record(x, x, x, self.mask, **self.options)
        return x


@pytest.mark.parametrize("shape", [(9, 9), (7, 9), (9, 7), (5, 1, 7, 7), (3, 7, 7), (1, 1, 1, 7, 7)])
@pytest.mark.parametrize("name", ["mask", "bias"])
def test_record_refuses_masks_and_biases_that_do_not_broadcast(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=rf"{name} that broadcasts to \(2, 4, 7, 7\)"):
        run(Recorded(**{name: torch.zeros(shape)}), states(2, 4, 7, 6), lambda call: None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask": torch.ones(7, 7, dtype=torch.int64)}, "boolean or float mask"),
        ({"bias": torch.ones(7, 7, dtype=torch.bool)}, "float bias"),
        ({"softcap": 0.0}, "softcap above zero"),
    ],
)
def test_record_refuses_what_is_no_mask_bias_or_softcap(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(Recorded(**options), states(2, 4, 7, 6), lambda call: None)


@pytest.mark.parametrize("hidden", [-math.inf, -1e9, -3e38])
def test_record_broadcasts_masks_and_hides_what_is_far_below_zero(hidden: float) -> None:
    x = states(2, 4, 7, 6)
    queries = torch.tensor([0.0, 0.0, hidden, 0.0, 0.0, 0.0, 0.0])[:, None]  # of all keys
    for mask in (queries, queries == 0):
        _, calls = seen(Recorded(mask), x)
        assert calls[0].visible(range(7)).sum(-1)[0].tolist() == [7, 7, 0, 7, 7, 7, 7]
    later = torch.zeros(7, 7).masked_fill(torch.ones(7, 7, dtype=torch.bool).triu(1), hidden)
    _, calls = seen(Recorded(later), x)
    assert calls[0].visible(range(7)).sum(-1)[0].tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert calls[0].logits([2])[0, 0].abs().max() < 100


def test_a_batch_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="a batch of size 0"):
        attnscope.scan(Recorded(), inputs=torch.zeros(0, 4, 7, 6))


def test_inputs_may_be_a_function() -> None:
    module, x = Written("kernel"), states(1, TOKENS, WIDTH)
    _, calls = seen(module, lambda: module(x))
    assert isinstance(calls[0], AttentionCall)


def test_a_model_without_weights_is_refused() -> None:
    """Fault 10."""
    with torch.device("meta"):
        module = nn.MultiheadAttention(8, 2)
    with pytest.raises(ModelError, match="meta"):
        run(module, states(1, 3, 8), lambda call: None)
