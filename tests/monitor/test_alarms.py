"""Alarms name the head, come once, and stay away from healthy heads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl
import pytest
import torch
from torch import nn
from training import HEADS, batches, gpt2, loss_of, train

import attnscope
from attnscope.errors import InputError
from attnscope.monitor import Alarm, AlarmThresholds, StopTraining
from attnscope.monitor.alarms import RULES, AlarmDetector, describe
from attnscope.monitor.run_files import HEADS as SCHEMA

HEALTHY = {
    "max_logit": 5.0, "logit_std": 1.0, "entropy_ratio": 0.6, "max_weight": 0.3, "participation": 9.0,
    "sink_weight": 0.1, "top_mass": 0.9, "separability": 0.6, "null_random": 0.1, "jacobian_norm": 0.2,
    "jacobian_bound": 0.25, "rows": 16, "length": 64.0, "finite": True, "logit_limit": 3e38, "set_rows": 16.0,
}  # fmt: skip
LINE = SCHEMA | {"finite": pl.Boolean, "logit_limit": pl.Float64, "set_rows": pl.Float64}


def alarms_of(course: Iterable[Mapping[str, Any]], **thresholds: float) -> list[Alarm]:
    """The alarms of one head whose measures differ from a healthy one's as given, one measured step after another."""
    detector = AlarmDetector(AlarmThresholds(**thresholds))
    alarms = []
    for step, changes in enumerate(course, 1):
        alarms += update(detector, step, changes)
    return alarms


def update(detector: AlarmDetector, step: int, changes: Mapping[str, Any]) -> list[Alarm]:
    line = {"step": step, "layer": 0, "head": 0} | HEALTHY | dict(changes)
    return detector.update(pl.DataFrame([line], schema=LINE))


# For each kind: measures that lead to it, and the step at which it is due.
COURSES: dict[str, tuple[list[dict[str, Any]], int]] = {
    "logit-limit": ([{"max_logit": value} for value in (300.0, 600.0, 900.0, 1200.0)], 4),
    "logit-jump": ([{"logit_std": value} for value in (0.5, 0.6, 15.0)], 3),
    "entropy-collapse": ([{"entropy_ratio": value} for value in (0.6, 0.5, 0.04)], 3),
    "dilution": ([{"entropy_ratio": value} for value in (1.0, 0.7, 0.99, 0.99, 0.99)], 5),
    "jacobian-budget": ([{"jacobian_norm": value} for value in (0.5, 2.5)], 2),
    "separability-null": ([{"separability": value} for value in (0.1, *[0.8] * 5, 0.12, 0.14, 0.11)], 9),
    "dead-head": ([{"sink_weight": 0.9995, "jacobian_norm": 5e-4}] * 3, 3),
    "not-finite": ([{}, dict.fromkeys(("max_logit", "entropy_ratio", "separability"), None) | {"finite": False}], 2),
}


def test_every_kind_has_a_course() -> None:
    assert set(COURSES) == set(RULES)


@pytest.mark.parametrize("kind", COURSES)
def test_a_head_that_goes_wrong_raises_its_alarm_once(kind: str) -> None:
    course, due = COURSES[kind]
    alarms = alarms_of([*course, *[course[-1]] * 5])
    assert [(alarm.step, alarm.kind) for alarm in alarms] == [(due, kind)]
    assert (alarms[0].layer, alarms[0].head) == (0, 0)
    assert alarms[0].advice


@pytest.mark.parametrize("kind", COURSES)
def test_an_alarm_comes_again_only_after_the_head_was_clearly_healthy_for_a_while(kind: str) -> None:
    course, due = COURSES[kind]
    again = due + 3 + (3 if kind in ("dilution", "separability-null", "dead-head") else 1)
    for healthy, steps in ((2, [due]), (3, [due, again])):
        alarms = alarms_of([*course, *[{}] * healthy, *[course[-1]] * 3])
        assert [(alarm.step, alarm.kind) for alarm in alarms] == [(step, kind) for step in steps]


@pytest.mark.parametrize(
    "course",
    [
        [{}] * 20,
        [{"entropy_ratio": 1.0, "logit_std": 0.02, "separability": 0.1}] * 20,  # as at the start
        [{"entropy_ratio": 0.9 * 0.7**step, "logit_std": 1.4**step} for step in range(20)],  # slowly, to one-hot
        [{"entropy_ratio": 1e-9, "jacobian_norm": 1e-9}] * 20,  # a previous-token head, from the first step
        [{"sink_weight": 0.98, "jacobian_norm": 0.02}] * 20,  # a head that mostly rests
        [{"entropy_ratio": None, "separability": None, "null_random": None}] * 20,  # rows of one key
        [{"entropy_ratio": value} for value in (0.5, 0.99, 0.5, 0.99, 0.99, 0.5)],
        [{"logit_std": value} for value in (0.02, 2.0, 0.02, 2.0)],
        [{"logit_std": value} for value in (0.0, 2.0, None, 5.0)],  # query weights of zero, then a step not measured
        [{"separability": value, "set_rows": 3.0} for value in (0.9, 0.9, 0.1, 0.1, 0.1, 0.1) * 10],  # three rows
        [{"sink_weight": 1.0, "jacobian_norm": 0.0, "length": 1.0}] * 20,  # attention to a single key
    ],
    ids=["steady", "start", "sharpening", "one-hot", "resting", "short", "noisy", "small", "zero", "few rows", "key"],
)
def test_healthy_heads_are_quiet(course: list[dict[str, Any]]) -> None:
    assert alarms_of(course) == []


