"""Value, output and hidden vectors against what the model itself computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from models import VOCABULARY, build

from attnscope.capture.huggingface import observed
from attnscope.capture.modules import VectorSource
from attnscope.columns import VectorKind
from attnscope.errors import ModelError

IDS = torch.randint(VOCABULARY - 1, (1, 29), generator=torch.Generator().manual_seed(5))


def vectors(model: Any, kind: VectorKind) -> dict[int, torch.Tensor]:
    source = VectorSource(model, kind)
    found: dict[int, torch.Tensor] = {}

    def collect(call: Any) -> None:
        found[source.layer(call.module, len(found))] = source.vectors(call).double()

    with torch.no_grad(), observed(model, collect):
        model(input_ids=IDS)
    source.close()
    return found


@pytest.mark.parametrize("family", ["gpt2", "llama-gqa", "bert"])
def test_hidden_is_the_input_of_the_layer(family: str) -> None:
    model = build(family)
    with torch.no_grad():
        hidden = model(input_ids=IDS, output_hidden_states=True).hidden_states
    found = vectors(model, "hidden")
    assert sorted(found) == list(range(len(hidden) - 1))
    for layer, values in found.items():
        assert values.shape[0] == 1
        assert torch.equal(values[0], hidden[layer][0].double())


@pytest.mark.parametrize("family", ["gpt2", "llama-gqa", "bert"])
def test_unit_hidden_vectors_and_embeddings(family: str) -> None:
    model = build(family)
    with torch.no_grad():
        hidden = model(input_ids=IDS, output_hidden_states=True).hidden_states
    units, embeddings = vectors(model, "hidden_unit"), vectors(model, "embedding")
    table = model.get_input_embeddings().weight
    for layer in range(len(hidden) - 1):
        right = hidden[layer][0].double()
        torch.testing.assert_close(units[layer][0], right / right.norm(dim=-1, keepdim=True))
        assert torch.equal(embeddings[layer][0], table[IDS[0]].double())


def test_a_module_that_does_not_embed_tokens_is_refused() -> None:
    with pytest.raises(ModelError, match="Linear does not say which module embeds its tokens; use vectors='value'"):
        VectorSource(torch.nn.Linear(3, 3), "embedding")


def test_values_of_gpt2_come_from_its_projection() -> None:
    model = build("gpt2")
    inputs: list[torch.Tensor] = []
    hook = model.transformer.h[1].attn.register_forward_pre_hook(
        lambda module, args, kwargs: inputs.append(args[0] if args else kwargs["hidden_states"]), with_kwargs=True
    )
    found = vectors(model, "value")[1]
    hook.remove()
    projection = model.transformer.h[1].attn.c_attn
    value = (inputs[0] @ projection.weight + projection.bias)[0, :, 70:].unflatten(-1, (5, 7)).transpose(0, 1)
    torch.testing.assert_close(found, value.double(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "path", "transposed"),
    [("gpt2", "transformer.h.0.attn.c_proj", False), ("llama-gqa", "model.layers.0.self_attn.o_proj", True)],
    ids=["gpt2", "llama-gqa"],
)
def test_output_vectors_keep_lengths_and_angles_of_the_projected_values(
    family: str, path: str, transposed: bool
) -> None:
    model = build(family)
    value, output = vectors(model, "value")[0], vectors(model, "output")[0]
    weight = model.get_submodule(path).weight.detach().double()
    weight = weight.mT if transposed else weight
    heads, dims = output.shape[0], value.shape[-1]
    for head in range(heads):
        projected = value[head * value.shape[0] // heads] @ weight[head * dims : (head + 1) * dims]
        torch.testing.assert_close(output[head] @ output[head].mT, projected @ projected.mT, rtol=1e-9, atol=1e-9)


def test_output_projection_of_an_encoder_is_found_beside_its_attention() -> None:
    model = build("bert")
    value, output = vectors(model, "value")[1], vectors(model, "output")[1]
    weight = model.encoder.layer[1].attention.output.dense.weight.detach().double().mT
    projected = value[2] @ weight[14:21]
    torch.testing.assert_close(output[2].norm(dim=-1), projected.norm(dim=-1), rtol=1e-9, atol=1e-9)


def test_hooks_are_removed() -> None:
    model = build("gpt2")
    vectors(model, "hidden")
    assert not any(module._forward_pre_hooks for module in model.modules())
