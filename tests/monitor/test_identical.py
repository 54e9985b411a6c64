"""With and without a monitor, training is the same to the last bit, and other steps are left alone (Fault 33)."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from training import HEADS, ITEMS, SUBJECTS, TOKENS, batches, gpt2, loss_of, train
from transformers.modeling_utils import AttentionInterface

import attnscope


def state_of(model: nn.Module) -> list[Any]:
    """Whatever a wrapped model, class or registry would show."""
    modules = [(set(vars(part)), {**part._forward_hooks}, {**part._forward_pre_hooks}) for part in model.modules()]
    classes = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)
    return [modules, [cls.forward for cls in classes], dict(AttentionInterface._global_mapping)]


@pytest.mark.parametrize("subject", SUBJECTS)
def test_losses_gradients_weights_and_random_state_are_the_same_bits(subject: str) -> None:
    plain = train(SUBJECTS[subject](), 7)
    model = SUBJECTS[subject]()
    monitor = attnscope.Monitor(model, every=3, rows=4, sequences=2)
    watched = train(model, 7, monitor)
    assert watched.same_bits(plain)
    assert (monitor.errors, monitor.last_error) == (0, None)
    assert monitor.heads["step"].unique().to_list() == [1, 3, 6]
    assert monitor.heads.height == 3 * sum(entry["heads"] for entry in monitor._entries.values())
    assert monitor.heads.drop("separability", "null_random", "top_mass").null_count().sum_horizontal().item() == 0


@pytest.mark.parametrize("subject", SUBJECTS)
def test_nothing_is_wrapped_on_other_steps_and_after_closing(subject: str) -> None:
    model = SUBJECTS[subject]()
    before = state_of(model)
    monitor = attnscope.Monitor(model, every=3, rows=4)
    states: dict[int, bool] = {}

    def look(model: nn.Module, step: int) -> None:
        states[step + 1] = state_of(model) == before

    train(model, 5, monitor, between=look)
    assert states == {2: True, 3: False, 4: True, 5: True, 6: False}
    monitor.close()
    assert state_of(model) == before


def test_a_model_is_copied_and_saved_without_the_monitor() -> None:
    model = gpt2()
    monitor = attnscope.Monitor(model, every=1)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    for each in copies:
        assert state_of(each)[0] == state_of(gpt2())[0]
        loss_of(each, next(batches(1))).backward()
    assert list(monitor.heads["step"]) == []
    loss_of(model, next(batches(1))).backward()
    monitor.step()
    assert monitor.heads.height == 2 * HEADS
    assert monitor.heads["rows"].to_list() == [16] * 6


def test_rows_and_items_beyond_the_batch_mean_all_of_them() -> None:
    model = gpt2()
    monitor = attnscope.Monitor(model, every=1, rows=1000, sequences=1000)
    train(model, 1, monitor)
    assert monitor.heads["rows"].to_list() == [ITEMS * TOKENS] * 6
    assert monitor.heads["length"].to_list() == pytest.approx([(TOKENS + 1) / 2] * 6)


def test_sampling_depends_on_the_step_alone() -> None:
    tables = []
    for seed in (1, 2):
        model = gpt2(dropout=0.0)
        torch.manual_seed(seed)
        monitor = attnscope.Monitor(model, every=1, rows=3)
        train(model, 3, monitor)
        tables.append(monitor.heads)
    assert tables[0].equals(tables[1])
    lengths = tables[0].group_by("step", maintain_order=True).agg("length")["length"].list.first().to_list()
    assert len(set(lengths)) > 1
