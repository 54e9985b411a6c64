"""Right under real training, or refused when the monitor is made (Faults 24 and 33)."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
import torch
from models import build
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from training import HEADS, ITEMS, TOKENS, WIDTH, CustomAttention, OnTokens, batches, gpt2, loss_of, train

import attnscope

ALL = 10**6


def watched(model: nn.Module, **settings: Any) -> attnscope.Monitor:
    return attnscope.Monitor(model, **({"every": 1, "rows": ALL, "sequences": ALL} | settings))


def trained_table(model: nn.Module, steps: int = 2, **settings: Any) -> pl.DataFrame:
    monitor = watched(model)
    train(model, steps, monitor, **settings)
    assert (monitor.errors, monitor.last_error) == (0, None)
    return monitor.heads


def test_of_accumulated_batches_the_first_one_is_measured() -> None:
    first = trained_table(gpt2(dropout=0.0), 1)
    accumulated = trained_table(gpt2(dropout=0.0), 2, accumulate=3)
    assert accumulated.filter(step=1).equals(first)
    assert accumulated["step"].unique().to_list() == [1, 2]
    assert set(accumulated["rows"]) == {ITEMS * TOKENS}


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])
def test_what_gradient_checkpointing_runs_again_is_not_counted(family: str, reentrant: bool) -> None:
    def model(checkpointing: bool) -> Any:
        made = gpt2(dropout=0.1) if family == "gpt2" else build("llama-gqa").train()
        if checkpointing:
            made.gradient_checkpointing_enable({"use_reentrant": reentrant})
            made.enable_input_require_grads()
        return made

    plain = train(model(True), 2)
    watched_model = model(True)
    monitor = watched(watched_model)
    assert train(watched_model, 2, monitor).same_bits(plain)
    assert (monitor.errors, monitor.last_error) == (0, None)
    assert monitor.heads.filter(step=1).equals(trained_table(model(False), 1))
    assert monitor.heads["step"].to_list() == [1] * (monitor.heads.height // 2) + [2] * (monitor.heads.height // 2)


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])
@pytest.mark.parametrize("way", ["sdpa", "written out", "record", "nn.MultiheadAttention"])
def test_checkpointing_of_other_kinds_of_attention(way: str, reentrant: bool) -> None:
    class Checkpointed(OnTokens):
        def forward(self, input_ids: Tensor) -> Tensor:
            x = self.embedding(input_ids)
            return self.head(checkpoint(self.body, x, use_reentrant=reentrant) if self.checkpointing else self.body(x))

    def model(checkpointing: bool) -> nn.Module:
        torch.manual_seed(3)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 31, batch_first=True)
        made = Checkpointed(layer if way == "nn.MultiheadAttention" else CustomAttention(way)).train()
        made.checkpointing = checkpointing
        return made

    assert trained_table(model(True)).equals(trained_table(model(False)))


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])
def test_layers_that_the_training_loop_runs_itself_are_measured_too(reentrant: bool) -> None:
    """Neither the model's forward nor that of its body is ever called."""

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        x = model.embedding(ids)
        for block in model.body:
            x = checkpoint(block, x, use_reentrant=reentrant)
        return nn.functional.cross_entropy(model.head(x)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    def model() -> nn.Module:
        torch.manual_seed(3)
        return OnTokens(nn.Sequential(CustomAttention("sdpa"), CustomAttention("sdpa"))).train()

    assert trained_table(model(), loss=loss).equals(trained_table(model()))


def test_evaluation_loops_in_between_are_not_mixed_in() -> None:
    def evaluate(model: nn.Module, step: int) -> None:
        ids = torch.zeros(2, 7, dtype=torch.long)
        model.eval()
        loss_of(model, ids)
        with torch.no_grad():
            loss_of(model, ids)
        model.train()
        with torch.no_grad():
            loss_of(model, ids)
        with torch.inference_mode():
            loss_of(model, ids)

    model = gpt2(dropout=0.0)
    monitor = watched(model)
    evaluate(model, 0)
    train(model, 2, monitor, between=evaluate)
    assert monitor.heads.equals(trained_table(gpt2(dropout=0.0)))


def test_of_several_forwards_in_a_step_the_first_one_is_measured() -> None:
    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        return loss_of(model, ids) + loss_of(model, ids.flip(1)[:, :11])

    assert trained_table(gpt2(dropout=0.0), 1, loss=loss).equals(trained_table(gpt2(dropout=0.0), 1))


def test_parts_that_are_called_one_after_another_are_all_measured() -> None:
    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = gpt2(dropout=0.0), gpt2(dropout=0.0)

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        return loss_of(model.left, ids) + loss_of(model.right, ids) + loss_of(model.left, ids[:, :5])

    table = trained_table(Towers().train(), 1, loss=loss)
    one = trained_table(gpt2(dropout=0.0), 1).drop("layer", "null_random")
    assert table["layer"].unique().to_list() == [0, 1, 2, 3]
    assert table.filter(pl.col("layer") < 2).drop("layer", "null_random").equals(one)
    assert table.filter(pl.col("layer") > 1).drop("layer", "null_random").equals(one)


def test_frozen_parts_are_measured_and_stay_frozen() -> None:
    def model() -> nn.Module:
        made = gpt2(dropout=0.0)
        for parameter in made.transformer.h[0].parameters():
            parameter.requires_grad_(False)
        return made

    assert trained_table(model(), 1).equals(trained_table(gpt2(dropout=0.0), 1))
    frozen = model()
    train(frozen, 2, watched(frozen))
    same = zip(frozen.transformer.h[0].parameters(), model().transformer.h[0].parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in same)


@pytest.mark.parametrize("subject", ["transformers", "nn.MultiheadAttention"])
def test_under_autocast_training_is_the_same_and_the_models_own_numbers_are_measured(subject: str) -> None:
    def model() -> nn.Module:
        if subject == "transformers":
            return gpt2(dropout=0.1)
        torch.manual_seed(3)
        # Keys of another size have weights of their own, which autocast caches.
        attention = nn.MultiheadAttention(WIDTH, HEADS, dropout=0.1, batch_first=True, kdim=WIDTH + 1, vdim=WIDTH)

        class Attending(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.attention = attention

            def forward(self, x: Tensor) -> Tensor:
                keys = torch.cat([x, x[..., :1]], -1)
                return x + self.attention(x, keys, x, need_weights=False)[0]

        return OnTokens(Attending()).train()

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return loss_of(model, ids)

    plain = train(model(), 3, loss=loss)
    watched_model = model()
    monitor = watched(watched_model)
    assert train(watched_model, 3, monitor, loss=loss).same_bits(plain)
    assert (monitor.errors, monitor.last_error) == (0, None)
    exact = trained_table(model(), 1)["entropy_ratio"]
    rounded = monitor.heads.filter(step=1)["entropy_ratio"]
    assert not rounded.equals(exact)
    assert rounded.to_list() == pytest.approx(exact.to_list(), rel=0.02)


def test_a_forward_that_fails_and_is_tried_again_is_measured_once() -> None:
    """As after running out of memory: a smaller batch."""

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        handle = model.transformer.ln_f.register_forward_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            loss_of(model, ids.flip(0))
        handle.remove()
        return loss_of(model, ids)

    assert trained_table(gpt2(dropout=0.0), 1, loss=loss).equals(trained_table(gpt2(dropout=0.0), 1))


def test_an_interrupted_forward_leaves_nothing_behind() -> None:
    model = OnTokens(CustomAttention("written out")).train()
    monitor = watched(model)
    handle = model.head.register_forward_hook(lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        model(next(batches(1)))
    handle.remove()
    assert torch.overrides._get_current_function_mode_stack() == []
    train(model, 1, monitor)
    assert monitor.heads["rows"].to_list() == [ITEMS * TOKENS] * HEADS


def test_the_optimizers_steps_are_counted_inside_a_with_block() -> None:
    model = gpt2(dropout=0.0)
    other = nn.Linear(2, 2)
    optimizers = [torch.optim.SGD(each.parameters(), lr=1e-3) for each in (other, model, model)]
    with watched(model, every=2) as monitor:
        for ids in batches(4):
            (loss_of(model, ids) + other.weight.sum()).backward()
            for optimizer in optimizers:
                optimizer.step()
    assert monitor.heads["step"].unique().to_list() == [1, 2, 4]
    optimizers[1].step()
    assert monitor.state_dict()["step"] == 4


def test_a_with_block_and_calls_of_step_count_each_step_once() -> None:
    model = gpt2(dropout=0.0)
    with watched(model, every=2) as monitor:
        train(model, 5, monitor)
        assert monitor.state_dict()["step"] == 5


def test_a_lora_adapter_is_trained_and_watched() -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["c_attn"], init_lora_weights=False, fan_in_fan_out=True)

    def adapted() -> Any:
        torch.manual_seed(5)
        return peft.get_peft_model(gpt2(dropout=0.1), config)

    plain = train(adapted(), 3)
    model = adapted()
    monitor = watched(model)
    assert train(model, 3, monitor).same_bits(plain)
    assert (monitor.errors, monitor.last_error) == (0, None)
    assert monitor.heads["layer"].unique().to_list() == [0, 1]
    merged = adapted().merge_and_unload().requires_grad_(True)
    expected = trained_table(merged, 1)["entropy_ratio"].to_list()
    assert monitor.heads.filter(step=1)["entropy_ratio"].to_list() == pytest.approx(expected, rel=1e-4)
