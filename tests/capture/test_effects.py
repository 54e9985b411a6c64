"""What heads add to the residual stream, against the model itself: its own tensors, and runs without a head."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from examine import LENGTH
from families import tiny_model
from torch import nn

import attnscope
from attnscope.capture.effects import EffectSource, RowEffects
from attnscope.capture.forward import forward
from attnscope.capture.models import Model
from attnscope.capture.modules import VectorSource, evaluating
from attnscope.errors import ModelError

IDS = torch.randint(2, 256, (1, LENGTH), generator=torch.Generator().manual_seed(1))
# The output projection, and what adds to the stream besides, in the first layer of each family.
LINEAR = {
    "llama": ("layers.0.self_attn.o_proj", "layers.0.mlp"),
    "granite": ("layers.0.self_attn.o_proj", "layers.0.mlp"),  # a residual multiplier
    "qwen3_5_text": ("layers.1.self_attn.o_proj", "layers.1.mlp"),  # a gate for each channel
    "laguna": ("layers.0.self_attn.o_proj", "layers.0.mlp"),
    "gpt2": ("h.0.attn.c_proj", "h.0.mlp"),
    "gptj": ("h.0.attn.out_proj", "h.0.mlp"),  # parallel blocks
    "falcon": ("h.0.self_attention.dense", "h.0.mlp"),  # parallel blocks that add in place
    "cohere": ("layers.0.self_attn.o_proj", "layers.0.mlp"),
}
NORMED = {  # a norm before the projection or after it
    "bitnet": "layers.0.self_attn.o_proj",
    "gemma2": "layers.0.self_attn.o_proj",
    "afmoe": "layers.0.self_attn.o_proj",
    "olmo2": "layers.0.self_attn.o_proj",
}


def model_of(family: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tiny_model(family).base_model


def contexts(call: Any) -> torch.Tensor:
    """Plain softmax of the logits times the values."""
    rows = range(call.queries)
    weights = call.logits(rows).masked_fill(~call.visible(rows), -torch.inf).softmax(-1)
    values = call.values().double()
    return weights @ values.repeat_interleave(call.heads // len(values), 0)


def effects_of(model: Any, layer: int = 0) -> tuple[RowEffects, torch.Tensor]:
    """The effects of every row of a layer, and what arrives at its projection."""
    found: list[tuple[RowEffects, torch.Tensor]] = []
    source, hidden = EffectSource(model), VectorSource(model, "hidden")

    def collect(call: Any) -> None:
        def done(effects: Any) -> None:
            context = contexts(call)
            stream = hidden.vectors(call)[0].double()
            rows = effects.rows(call, range(call.queries), context, stream)
            found.append((rows, context if rows.factor is None else context * rows.factor))

        source.follow(call, done)

    try:
        with evaluating(model):
            forward(Model(model, None, "tiny", None), IDS, collect)
    finally:
        source.close()
        hidden.close()
    return found[layer]


@contextmanager
def hooked(module: nn.Module, before: Any = None, after: Any = None) -> Iterator[None]:
    handles = []
    if before is not None:
        handles.append(module.register_forward_pre_hook(before))
    if after is not None:
        handles.append(module.register_forward_hook(after))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def block_output(model: Any, projection: str, other: str, without: slice | None) -> torch.Tensor:
    """The output of the block, with nothing from its other part, and without some inputs of the projection."""
    modules, seen = dict(model.named_modules()), []

    def cut(module: nn.Module, args: Any) -> Any:
        kept = args[0].clone()
        if without is not None:
            kept[..., without] = 0
        return (kept,)

    def nothing(module: nn.Module, args: Any, output: Any) -> Any:
        return (
            torch.zeros_like(output) if isinstance(output, torch.Tensor) else (torch.zeros_like(output[0]), *output[1:])
        )

    block = modules[".".join(projection.split(".")[:2])]
    keep = lambda module, args, output: seen.append((output[0] if isinstance(output, tuple) else output)[0].double())  # noqa: E731
    with (
        hooked(modules[projection], before=cut),
        hooked(modules[other], after=nothing),
        hooked(block, after=keep),
        torch.no_grad(),
    ):
        model(IDS, use_cache=False)
    return seen[0]


@pytest.mark.parametrize("family", LINEAR)
def test_a_head_adds_what_is_missing_without_it(family: str) -> None:
    model = model_of(family)
    projection, other = LINEAR[family]
    effects, arriving = effects_of(model)
    assert effects.error < 1e-5
    sizes = effects.added(arriving).norm(dim=-1)
    heads, dims = arriving.shape[0], arriving.shape[-1]
    whole = block_output(model, projection, other, None)
    for head in range(heads):
        without = block_output(model, projection, other, slice(head * dims, (head + 1) * dims))
        torch.testing.assert_close(
            sizes[head], (whole - without).norm(dim=-1), rtol=2e-3, atol=1e-4 * float(whole.norm(dim=-1).max())
        )


@pytest.mark.parametrize("family", NORMED)
def test_norms_are_taken_as_they_are_in_each_row(family: str) -> None:
    """The oracle is what the projection was given, and what the norm after it made of each channel."""
    model = model_of(family)
    modules, seen = dict(model.named_modules()), {}
    projection = modules[NORMED[family]]
    block = modules[".".join(NORMED[family].split(".")[:2])]

    def keep(module: nn.Module, args: Any, output: Any) -> None:
        if module is projection:
            seen["given"], seen["projected"] = args[0][0].double(), output[0].double()
        elif "projected" in seen and "normed" not in seen and torch.equal(args[0][0].double(), seen["projected"]):
            seen["normed"] = output[0].double()

    handles = [
        part.register_forward_hook(keep) for part in block.modules() if part is not block and not list(part.children())
    ]
    with torch.no_grad():
        model(IDS, use_cache=False)
    for handle in handles:
        handle.remove()
    effects, arriving = effects_of(model)
    assert effects.error < 1e-5
    heads, dims = arriving.shape[0], arriving.shape[-1]
    torch.testing.assert_close(
        arriving.transpose(0, 1).flatten(1), seen["given"], rtol=1e-4, atol=1e-5 * float(seen["given"].abs().max())
    )
    ratio = seen.get("normed", seen["projected"]) / seen["projected"]
    sizes = effects.added(arriving).norm(dim=-1)
    for head in range(heads):
        part = (
            seen["given"][:, head * dims : (head + 1) * dims]
            @ projection.weight.double().T[head * dims : (head + 1) * dims]
        )
        torch.testing.assert_close(sizes[head], (part * ratio).norm(dim=-1), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(("open_to", "share"), [(0.0, 0.0), (0.5, 0.5), (1e-9, 1e-9)])
def test_a_gate_that_is_forced_shut_or_half_open_counts(open_to: float, share: float) -> None:
    model = model_of("llama")
    before, arriving = effects_of(model)
    whole = before.added(arriving).norm(dim=-1)
    with hooked(model.layers[0].self_attn.o_proj, before=lambda module, args: (args[0] * open_to,)):
        effects, arriving = effects_of(model)
    assert effects.gated
    torch.testing.assert_close(effects.added(arriving).norm(dim=-1), whole * share, rtol=1e-4, atol=0)


def test_what_no_factor_explains_is_refused_by_name() -> None:
    model = model_of("llama")
    with (
        hooked(model.layers[0].self_attn.o_proj, before=lambda module, args: (args[0].roll(1, -1),)),
        pytest.raises(ModelError, match=r"arrives at its output projection.*layers\.0\.self_attn"),
    ):
        effects_of(model)
    with (
        hooked(model.layers[0].self_attn.o_proj, before=lambda module, args: (args[0].tanh(),)),
        pytest.raises(ModelError, match="arrives at its output projection"),
    ):
        effects_of(model)
    with (
        hooked(model.layers[0].self_attn.o_proj, after=lambda module, args, output: output.relu()),
        pytest.raises(ModelError, match="leaves its output projection"),
    ):
        effects_of(model)
    with (
        hooked(model.layers[0].self_attn, after=lambda module, args, output: (output[0].tanh(), *output[1:])),
        pytest.raises(ModelError, match="is added to the residual stream"),
    ):
        effects_of(model)
    with pytest.raises(ModelError, match=r"DiffLlamaAttention \(layers\.0\.self_attn\) combines"):
        effects_of(model_of("diffllama"))


def test_trying_a_module_out_leaves_no_trace() -> None:
    model = model_of("qwen3_5_text")
    with torch.no_grad():
        before = model(IDS, use_cache=False)[0]
        effects_of(model)
        after = model(IDS, use_cache=False)[0]
    assert torch.equal(before, after)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    assert all("attnscope" not in part._modules for part in model.modules())


def test_output_vectors_of_gated_heads_are_refused() -> None:
    model, loaded = model_of("qwen3_5_text"), model_of("llama")
    with pytest.raises(ModelError, match="gates, normalizes or combines"):
        attnscope.scan(model, inputs=IDS, vectors="output")
    for plain in (loaded, model_of("bert")):  # BERT projects outside of the module that attends
        assert attnscope.scan(plain, inputs=IDS, vectors="output").rows.height > 0
