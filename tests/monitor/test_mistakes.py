"""Mistakes in a training loop harm neither the run nor its record, and are said."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from training import batches, gpt2, loss_of

import attnscope


def trained(monitor: attnscope.Monitor, model: nn.Module, optimizer: Any, steps: int, **said: Any) -> None:
    for ids in batches(steps):
        loss_of(model, ids).backward()
        optimizer.step()
        if said:
            monitor.step(**said)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-3)


def test_a_loss_of_several_numbers_is_left_out_and_recording_goes_on(tmp_path: Path) -> None:
    model = gpt2()
    monitor = attnscope.Monitor(model, every=1, out=tmp_path)
    trained(monitor, model, adam(model), 2, loss=torch.ones(3))
    assert monitor.errors == 2
    assert "loss is one real number; received a tensor of shape (3,)" in str(monitor.last_error)
    trained(monitor, model, adam(model), 1, loss=torch.tensor(1.5))
    monitor.close()
    run = attnscope.load_run(tmp_path)
    assert run.status == "finished"
    assert run.scalars.select("step", "value").rows() == [(3, 1.5)]
    assert run.heads["step"].unique().to_list() == [1, 2, 3]


def test_parameters_that_come_after_the_monitor_are_known_to_it() -> None:
    model = gpt2().requires_grad_(False)
    with attnscope.Monitor(model, every=1) as monitor:
        model.transformer.h[0].attn.c_proj = nn.Linear(24, 24)  # as an adapter is put into a model
        trained(monitor, model, torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1), 2)
    assert monitor.heads["step"].unique().to_list() == [1, 2]


def test_the_optimizer_of_another_model_with_the_same_embedding_does_not_count() -> None:
    model, other = gpt2(), gpt2()
    other.transformer.wte = model.transformer.wte
    other.lm_head = model.lm_head
    with attnscope.Monitor(model, every=1) as monitor:
        optimizer, foreign = adam(model), adam(other)
        for ids in batches(2):
            (loss_of(model, ids) + loss_of(other, ids)).backward()
            foreign.step()
            assert monitor.steps == 0 or optimizer.state
            optimizer.step()
    assert monitor.steps == 2


def test_a_block_without_a_step_of_the_optimizer_says_so() -> None:
    with attnscope.Monitor(gpt2()) as monitor:
        pass
    assert monitor.errors == 1
    assert "no step of an optimizer that trains the model was seen" in str(monitor.last_error)


def test_a_monitor_closed_by_its_alarm_leaves_the_model_free(tmp_path: Path) -> None:
    model = gpt2()
    closing: list[attnscope.Monitor] = []
    monitor = attnscope.Monitor(model, every=1, out=tmp_path, on_alarm=lambda alarm: closing[0].close())
    closing.append(monitor)
    optimizer = adam(model)
    trained(monitor, model, optimizer, 1, loss=1.0)
    with torch.no_grad():
        model.transformer.h[1].attn.c_attn.weight.mul_(1000)
    trained(monitor, model, optimizer, 3, loss=1.0)
    assert monitor.errors == 0
    run = attnscope.load_run(tmp_path)
    assert run.status == "finished"
    assert run.heads["step"].max() == run.alarms["step"].max() == monitor.steps
    attnscope.Monitor(model).close()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_monitor_is_not_copied(copied: Any) -> None:
    with pytest.raises(TypeError, match="neither copied nor pickled"):
        copied(attnscope.Monitor(gpt2()))


def test_a_state_before_the_first_step_is_refused() -> None:
    monitor = attnscope.Monitor(gpt2())
    monitor.load_state_dict(monitor.state_dict() | {"step": -5})
    assert (monitor.steps, monitor.errors) == (0, 1)
    assert "step -5" in str(monitor.last_error)


@pytest.mark.parametrize("line", ["[]", '{"step": "x", "name": "loss", "value": 1}', '{"step": 1e30}', "\x00\xff{"])
def test_a_damaged_line_of_numbers_is_left_out(line: str, tmp_path: Path) -> None:
    model = gpt2()
    monitor = attnscope.Monitor(model, every=1, out=tmp_path)
    trained(monitor, model, adam(model), 3, loss=2.0)
    monitor.close()
    file = tmp_path / "scalars.jsonl"
    whole = file.read_text("utf-8").splitlines()
    file.write_text("\n".join([whole[0], line, *whole[1:], ""]), "utf-8")
    run = attnscope.load_run(tmp_path)
    assert run.scalars.rows(named=True) == [json.loads(each) for each in whole]