def test_the_limit_of_logits_is_that_of_the_number_type_or_the_mask() -> None:
    detector = AlarmDetector(AlarmThresholds())
    same = {"step": 1, "head": 0} | HEALTHY | {"max_logit": 50.0}
    lines = [same | {"layer": layer, "logit_limit": limit} for layer, limit in ((0, 300.0), (1, 65504.0))]
    alarms = detector.update(pl.DataFrame(lines, schema=LINE))
    assert [(alarm.layer, alarm.kind, alarm.limit) for alarm in alarms] == [(0, "logit-limit", 30.0)]


@pytest.mark.parametrize(("others", "heads"), [(1.3, [2]), (6.0, [])], ids=["alone", "with the others"])
def test_small_logits_of_a_head_that_grow_alone_are_a_jump(others: float, heads: list[int]) -> None:
    detector = AlarmDetector(AlarmThresholds())
    alarms = []
    for step, growths in ((1, [1.0] * 5), (2, [others, others, 20.0, others, others])):
        lines = [
            {"step": step, "layer": 1, "head": head} | HEALTHY | {"logit_std": 0.05 * growth}
            for head, growth in enumerate(growths)
        ]
        alarms += detector.update(pl.DataFrame(lines, schema=LINE))
    assert [(alarm.step, alarm.head, alarm.kind) for alarm in alarms] == [(2, head, "logit-jump") for head in heads]


def test_thresholds_are_checked() -> None:
    with pytest.raises(InputError, match="threshold patience takes a positive number; received 0"):
        AlarmThresholds(patience=0)
    assert alarms_of(COURSES["jacobian-budget"][0], jacobian_budget=3) == []


@pytest.mark.parametrize("kind", COURSES)
def test_a_saved_state_goes_on_as_if_nothing_had_happened(kind: str) -> None:
    course, _ = COURSES[kind]
    course = [*course, {}, {}, {}, *course]
    whole = alarms_of(course)
    detector = AlarmDetector(AlarmThresholds())
    alarms = []
    for step, changes in enumerate(course, 1):
        alarms += update(detector, step, changes)
        state = json.loads(json.dumps(detector.state(), allow_nan=False))
        detector = AlarmDetector(AlarmThresholds())
        detector.load(state)
    assert alarms == whole


def test_many_alarms_of_a_step_are_described_in_one_line_for_each_kind() -> None:
    alarms = [Alarm(7, 0, head, kind, 0.5, 0.25, "advice") for head in range(5) for kind in ("dilution", "logit-limit")]
    assert describe(alarms) == [
        f"step 7: {kind} in L0H0 (0.5, limit 0.25), L0H1 (0.5, limit 0.25), L0H2 (0.5, limit 0.25) and 2 more heads: "
        "advice"
        for kind in ("logit-limit", "dilution")
    ]


def explode(model: nn.Module, layer: int, head: int) -> None:
    """Multiply the query weights of one head by 30."""
    size = model.config.n_embd // HEADS
    with torch.no_grad():
        projection = model.transformer.h[layer].attn.c_attn
        projection.weight[:, head * size : (head + 1) * size] *= 30
        projection.bias[head * size : (head + 1) * size] *= 30


def test_a_head_that_explodes_is_named_at_the_next_measured_step(caplog: pytest.LogCaptureFixture) -> None:
    model, told = gpt2(), []
    monitor = attnscope.Monitor(model, every=1, on_alarm=told.append)
    train(model, 3, monitor)
    assert told == []
    explode(model, 1, 2)
    train(model, 1, monitor)
    assert {(alarm.step, alarm.layer, alarm.head) for alarm in told} == {(4, 1, 2)}
    assert "logit-jump" in {alarm.kind for alarm in told}
    assert monitor.alarms.rows() == [tuple(alarm) for alarm in told]
    assert "step 4: logit-jump in L1H2" in caplog.text


def test_a_function_of_the_user_may_stop_the_training_and_do_no_other_harm() -> None:
    model = gpt2()

    def stop(alarm: Alarm) -> None:
        raise StopTraining(f"{alarm.kind} at step {alarm.step}")

    def fail(alarm: Alarm) -> None:
        raise ConnectionError("the chat is down")

    monitor = attnscope.Monitor(model, every=1, on_alarm=stop)
    train(model, 2, monitor)
    explode(model, 0, 1)
    with pytest.raises(StopTraining, match="at step 3"):
        train(model, 2, monitor)
    monitor.close()
    model = gpt2()
    monitor = attnscope.Monitor(model, every=1, on_alarm=fail)
    train(model, 2, monitor)
    explode(model, 0, 1)
    train(model, 2, monitor)
    assert monitor.errors == monitor.alarms.height > 0
    assert monitor.last_error == "ConnectionError: the chat is down"
    assert monitor.heads["step"].max() == 4


def test_alarms_do_not_change_the_training() -> None:
    def run(watched: bool) -> list[float]:
        model = gpt2()
        monitor = attnscope.Monitor(model, every=1) if watched else None
        explode(model, 0, 0)
        losses = train(model, 2, monitor).losses
        explode(model, 1, 0)
        return losses + train(model, 2, monitor).losses

    assert run(True) == run(False)
    assert loss_of(gpt2(), next(batches(1))).isfinite()
