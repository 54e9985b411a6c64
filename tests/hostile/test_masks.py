"""What a mask hides is the same in a scan, under a swap and in an intervention: any shape, dtype and hiding number.

The oracle is dense attention in float64 over the keys that were drawn as visible.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from families import tiny_model
from hypothesis import given, settings, strategies as st
from models import VOCABULARY, build
from torch import nn

import attnscope
from attnscope.capture.attention import AttentionCall
from attnscope.capture.forward import run
from attnscope.normalizers import SSMax
from attnscope.swapping import first_key, weights as blocks
from attnscope.swapping.weights import weight_function

BATCH, HEADS, QUERIES, KEYS, DIMS = 2, 3, 5, 7, 4
FULL = (BATCH, HEADS, QUERIES, KEYS)
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
# The last two are the dtype's most negative number and half of it.
HIDING = st.one_of(st.floats(-3e38, -1e4), st.sampled_from([-1e4, -65504.0, -1e9, -torch.inf, "lowest", "half"]))


@st.composite
def masks(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A mask of any shape that broadcasts, and in full what it hides and what it adds to visible keys."""
    drop = draw(st.integers(0, 3))
    shape = tuple(draw(st.sampled_from([1, size])) for size in FULL)[drop:]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    hidden = torch.rand(shape, generator=generator) < draw(st.sampled_from([0.0, 0.3, 0.7, 1.0]))
    dtype = draw(st.sampled_from([torch.bool, *FLOATS]))
    if dtype == torch.bool:
        return ~hidden, hidden.expand(FULL), torch.zeros(FULL, dtype=torch.float64)
    number, lowest = draw(HIDING), torch.finfo(dtype).min
    number = {"lowest": lowest, "half": lowest / 2}.get(number, number)
    bias = (torch.randn(shape, generator=generator) * draw(st.sampled_from([0.0, 3.0]))).to(dtype)
    mask = torch.where(hidden, torch.tensor(number, dtype=torch.float64).to(dtype), bias)
    return mask, hidden.expand(FULL), bias.double().expand(FULL)


def tensors() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    sizes = ((QUERIES, DIMS), (KEYS, DIMS), (KEYS, DIMS))
    query, key, value = (torch.randn(BATCH, HEADS, *size, generator=generator) for size in sizes)
    return query, key, value


def dense(hidden: torch.Tensor, bias: torch.Tensor, scales: torch.Tensor | float) -> torch.Tensor:
    """Softmax of the scaled logits of visible keys in float64; zero in rows that see none."""
    query, key, _ = (tensor.double() for tensor in tensors())
    logits = (torch.einsum("bhqd,bhkd->bhqk", query, key) / DIMS**0.5 + bias) * scales
    return torch.softmax(logits.masked_fill(hidden, -torch.inf), -1).nan_to_num(0)


