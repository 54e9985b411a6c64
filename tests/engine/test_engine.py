"""The one loop over windows: its plan, its measurers, resuming, memory, and models in another process."""

from __future__ import annotations

import multiprocessing
import pickle
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from models import build, byte_tokenizer

from attnscope.capture.models import Model, ModelSource, load_model, plain_model
from attnscope.engine.blocks import Blocks, Failure, LocalEngine, Work, block_size, run_all, run_blocks
from attnscope.engine.run import (
    Forward,
    LayerCall,
    Positions,
    Window,
    WindowRecord,
    merge_skipped,
    plan_windows,
    run_inputs,
    run_windows,
)
from attnscope.progress import Step
from attnscope.swapping.changes import next_token_logits

TOKENS = [[5, 6, 7, 8, 9, 10, 11, 12], [12, 11, 10, 9, 8, 7, 6, 5]]


@dataclass
class Sums(WindowRecord):
    """The sum of the visible logits of each wanted row."""

    rows: list[tuple[int, int, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Adding:
    """A measurer of a few lines."""

    vectors: tuple[Any, ...] = ("value",)

    def start(self, number: int) -> Sums:
        return Sums(number)

    def measure(self, record: Sums, layer: LayerCall, positions: Positions) -> None:
        for group in positions.values():
            logits, visible = layer.call.logits(group), layer.call.visible(group)
            sums = torch.where(visible, logits, 0).sum((0, 2)).tolist()
            record.rows += [(layer.number, p, value) for p, value in zip(group, sums, strict=True)]

    def finish(self, record: Sums) -> Sums:
        return record


def last(length: int) -> tuple[int, ...]:
    return (length - 1,)


def planned(model: Model, lengths: tuple[int, ...], rows: Any) -> list[Window]:
    plan = plan_windows(model, lengths, rows)
    return [plan.window(number, tokens) for number, tokens in enumerate(TOKENS)]


@pytest.fixture
def model() -> Model:
    return load_model(build("gpt2"), tokenizer=byte_tokenizer())


def test_one_forward_of_a_causal_model_serves_every_length(model: Model) -> None:
    plan = plan_windows(model, (4, 8), last)
    assert plan.window(3, TOKENS[0]) == Window(3, [Forward(TOKENS[0], {4: (3,), 8: (7,)})])
    assert (plan.forwards, plan.rows) == (1, 2)


def test_an_encoder_runs_once_for_each_length_between_its_special_tokens() -> None:
    encoder = load_model(build("bert"), tokenizer=byte_tokenizer(special=True))
    window = plan_windows(encoder, (4, 8), last).window(0, TOKENS[0][:6])
    assert window.forwards == [
        Forward([256, 5, 6, 256], {4: (3,)}),
        Forward([256, 5, 6, 7, 8, 9, 10, 256], {8: (7,)}),
    ]


def test_a_plan_a_measurer_and_a_source_can_be_sent_to_another_process(model: Model) -> None:
    work = Work(plan_windows(model, (4, 8), last), Adding(), list)
    for thing in (work, ModelSource(dtype="float64")):
        assert pickle.loads(pickle.dumps(thing)) == thing


def test_a_measurer_cannot_tell_a_text_from_tensors(model: Model) -> None:
    """All rows of the same tokens: as windows of a text, and as items of a batch."""
    windows = planned(model, (8,), lambda length: tuple(range(length)))
    of_text = list(run_windows(model, windows, Adding()))
    inputs = {"input_ids": torch.tensor(TOKENS)}
    of_tensors = list(run_inputs(plain_model(model.module), inputs, Adding(), lambda length: tuple(range(length))))
    assert [part.number for part in of_text] == [part.number for part in of_tensors] == [0, 1]
    for a, b in zip(of_text, of_tensors, strict=True):
        assert a.layers == b.layers
        assert a.tokens == b.tokens == 8
        assert [row[:2] for row in a.rows] == [row[:2] for row in b.rows]
        assert [row[2] for row in a.rows] == pytest.approx([row[2] for row in b.rows], rel=1e-4, abs=1e-4)


def test_finished_blocks_are_not_run_again(model: Model) -> None:
    work, blocks = Work(plan_windows(model, (4, 8), last), Adding(), list), Blocks(np.array(TOKENS))
    steps = list[Step]()
    done = dict(run_blocks(LocalEngine(model), work, blocks, finished=[0], progress=steps.append))
    assert list(done) == [1]
    layers = model.module.config.n_layer
    assert [(step.done, step.total, step.window) for step in steps] == [
        (layers + layer + 1, 2 * layers, 1) for layer in range(layers)
    ]


class FailingError(Exception):
    pass


@dataclass(frozen=True)
class Failing(Adding):
    """Fails on some windows."""

    windows: tuple[int, ...] = ()

    def start(self, number: int) -> Sums:
        if number in self.windows:
            raise FailingError(f"window {number}\nand more")
        return super().start(number)


def test_a_block_that_fails_is_reported_and_the_others_go_on(model: Model) -> None:
    """Fault 34."""
    blocks = Blocks(np.array(TOKENS * 2))
    outcomes = dict(run_blocks(LocalEngine(model), failing_on(model, 0, 2), blocks))
    assert {number for number, outcome in outcomes.items() if isinstance(outcome, Failure)} == {0, 2}
    assert outcomes[2].reason == "FailingError: window 2"
    with pytest.raises(FailingError, match="window 1"):
        run_all(LocalEngine(model), failing_on(model, 1), blocks)


@pytest.mark.parametrize("windows", [1, 4])
def test_a_run_is_given_up_if_its_first_blocks_all_fail(model: Model, windows: int) -> None:
    blocks = Blocks(np.array((TOKENS * 3)[:windows]))
    steps = list[Step]()
    with pytest.raises(FailingError, match="window 0"):
        list(run_blocks(LocalEngine(model), failing_on(model, 0, 1, 2), blocks, progress=steps.append))
    assert not steps  # the other windows are not run


def failing_on(model: Model, *windows: int) -> Work[Sums, list[Sums]]:
    return Work(plan_windows(model, (4, 8), last), Failing(windows=windows), list)


def test_blocks_hold_all_windows_once_and_their_size_depends_on_the_plan_alone() -> None:
    blocks = Blocks(np.arange(35).reshape(7, 5), 3)
    assert [list(blocks.span(number)) for number in range(len(blocks))] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [(blocks[n].number, blocks[n].first, blocks[n].tokens[:, 0].tolist()) for n in (0, 2)] == [
        (0, 0, [0, 5, 10]),
        (2, 6, [30]),
    ]
    assert [block_size(windows, 100) for windows in (1, 64, 65, 640, 10_000)] == [1, 1, 2, 10, 32]
    assert [block_size(10_000, lines) for lines in (25_000, 10**7)] == [10, 1]


def test_a_model_in_training_is_measured_as_in_use_and_left_in_training(model: Model) -> None:
    """Fault 10."""
    windows = planned(model, (8,), last)
    rows = [part.rows for part in run_windows(model, windows, Adding())]
    model.module.train()
    run = run_windows(model, windows, Adding())
    assert next(run).rows == rows[0]
    assert model.module.training  # between windows too


def test_blocks_are_halved_when_memory_runs_out_and_a_layer_without_room_is_skipped(model: Model) -> None:
    """Fault 16."""
    sizes: list[int] = []

    class Little(Adding):
        def measure(self, record: Sums, layer: LayerCall, positions: Positions) -> None:
            def block(some: tuple[int, ...]) -> None:
                sizes.append(len(some))
                if len(some) > 3 or layer.number == 1:
                    raise MemoryError

            fits = layer.in_blocks(record, positions[8], block, budget=2**20, copies=1)
            assert fits == (layer.number != 1)

    (part, _) = run_windows(model, planned(model, (8,), lambda n: tuple(range(n))), Little())
    assert sizes[:6] == [8, 4, 2, 2, 2, 2]
    assert {layer for layer, _ in part.skipped} == {1}
    assert set(part.skipped.values()) == {"out of memory on a single row of 8 keys"}


def test_the_first_window_that_lacks_a_head_gives_the_reason() -> None:
    windows = [WindowRecord(n, skipped={(1, 2): f"reason {n}", (0, n): "other"}) for n in (0, 1)]
    merged = merge_skipped(window.skipped_heads() for window in windows)
    assert list(merged) == [(0, 0), (0, 1), (1, 2)]
    assert merged[1, 2] == {"layer": 1, "head": 2, "window": 0, "reason": "reason 0"}


def test_logits_of_some_rows_are_those_of_all(model: Model) -> None:
    tokens, rows = torch.tensor(TOKENS[0]), torch.tensor([1, 6])
    with torch.no_grad():
        whole = next_token_logits(model.module, tokens)
        torch.testing.assert_close(next_token_logits(model.module, tokens, rows), whole[rows])


def test_a_source_loads_the_same_model_again(model_folder: Any) -> None:
    model = load_model(model_folder)
    assert model.source == ModelSource(str(model_folder))
    assert load_model(build("gpt2"), tokenizer=byte_tokenizer()).source is None
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        elsewhere = pool.apply(_loaded_sum, (model.source,))
    assert elsewhere == _parameter_sum(model)


def _loaded_sum(source: ModelSource) -> float:
    return _parameter_sum(source.load())


def _parameter_sum(model: Model) -> float:
    return sum(float(parameter.detach().double().sum()) for parameter in model.module.parameters())
