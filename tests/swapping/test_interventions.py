"""Replacing what single heads do: counterfactual rules and constant outputs."""

from __future__ import annotations

import math
from typing import Any

import plain
import pytest
import torch
from models import VOCABULARY, build

from attnscope.errors import InputError
from attnscope.swapping import first_key, intervene, mean_outputs, sink_and_last, top_share

EXACT = {"rtol": 1e-9, "atol": 1e-10}


def token_ids(batch: int = 1) -> torch.Tensor:
    return torch.randint(VOCABULARY - 1, (batch, 29), generator=torch.Generator().manual_seed(11))


def only_first(z: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(0), len(z)).to(z.dtype)


def sink_and_three(z: torch.Tensor) -> torch.Tensor:
    kept = {0, *range(max(0, len(z) - 3), len(z))}
    return plain.softmax(torch.stack([z[j] if j in kept else torch.tensor(-math.inf) for j in range(len(z))]))


def fifth(z: torch.Tensor) -> torch.Tensor:
    count = max(1, math.ceil(len(z) * 0.2))
    kept = set(sorted(range(len(z)), key=lambda j: (-float(z[j]), j))[:count])
    return plain.softmax(torch.stack([z[j] if j in kept else torch.tensor(-math.inf) for j in range(len(z))]))


@pytest.mark.parametrize(
    ("rule", "row"),
    [(first_key, only_first), (sink_and_last(3), sink_and_three), (top_share(0.2), fifth)],
    ids=["first key", "sink and last 3", "top 20%"],
)
@pytest.mark.parametrize("family", ["llama-gqa", "mistral-window"])
def test_a_rule_in_one_head_is_that_of_plain_attention(
    family: str, rule: Any, row: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib

    model, same = build(family).double(), build(family, "eager").double()
    file = importlib.import_module(type(same).__module__)

    def rows(module: Any, head: int) -> Any:
        return row if (module.layer_idx, head) == (1, 2) else plain.softmax

    monkeypatch.setattr(file, "eager_attention_forward", plain.kernel(rows))
    with torch.no_grad():
        expected = same(input_ids=token_ids()).logits
        with intervene(model, {(1, 2): rule}):
            torch.testing.assert_close(model(input_ids=token_ids()).logits, expected, **EXACT)


def test_a_constant_is_what_the_head_puts_out_in_every_row() -> None:
    model, ids = build("llama-gqa"), token_ids(2)
    constant, seen = torch.linspace(-1, 1, 14), []
    with torch.no_grad(), intervene(model, {(1, 3): constant, (1, 5): torch.zeros(14)}):
        projection = model.model.layers[1].self_attn.o_proj
        hook = projection.register_forward_pre_hook(lambda m, inputs: seen.append(inputs[0]))
        model(input_ids=ids)
        hook.remove()
    heads = seen[0].unflatten(-1, (6, 14))
    assert torch.equal(heads[:, :, 3], constant.expand(2, 29, 14))
    assert torch.equal(heads[:, :, 5], torch.zeros(2, 29, 14))
    assert heads[:, :, 4].abs().min() > 0


def test_a_constant_of_the_wrong_size_is_refused() -> None:
    with pytest.raises(InputError, match="outputs 14 numbers; received a vector of shape \\(13,\\)"):
        intervene(build("llama-gqa"), {(1, 3): torch.zeros(13)})


def test_mean_outputs_are_the_means_of_what_heads_put_out() -> None:
    model, ids = build("llama-gqa"), token_ids(2)
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    seen: list[torch.Tensor] = []
    hook = model.model.layers[1].self_attn.o_proj.register_forward_pre_hook(lambda m, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        model(input_ids=ids)
        model(input_ids=ids, attention_mask=mask)
    hook.remove()
    rows = torch.cat([seen[0].flatten(0, 1), seen[1][mask.bool()]]).double()
    means = mean_outputs(model, [{"input_ids": ids}, {"input_ids": ids, "attention_mask": mask}])
    assert len(means) == 12
    torch.testing.assert_close(means[1, 4], rows.unflatten(-1, (6, 14))[:, 4].mean(0), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("make", "value"),
    [
        pytest.param(sink_and_last, 0, id="no last key"),
        pytest.param(sink_and_last, 1.5, id="half a key"),
        pytest.param(top_share, 0, id="no share"),
        pytest.param(top_share, 2.0, id="more than all"),
    ],
)
def test_a_rule_of_no_keys_is_refused(make: Any, value: Any) -> None:
    with pytest.raises(InputError, match=f"received {value}"):
        make(value)