@settings(max_examples=150, deadline=None)
@given(masks())
def test_a_mask_hides_the_same_keys_everywhere(drawn: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    """Faults 5 and 30."""
    mask, hidden, bias = drawn
    query, key, value = tensors()
    call = AttentionCall(nn.Identity(), query, key, value, mask, {})
    for item in range(BATCH):  # a scan
        assert torch.equal(call.visible(range(QUERIES), item), ~hidden[item])
        logits = call.logits(range(QUERIES), item).masked_fill(hidden[item], -torch.inf)
        weights = torch.softmax(logits, -1).nan_to_num(0)
        torch.testing.assert_close(weights, dense(hidden, bias, 1.0)[item], rtol=1e-9, atol=1e-12)
    # ssmax multiplies logits by the logarithm of the row's length, so that a key counted by mistake shows.
    lengths = (~hidden).sum(-1, keepdim=True).clamp_min(1).double()
    _, weights = blocks.attend(call, None, weight_function(SSMax(s=0.9)), with_weights=True)
    torch.testing.assert_close(weights.double(), dense(hidden, bias, 0.9 * lengths.log()), rtol=2e-4, atol=2e-6)
    _, weights = blocks.attend(call, [2, 0], weight_function(first_key), with_weights=True)  # an intervention
    first = ~hidden & ((~hidden).cumsum(-1) == 1)
    assert torch.equal(weights, first[:, [2, 0]].float())


NUMBERS = [-1e4, -3e4, -1e6, -1e9, float(torch.finfo(torch.float32).min), -torch.inf]


@pytest.mark.parametrize("number", NUMBERS)
def test_a_model_is_scanned_swapped_and_changed_alike(number: float) -> None:
    """Fault 30: a mask of the user's own through transformers' interface."""
    model = build("llama-gqa")
    ids = torch.randint(VOCABULARY - 1, (1, 11), generator=torch.Generator().manual_seed(1))
    visible = torch.ones(11, 11, dtype=torch.bool).tril()
    visible[:, 3] = visible[:, 5] = False
    visible[3, 3] = visible[5, 5] = True
    mask = torch.zeros(1, 1, 11, 11).masked_fill(~visible, number)
    rows = attnscope.scan(model, inputs={"input_ids": ids, "attention_mask": mask}, rows="all", top_n=[1]).rows
    first = rows.filter((rows["layer"] == 0) & (rows["head"] == 0))
    assert first["length"].to_list() == visible.sum(-1).tolist()
    for change in ("ssmax", {(0, 1): first_key}):
        with torch.no_grad(), attnscope.swap(model, change):
            found = model(input_ids=ids, attention_mask=mask).logits
            expected = model(input_ids=ids, attention_mask=visible[None, None]).logits
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


class WrittenOut(nn.Module):
    """Attention in plain torch that sets hidden scores to a number, or adds it."""

    def __init__(self, number: float, added: bool) -> None:
        super().__init__()
        self.number, self.added = number, added

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, hidden: torch.Tensor) -> Any:
        scores = query @ key.mT / DIMS**0.5
        scores = scores + hidden * self.number if self.added else scores.masked_fill(hidden, self.number)
        return torch.softmax(scores, -1) @ value


@pytest.mark.parametrize("added", [False, True], ids=["set", "added"])
@pytest.mark.parametrize("number", NUMBERS[:-1])
def test_attention_that_is_written_out_hides_with_the_same_numbers(number: float, added: bool) -> None:
    """Fault 30: there is no mask to read, only scores."""
    query, key, value = tensors()
    hidden = torch.rand(FULL, generator=torch.Generator().manual_seed(3)) < 0.4
    hidden[..., 0] = False
    calls: list[Any] = []
    run(WrittenOut(number, added), (query, key, value, hidden), calls.append)
    for item in range(BATCH):
        assert torch.equal(calls[0].visible(range(QUERIES), item), ~hidden[item])


@pytest.mark.parametrize("number", NUMBERS)
def test_masks_of_pytorchs_modules_hide_with_the_same_numbers(number: float) -> None:
    """Fault 30."""
    module = nn.MultiheadAttention(12, 3, batch_first=True).eval()
    x = torch.randn(BATCH, KEYS, 12, generator=torch.Generator().manual_seed(3))
    visible = torch.ones(KEYS, KEYS, dtype=torch.bool).tril()
    mask = torch.zeros(KEYS, KEYS).masked_fill(~visible, number)
    calls: list[Any] = []
    run(module, {"query": x, "key": x, "value": x, "attn_mask": mask}, calls.append)
    assert torch.equal(calls[0].visible(range(KEYS), 1)[0], visible)


@pytest.mark.parametrize("dtype", [torch.bool, torch.long, torch.float32], ids=str)
def test_xlnets_two_masks_mean_the_same_rows(dtype: torch.dtype) -> None:
    """Fault 2: `input_mask` is one on padding, and padded tokens attend to themselves."""
    tokens = torch.ones(2, 9, dtype=torch.long)
    tokens[0, :2] = tokens[1, 6:] = 0
    ids = torch.randint(2, 256, (2, 9), generator=torch.Generator().manual_seed(1))
    calls: list[Any] = []
    run(tiny_model("xlnet"), {"input_ids": ids, "input_mask": (1 - tokens).to(dtype)}, calls.append)
    assert len(calls) == 2
    for item in range(2):
        assert calls[0].visible(range(9), item).any(-1).any(0).tolist() == tokens[item].bool().tolist()


