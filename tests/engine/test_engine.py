"""The one loop over windows: its plan, its measurers, resuming, memory, and models in another process."""

from __future__ import annotations

import multiprocessing
import pickle
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from models import build, byte_tokenizer

from attnscope.capture.models import Model, ModelSource, load_model, plain_model
from attnscope.engine.next_token import next_token_logits
from attnscope.engine.parts import WindowRecord, merge_skipped
from attnscope.engine.run import LayerCall, run_inputs, run_windows
from attnscope.engine.windows import Forward, Positions, Window, plan_windows
from attnscope.progress import Step

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


class Memory:
    """Finished windows in a dictionary."""

    def __init__(self) -> None:
        self.windows: dict[int, Sums] = {}

    def get(self, window: int) -> Sums | None:
        return self.windows.get(window)

    def add(self, window: int, part: Sums) -> None:
        self.windows[window] = part


def last(length: int) -> tuple[int, ...]:
    return (length - 1,)


@pytest.fixture
def model() -> Model:
    return load_model(build("gpt2"), tokenizer=byte_tokenizer())


def test_one_forward_of_a_causal_model_serves_every_length(model: Model) -> None:
    assert plan_windows(model, TOKENS, (4, 8), last) == [
        Window(number, [Forward(tokens, {4: (3,), 8: (7,)})]) for number, tokens in enumerate(TOKENS)
    ]


def test_an_encoder_runs_once_for_each_length_between_its_special_tokens() -> None:
    encoder = load_model(build("bert"), tokenizer=byte_tokenizer(special=True))
    (window,) = plan_windows(encoder, [TOKENS[0][:6]], (4, 8), last)
    assert window.forwards == [
        Forward([256, 5, 6, 256], {4: (3,)}),
        Forward([256, 5, 6, 7, 8, 9, 10, 256], {8: (7,)}),
    ]


def test_a_plan_a_measurer_and_a_source_can_be_sent_to_another_process(model: Model) -> None:
    for thing in (plan_windows(model, TOKENS, (4, 8), last), Adding(), ModelSource(dtype="float64")):
        assert pickle.loads(pickle.dumps(thing)) == thing


def test_a_measurer_cannot_tell_a_text_from_tensors(model: Model) -> None:
    """All rows of the same tokens: as windows of a text, and as items of a batch."""
    windows = plan_windows(model, TOKENS, (8,), lambda length: tuple(range(length)))
    of_text = list(run_windows(model, windows, Adding()))
    inputs = {"input_ids": torch.tensor(TOKENS)}
    of_tensors = list(run_inputs(plain_model(model.module), inputs, Adding(), lambda length: tuple(range(length))))
    assert [part.number for part in of_text] == [part.number for part in of_tensors] == [0, 1]
    for a, b in zip(of_text, of_tensors, strict=True):
        assert a.layers == b.layers
        assert a.tokens == b.tokens == 8
        assert [row[:2] for row in a.rows] == [row[:2] for row in b.rows]
        assert [row[2] for row in a.rows] == pytest.approx([row[2] for row in b.rows], rel=1e-4, abs=1e-4)


def test_finished_windows_are_not_run_again(model: Model) -> None:
    windows = plan_windows(model, TOKENS, (4, 8), last)
    store, steps = Memory(), list[Step]()
    next(run_windows(model, windows, Adding(), parts=store))
    assert list(store.windows) == [0]
    parts = list(run_windows(model, windows, Adding(), progress=steps.append, parts=store))
    assert parts[0] is store.windows[0]
    layers = model.module.config.n_layer
    assert [(step.done, step.total, step.window) for step in steps] == [
        (layers + layer + 1, 2 * layers, 1) for layer in range(layers)
    ]


def test_a_model_in_training_is_measured_as_in_use_and_left_in_training(model: Model) -> None:
    """Fault 10."""
    windows = plan_windows(model, TOKENS, (8,), last)
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

    (part, _) = run_windows(model, plan_windows(model, TOKENS, (8,), lambda n: tuple(range(n))), Little())
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
