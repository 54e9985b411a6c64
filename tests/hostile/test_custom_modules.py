"""Modules of one's own whose inputs do not say at once what is batch, token or head: right, or refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from models import build
from torch import nn
from torch.nn import functional

import attnscope
from attnscope.capture.forward import run
from attnscope.errors import InputError, ModelError

BATCH, TOKENS, HEADS, DIMS = 3, 7, 2, 5
WIDTH = HEADS * DIMS


class Folded(nn.Module):
    """Attention over (batch x heads, tokens, size), on states that have the tokens or the batch first."""

    def __init__(self, time_first: bool, way: str = "softmax", extra: int = 0) -> None:
        super().__init__()
        self.time_first, self.way, self.extra = time_first, way, extra

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.transpose(0, 1) if self.time_first else x
        x = functional.pad(x, (0, 0, self.extra, 0))  # tokens of the module's own
        heads = x.unflatten(-1, (HEADS, DIMS)).transpose(1, 2).flatten(0, 1)
        if self.way == "kernel":
            return functional.scaled_dot_product_attention(heads, heads, heads)
        return torch.bmm(torch.softmax(torch.bmm(heads, heads.mT), -1), heads)


def states(batch: int = BATCH, tokens: int = TOKENS) -> torch.Tensor:
    return torch.randn(batch, tokens, WIDTH, generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize("way", ["softmax", "kernel"])
@pytest.mark.parametrize("time_first", [False, True], ids=["batch first", "time first"])
@pytest.mark.parametrize(("batch", "tokens"), [(3, 7), (14, 7), (1, 7), (7, 2), (7, 7)])
def test_heads_folded_into_the_batch_are_unfolded(way: str, time_first: bool, batch: int, tokens: int) -> None:
    """Fault 7: 14 and 7 divide one another, so that the wrong size would fit too."""
    x, calls = states(batch, tokens), []
    run(Folded(time_first, way), x.transpose(0, 1) if time_first else x, calls.append)
    (call,) = calls
    assert (call.batch, call.heads, call.queries) == (batch, HEADS, tokens)
    scale = DIMS**-0.5 if way == "kernel" else 1.0
    for item in range(batch):
        heads = x[item].double().unflatten(-1, (HEADS, DIMS)).transpose(0, 1)
        torch.testing.assert_close(call.values(item), heads.float())
        torch.testing.assert_close(call.logits(range(tokens), item), heads @ heads.mT * scale, rtol=1e-5, atol=1e-5)


def test_states_without_a_batch_are_one_item() -> None:
    module, calls = Folded(time_first=False), []
    given = states(1)[0]
    run(nn.Sequential(nn.Unflatten(0, (1, TOKENS)), module), given, calls.append)
    assert (calls[0].batch, calls[0].heads) == (1, HEADS)


@pytest.mark.parametrize(
    ("module", "inputs"),
    [
        pytest.param(Folded(time_first=False, extra=1), states(), id="a token of its own"),
        pytest.param(Folded(time_first=False, way="kernel", extra=1), states(), id="the same in the kernel"),
    ],
)
def test_what_cannot_be_told_apart_is_refused(module: nn.Module, inputs: torch.Tensor) -> None:
    with pytest.raises(ModelError, match="cannot tell heads from items of the batch in Folded"):
        run(module, inputs, lambda call: None)


def test_inputs_that_are_a_function_do_not_say_how_many_items_there_are() -> None:
    module = Folded(time_first=False)
    with pytest.raises(ModelError, match="cannot tell heads from items"):
        run(module, lambda: module(states()), lambda call: None)


def test_one_item_at_a_time_is_always_right() -> None:
    """What the message of the refusal advises."""
    calls: list[Any] = []
    run(Folded(time_first=False, extra=1), states(1), calls.append)
    assert (calls[0].batch, calls[0].heads, calls[0].queries) == (1, HEADS, TOKENS + 1)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_nested_tensors_are_refused(layout: torch.layout) -> None:
    """Fault 5: items of different lengths in one tensor."""
    nested = torch.nested.nested_tensor([torch.randn(5, 12), torch.randn(3, 12)], layout=layout)
    layer = nn.TransformerEncoderLayer(12, 3, 7, batch_first=True).eval()
    for module, inputs in ((nn.MultiheadAttention(12, 3, batch_first=True), (nested,) * 3), (layer, nested)):
        with pytest.raises(InputError, match="nested tensor; pad its items"):
            attnscope.scan(module, inputs=inputs)


@pytest.mark.parametrize("landmarks", [4, 16])
def test_softmaxes_that_are_combined_are_no_attention(landmarks: int) -> None:
    """Nystromformer multiplies three softmaxes, over 4 landmarks, unless it has as many of them as tokens."""
    config = transformers.NystromformerConfig(
        vocab_size=31,
        hidden_size=28,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=13,
        num_landmarks=landmarks,
        segment_means_seq_len=16,
        max_position_embeddings=32,
    )
    model, ids = transformers.NystromformerModel(config).eval(), torch.arange(16)[None]
    if landmarks == 16:
        assert (
            attnscope.scan(model, inputs={"input_ids": ids}, rows="all", top_n=[2]).rows["length"].unique().item() == 16
        )
    else:
        with pytest.raises(ModelError, match="cannot follow the attention of NystromformerSelfAttention"):
            attnscope.scan(model, inputs={"input_ids": ids}, rows="all", top_n=[2])


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(query, key, value)


class ByFunction(nn.Module):
    """Attends in a function: its own code does not mention how."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return attend(x, x, x)


def test_attention_in_a_function_beside_another_is_not_missed() -> None:
    """Fault 9. Beside a layer that was seen, one that calls a function was left out of the tables without a word."""

    class Direct(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.scaled_dot_product_attention(x, x, x)

    x = torch.randn(1, 3, 5, 7)
    alone = attnscope.scan(ByFunction(), inputs=x)
    assert len(alone.run["model"]["heads"]) == 1
    both = attnscope.scan(nn.Sequential(ByFunction(), Direct()), inputs=x)
    assert [layer["module"] for layer in both.run["model"]["heads"]] == ["0", "1"]


def test_forward_that_was_replaced_in_a_transformers_model_is_not_missed() -> None:
    """Fault 9. A forward put in place of one layer's used the kernel by itself: that layer had no line."""
    model = build("llama-gqa")
    attention = model.model.layers[1].self_attn

    def forward(hidden_states: torch.Tensor, **_: object) -> tuple[torch.Tensor, None]:
        x = hidden_states.unflatten(-1, (6, -1)).transpose(1, 2)
        return attend(x, x, x).transpose(1, 2).flatten(2), None

    attention.forward = forward
    result = attnscope.scan(model, inputs={"input_ids": torch.arange(13)[None]})
    assert [layer["layer"] for layer in result.run["model"]["heads"]] == [0, 1]


def test_causal_kernel_with_a_mask_hides_what_either_hides() -> None:
    """Fault 5. PyTorch's kernel applies both; the mask alone was read, and later keys counted as visible."""
    x, mask = torch.randn(1, 3, 5, 7), torch.zeros(5, 5)
    mask[4, 0] = -torch.inf

    class Both(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.scaled_dot_product_attention(x, x, x, attn_mask=mask, is_causal=True)

    later_changed = x.clone()
    later_changed[:, :, 3:] += 1
    assert torch.equal(Both()(x)[:, :, :3], Both()(later_changed)[:, :, :3])  # the kernel is causal
    rows = attnscope.scan(Both(), inputs=x, rows="all").rows.filter(head=0).sort("position")
    assert rows["length"].to_list() == [1, 2, 3, 4, 4]