class Inverted(nn.Module):
    """A module of one's own whose `attention_mask` is True on what is hidden."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(12, 3, batch_first=True)

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, key_padding_mask=attention_mask)[0]


def test_a_mask_of_ones_own_module_means_what_the_module_does_with_it() -> None:
    """Fault 2."""
    hidden = torch.zeros(1, 7, dtype=torch.bool)
    hidden[:, 5:] = True
    calls: list[Any] = []
    run(Inverted().eval(), {"x": torch.randn(1, 7, 12), "attention_mask": hidden}, calls.append)
    assert calls[0].visible(range(7)).any(-1).any(0).tolist() == (~hidden[0]).tolist()


def test_large_logits_are_no_mask() -> None:
    """A score that has weight is a logit, however low."""
    query, key, value = tensors()
    query[..., :1] -= 1e5
    key[..., :1] = 1.0
    calls: list[Any] = []
    nothing = torch.zeros(FULL, dtype=torch.bool)
    run(WrittenOut(-1e9, added=False), (query, key, value, nothing), calls.append)
    assert calls[0].scores.max() < -4e4
    visible = torch.stack([calls[0].visible(range(QUERIES), item) for item in range(BATCH)])
    assert torch.equal(visible, calls[0].weights > 0)


@pytest.mark.parametrize(
    "shape", [(1, 1, 3, 3), (4, 1, 13, 13), (2, 3, 13, 13), (2, 1, 13, 5)], ids=["queries", "batch", "heads", "keys"]
)
@pytest.mark.parametrize("swapped", [False, True])
def test_mask_that_does_not_fit_is_refused_by_its_shape(shape: tuple[int, ...], swapped: bool) -> None:
    """Fault 5. An index out of range inside attnscope before."""
    model, inputs = build("llama-gqa"), {"input_ids": torch.ones(2, 13, dtype=torch.long)}
    change = attnscope.swap(model, "ssmax") if swapped else None
    inputs["attention_mask"] = torch.ones(shape, dtype=torch.bool)
    with pytest.raises(attnscope.ModelError, match=rf"mask of shape \({shape[0]}, .* does not fit \(batch, heads"):
        attnscope.scan(model, inputs=inputs) if change is None else model(**inputs)


@pytest.mark.parametrize("swapped", [False, True])
def test_boolean_mask_that_eager_attention_would_add_is_refused(swapped: bool) -> None:
    """Fault 30. transformers' eager kernel adds True as 1, so that every key stays visible; keys were hidden here."""
    model, inputs = build("llama-gqa", "eager"), {"input_ids": torch.ones(1, 5, dtype=torch.long)}
    inputs["attention_mask"] = torch.ones(1, 1, 5, 5, dtype=torch.bool).tril()
    assert (model(**inputs, output_attentions=True).attentions[0] > 0).all()
    change = attnscope.swap(model, "ssmax") if swapped else None
    with pytest.raises(attnscope.ModelError, match="boolean attention mask, which eager attention adds"):
        attnscope.scan(model, inputs=inputs) if change is None else model(**inputs)


def test_mask_with_nan_hides_nothing() -> None:
    """Fault 11. The model's row has no numbers; a key that a NaN seemed to hide gave numbers of other keys."""
    mask = torch.zeros(2, 1, 13, 13).masked_fill(~torch.ones(13, 13, dtype=torch.bool).tril(), -torch.inf)
    mask[1, 0, 12, 3] = torch.nan
    result = attnscope.scan(
        build("llama-gqa"), inputs={"input_ids": torch.arange(26).reshape(2, 13), "attention_mask": mask}
    )
    assert result.rows["window"].unique().to_list() == [0]
    assert {entry["reason"] for entry in result.run["skipped_heads"]} == {"logits not finite"}


def test_inputs_without_numbers_are_refused() -> None:
    ids = torch.ones(1, 5, dtype=torch.long, device="meta")
    with pytest.raises(attnscope.InputError, match="a tensor on the meta device"):
        attnscope.scan(build("llama-gqa"), inputs={"input_ids": ids})
