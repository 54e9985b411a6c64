"""A swapped model is saved and loaded as it is; what it learned is trained with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import plain
import pytest
import torch
from models import VOCABULARY, build

import attnscope
from attnscope.capture.models import load_model
from attnscope.errors import ModelError
from attnscope.normalizers import (
    LearnedASEntmax,
    LearnedEntmax,
    LearnedLipmax,
    LearnedSink,
    LearnedSSMax,
    SSMax,
    Tempered,
)


def token_ids() -> torch.Tensor:
    return torch.randint(VOCABULARY - 1, (2, 19), generator=torch.Generator().manual_seed(7))


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=token_ids()).logits


def with_bias(heads: int) -> LearnedSSMax:
    return LearnedSSMax(heads, b=0.5)


@pytest.mark.parametrize(
    "normalizer", [LearnedSSMax, with_bias, LearnedSink, LearnedEntmax, LearnedASEntmax, LearnedLipmax]
)
def test_what_was_learned_survives_saving_and_loading(normalizer: Any, tmp_path: Path) -> None:
    model = build("llama-gqa")
    change = attnscope.swap(model, normalizer)
    with torch.no_grad():
        for number, parameter in enumerate(change.parameters):
            parameter.add_(torch.linspace(0.1, 0.4, parameter.numel()).view_as(parameter) * (1 + number))
    expected = logits(model)
    model.save_pretrained(tmp_path)
    loaded = attnscope.swapping.load(tmp_path, dtype=torch.float32).eval()
    torch.testing.assert_close(logits(loaded), expected, rtol=1e-6, atol=1e-6)
    assert {name for name, _ in loaded.named_parameters()} == {name for name, _ in model.named_parameters()}
    loaded.save_pretrained(tmp_path / "again")
    again = attnscope.swapping.load(tmp_path / "again", dtype=torch.float32).eval()
    assert torch.equal(logits(again), logits(loaded))


def test_fixed_normalizers_of_single_heads_are_saved_with_their_settings(tmp_path: Path) -> None:
    model = build("gpt2")
    per_head = SSMax(s=torch.tensor([0.2, 0.4, 0.6, 0.8, 1.0])[:, None])
    attnscope.swap(model, {0: "entmax:alpha=1.3", (1, 2): Tempered(SSMax(), 1.7), 2: per_head})
    attnscope.swap(model, "topk:k=3", layers=[0], heads=[1])
    model.save_pretrained(tmp_path)
    loaded = attnscope.swapping.load(tmp_path, dtype=torch.float32).eval()
    torch.testing.assert_close(logits(loaded), logits(model), rtol=1e-6, atol=1e-6)
    assert not torch.allclose(logits(loaded), logits(build("gpt2")))


def test_parts_of_a_large_model_are_found_in_all_its_files(tmp_path: Path) -> None:
    model = build("gpt2")
    change = attnscope.swap(model, LearnedSSMax)
    with torch.no_grad():
        for parameter in change.parameters:
            parameter.mul_(2)
    model.save_pretrained(tmp_path, max_shard_size="40KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    loaded = attnscope.swapping.load(tmp_path, dtype=torch.float32).eval()
    torch.testing.assert_close(logits(loaded), logits(model), rtol=1e-6, atol=1e-6)


def test_a_loaded_model_is_swapped_in_every_verb(tmp_path: Path, tokenizer: Any) -> None:
    model = build("llama-gqa")
    attnscope.swap(model, "sparsemax")
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert torch.allclose(logits(load_model(str(tmp_path)).module), logits(model), atol=1e-5)


def test_a_normalizer_of_ones_own_is_asked_for_on_loading(tmp_path: Path) -> None:
    def halved(z: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return attnscope.normalizers.softmax(z, visible) / 2

    model = build("gpt2")
    attnscope.swap(model, halved)
    model.save_pretrained(tmp_path)
    name = json.loads((tmp_path / "config.json").read_text("utf-8"))["attnscope_swap"][0]["normalizer"]["custom"]
    with pytest.raises(ModelError, match="not attnscope's own"):
        attnscope.swapping.load(tmp_path)
    loaded = attnscope.swapping.load(tmp_path, custom={name: halved}, dtype=torch.float32).eval()
    torch.testing.assert_close(logits(loaded), logits(model), rtol=1e-6, atol=1e-6)


def test_a_folder_without_a_swap_is_refused(model_folder: Path) -> None:
    with pytest.raises(ModelError, match="records no swap"):
        attnscope.swapping.load(model_folder)


def test_interventions_are_not_saved(tmp_path: Path) -> None:
    model = build("gpt2")
    attnscope.swapping.intervene(model, {(0, 0): attnscope.swapping.first_key})
    assert not hasattr(model.config, "attnscope_swap")
    model.save_pretrained(tmp_path)
    assert "attnscope" not in (tmp_path / "config.json").read_text("utf-8")


def test_the_gradient_of_what_is_learned_is_that_of_plain_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers.models.llama.modeling_llama as file

    model, same = build("llama-gqa").double(), build("llama-gqa", "eager").double()
    change = attnscope.swap(model, LearnedSSMax, heads=[1, 4])
    for parameter in change.parameters:
        parameter.data = parameter.data.double()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for parameter in change.parameters:
        parameter.requires_grad_(True)
    loss = model(input_ids=token_ids(), labels=token_ids()).loss
    found = torch.autograd.grad(loss, change.parameters)
    scales = [torch.full((2,), 0.43, dtype=torch.float64, requires_grad=True) for _ in range(2)]

    def rows(module: Any, head: int) -> Any:
        if head not in (1, 4):
            return plain.softmax
        return lambda z: plain.ssmax(z, scales[module.layer_idx][[1, 4].index(head)])

    monkeypatch.setattr(file, "eager_attention_forward", plain.kernel(rows))
    expected = same(input_ids=token_ids(), labels=token_ids()).loss
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-9)
    for mine, theirs in zip(found, torch.autograd.grad(expected, scales), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-10)


def test_training_moves_the_learned_numbers_and_lowers_the_loss() -> None:
    model = build("gpt2")
    change = attnscope.swap(model, LearnedSSMax)
    assert {id(p) for p in change.parameters} <= {id(p) for p in model.parameters()}
    before = [p.detach().clone() for p in change.parameters]
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    model.train()
    for _ in range(8):
        optimizer.zero_grad()
        loss = model(input_ids=token_ids(), labels=token_ids()).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.5
    assert all((p - b).abs().min() > 1e-4 for p, b in zip(change.parameters, before, strict=True))


def test_a_scan_measures_the_weights_that_a_swapped_model_uses(tokenizer: Any, text: str) -> None:
    model = build("llama-gqa")
    with attnscope.swap(model, LearnedSSMax, layers=[0]), attnscope.swap(model, "sparsemax", layers=[0], heads=[2, 3]):
        result = attnscope.scan(
            model, text, tokenizer=tokenizer, lengths=[41], top_n=[5], normalizers=["sparsemax", "ssmax"]
        )
    line = ["entropy", "support", "max_weight", "jacobian_norm"]
    by_label = {label: part.sort("head") for (label,), part in result.rows.filter(layer=0).group_by("normalizer")}
    for head in range(6):
        expected = by_label["sparsemax" if head in (2, 3) else "ssmax"].select(line).row(head)
        assert by_label["own"].select(line).row(head) == pytest.approx(expected, rel=1e-6)
    untouched = {label: part.sort("head") for (label,), part in result.rows.filter(layer=1).group_by("normalizer")}
    assert (untouched["own"]["support"] == 41).all()
    assert result.run["model"]["swap"][0]["normalizer"] == {
        "learned": "LearnedSSMax",
        "settings": {"b": None, "heads": 6},
    }


class Scaled(torch.nn.Module):
    """A normalizer of a user's own, with a number for each head to learn."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(heads))

    def forward(self, logits: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return torch.softmax(logits * self.scale[:, None, None], -1).nan_to_num(0)


@pytest.mark.parametrize("given", [Scaled, Scaled(5)], ids=["class", "module"])
def test_a_module_of_ones_own_is_loaded_for_each_layer(given: Any, tmp_path: Path) -> None:
    model = build("gpt2")
    change = attnscope.swap(model, Scaled)
    with torch.no_grad():
        for number, parameter in enumerate(change.parameters):
            parameter.fill_(number + 1.0)
    model.save_pretrained(tmp_path)
    name = f"{Scaled.__module__}.{Scaled.__qualname__}"
    again = attnscope.swapping.load(tmp_path, custom={name: given})
    values = [p for n, p in again.named_parameters() if n.endswith("scale")]
    assert [value.unique().tolist() for value in values] == [[1.0], [2.0], [3.0]]


def test_a_subclass_of_a_learned_module_is_recorded_as_ones_own() -> None:
    class Mine(attnscope.normalizers.LearnedSSMax):
        pass

    model = build("gpt2")
    change = attnscope.swap(model, Mine)
    change.undo()
    assert not hasattr(model.config, "attnscope_swap")
