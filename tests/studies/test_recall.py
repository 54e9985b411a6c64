"""Train short, test long: tasks against loops over tokens, members trained alone, budgets, resuming, intervals."""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import scipy.stats
import torch
from rich.console import Console
from torch import Tensor

from attnscope import normalizers as nz
from attnscope.cli import run
from attnscope.errors import AttnscopeError, InputError
from attnscope.options import arguments
from attnscope.show import terminal
from attnscope.studies.recall import running, training
from attnscope.studies.recall.running import Cell, Plan, recall, summarize
from attnscope.studies.recall.tasks import CLASSES, DIRECTIONS, MQAR, TASKS, Batch, find_task
from attnscope.studies.recall.training import make_rule
from attnscope.studies.recall.verb import RecallOptions
from attnscope.studies.recall.view import budget_figure, recall_blocks

LENGTH = 23
PLAN = Plan(
    ("softmax", "lipmix"), ("needle",), budgets=(1.5, 6.0), seeds=2, length_ratios=(1, 16), effort=0.01, examples=7
)


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train in this process, which has one thread of torch, as a worker has."""

    def trained(cells: Sequence[Cell], workers: int) -> Iterator[tuple[Cell, dict[str, Any]]]:
        for cell in cells:
            yield cell, running.run_cell(cell)

    monkeypatch.setattr(running, "_trained", trained)


def drawn(name: str, length: int = LENGTH) -> Batch:
    return find_task(name).draw(torch.Generator().manual_seed(5), 13, length)


# Tasks: the answer from the tokens alone


def test_the_answer_of_max_is_the_class_of_the_largest_priority() -> None:
    batch = drawn("max")
    for tokens, target in zip(batch.tokens.tolist(), batch.target.tolist(), strict=True):
        best = max(tokens[:-1], key=lambda item: item[0])
        assert target == [best[1 : 1 + CLASSES].index(1.0)]


def test_the_answer_of_needle_is_the_class_of_an_item_near_the_query() -> None:
    task, batch = find_task("needle"), drawn("needle", length=97)
    found = []
    for tokens in batch.tokens.tolist():
        query = tokens[-1][:DIRECTIONS]
        near = max(tokens[:-1], key=lambda item: sum(a * b for a, b in zip(item, query, strict=False)))
        found.append([near[DIRECTIONS:-1].index(1.0)])
    assert task.best_guess(batch).tolist() == found
    assert float((torch.tensor(found) == batch.target).float().mean()) > 0.9  # noise hides few


def test_the_answer_of_needles_is_the_mean_over_the_items_near_the_query() -> None:
    batch = drawn("needles", length=61)
    for tokens, target in zip(batch.tokens.tolist(), batch.target.tolist(), strict=True):
        query = tokens[-1][:DIRECTIONS]
        order = sorted(tokens[:-1], key=lambda item: -sum(a * b for a, b in zip(item, query, strict=False)))
        assert target[0] == pytest.approx(sum(item[DIRECTIONS] for item in order[:4]) / 4, abs=1e-6)


def test_the_answer_of_mean_is_the_mean_of_all_numbers() -> None:
    batch = drawn("mean")
    for tokens, target in zip(batch.tokens.tolist(), batch.target.tolist(), strict=True):
        assert target[0] == pytest.approx(sum(item[DIRECTIONS] for item in tokens[:-1]) / LENGTH, abs=1e-6)


def test_the_answer_of_lookback_is_three_tokens_before_the_query() -> None:
    batch = drawn("lookback")
    assert batch.tokens[:, LENGTH - 3, :CLASSES].argmax(-1)[:, None].equal(batch.target)


def test_the_answers_of_mqar_are_the_values_after_the_keys() -> None:
    task, batch = MQAR(), drawn("mqar", length=37)
    for row, target in zip(batch.tokens.argmax(-1).tolist(), batch.target.tolist(), strict=True):
        assert all(token < task.keys for token in row[-task.pairs :])
        pairs = {row[i]: row[i + 1] - task.keys for i in range(len(row) - task.pairs) if row[i] < task.keys}
        assert len(pairs) == task.pairs
        assert [pairs[key] for key in row[-task.pairs :]] == target


@pytest.mark.parametrize("name", TASKS)
def test_a_perfect_output_is_right_and_one_that_is_off_is_not(name: str) -> None:
    task, batch = find_task(name), drawn(name)
    if task.outputs == 1:
        good, bad = batch.target[..., None], batch.target[..., None] + 0.2
    else:
        good = torch.nn.functional.one_hot(batch.target, CLASSES).float()
        bad = -good
    assert bool(task.right(task.answer(good), batch.target).all())
    assert not bool(task.right(task.answer(bad), batch.target).any())


def test_training_validation_and_test_examples_are_different() -> None:
    streams = [training.stream(seed, purpose) for seed in (0, 1) for purpose in (1, 2, 3)]
    first = {tuple(torch.rand(3, generator=one).tolist()) for one in streams}
    assert len(first) == 6


# Ensembles


@pytest.mark.parametrize("name", ["needle", "mqar"])
def test_a_member_is_the_model_trained_alone(name: str) -> None:
    task = find_task(name)
    setting = training.Setting(task, make_rule("lipmix", 3.0), "rope", True)
    together = training.train(setting, [4, 9], (1e-3, 1e-2), 6)
    alone = training.train(setting, [9], (1e-2,), 6)
    for key, parameter in alone.parameters.items():
        member = together.parameters[key].view(4, -1)[3]
        torch.testing.assert_close(member, parameter.view(-1), rtol=1e-3, atol=2e-5)


def test_some_members_of_an_ensemble_give_the_same_outputs() -> None:
    task = find_task("needle")
    setting = training.Setting(task, make_rule("ssmax", math.inf), "alibi", False)
    model = training.train(setting, [1, 2], (1e-2,), 3)
    tokens = torch.stack([drawn("needle").tokens] * 2)
    torch.testing.assert_close(model.chosen([1]).forward(tokens[1:])[0], model.forward(tokens)[0][1:])


def test_a_query_attends_to_every_item_and_never_to_itself() -> None:
    task = find_task("max")
    model = training.train(training.Setting(task, make_rule("softmax", math.inf), "none", True), [0], (1e-2,), 1)
    tokens = drawn("max").tokens[None]
    _, attended = model.forward(tokens)
    assert attended.weights.shape[-1] == LENGTH


def test_the_sequence_of_mqar_is_causal() -> None:
    setting = training.Setting(MQAR(), make_rule("sparsemax", math.inf), "none", True)
    model = training.train(setting, [0], (1e-2,), 1)
    tokens = drawn("mqar").tokens[None]
    changed = tokens.clone()
    changed[:, :, -1] = tokens[:, :, -1].roll(1, -1)
    before, after = model.forward(tokens)[0], model.forward(changed)[0]
    torch.testing.assert_close(before[:, :, :-1], after[:, :, :-1])
    assert not torch.allclose(before[:, :, -1], after[:, :, -1])


# Budgets

RULES = (
    "softmax",
    "ssmax",
    "power_softmax",
    "entmax15",
    "asentmax",
    "sparsemax",
    "lipmax",
    "lipmix",
    "entmax:alpha=1.3",
)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("budget", [0.7, 5.0])
def test_no_scale_takes_the_jacobian_over_the_budget(name: str, budget: float) -> None:
    rule = make_rule(name, budget)
    module = rule.module(1)
    normalizer = rule.normalizer(module)
    generator = torch.Generator().manual_seed(3)
    for n in (2, 17):
        rows = torch.randn(9, n, generator=generator) * torch.logspace(-4, 0, 9)[:, None]
        rows[:, 1] = rows[:, 0]  # ties are where a Jacobian is largest
        for start in (0.3, 40.0, 1e4):
            scale = rule.within_budget(normalizer, torch.full((1, 1, 1), start), torch.tensor([[float(n)]])).detach()

            def weights(z: Tensor, scale: Tensor = scale) -> Tensor:
                return normalizer.weights(z.view(1, 1, -1) * scale).view(-1)

            for row in rows:
                jacobian = torch.autograd.functional.jacobian(weights, row)
                assert float(torch.linalg.matrix_norm(jacobian, 2)) <= budget * (1 + 1e-4)


def test_a_large_budget_leaves_the_scale_as_it_is() -> None:
    rule = make_rule("sparsemax", 1e3)
    scale = torch.full((2, 1, 1), 3.0)
    torch.testing.assert_close(rule.within_budget(rule.fixed, scale, torch.tensor([[9.0]])), scale)


def test_the_weight_of_the_answer_is_within_the_limit_of_theorem_s() -> None:
    task = find_task("needle")
    for name in ("softmax", "sparsemax", "lipmix"):
        model = training.train(training.Setting(task, make_rule(name, 2.0), "none", True), [0, 1], (1e-2,), 20)
        for line in training.test(model, task, [0, 1], 64, 32):
            assert line["answer_weight"] <= line["answer_weight_limit"] + 1e-6
            assert line["jacobian_norm"] <= 2.0 * (1 + 1e-4)


def test_rules_that_theorem_s_says_nothing_about_have_no_limit() -> None:
    task = find_task("max")
    model = training.train(training.Setting(task, make_rule("sigmoid", math.inf), "none", True), [0], (1e-2,), 1)
    (line,) = training.test(model, task, [0], 16, 8)
    assert 0 < line["answer_weight"] < 1
    assert line["answer_weight_limit"] is None


# Runs


def test_a_resumed_run_has_the_table_of_an_uninterrupted_one(
    inline: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = recall(PLAN, out=tmp_path / "whole", progress=False)
    finished: list[Cell] = []

    def interrupted(cells: Sequence[Cell], workers: int) -> Iterator[tuple[Cell, dict[str, Any]]]:
        for cell in cells:
            if len(finished) == 3:
                raise KeyboardInterrupt
            finished.append(cell)
            yield cell, running.run_cell(cell)

    inner = running._trained
    monkeypatch.setattr(running, "_trained", interrupted)
    with pytest.raises(KeyboardInterrupt):
        recall(PLAN, out=tmp_path / "parts", progress=False)
    steps: list[Any] = []
    monkeypatch.setattr(running, "_trained", inner)
    resumed = recall(PLAN, out=tmp_path / "parts", progress=steps.append)
    assert steps[0].done == 3
    assert resumed.table.equals(whole.table)
    assert resumed.means.equals(whole.means)
    assert (tmp_path / "parts" / "recall.parquet").read_bytes() == (tmp_path / "whole" / "recall.parquet").read_bytes()


def test_worker_processes_give_the_same_table(inline: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = running.changed(PLAN, budgets=(6.0,), effort=0.002)
    here = recall(plan, out=tmp_path / "here", progress=False)
    monkeypatch.undo()
    assert recall(plan, out=tmp_path / "workers", workers=2, progress=False).table.equals(here.table)


def test_a_worker_that_dies_is_an_error_and_loses_nothing_that_is_finished(tmp_path: Path) -> None:
    file = tmp_path / "dies.py"
    file.write_text(
        "import multiprocessing, os, torch\n"
        "from attnscope.normalizers import Sparsemax\n"
        "class Dies(Sparsemax):\n"
        "    def weights(self, logits, visible=None):\n"
        "        if multiprocessing.parent_process() is not None:\n"
        "            os._exit(9)\n"
        "        return super().weights(logits, visible)\n"
    )
    plan = running.changed(PLAN, budgets=(6.0,), effort=0.002, normalizers=("softmax", f"{file}:Dies"))
    with pytest.raises(AttnscopeError, match="a worker process ended while it was training"):
        recall(plan, out=tmp_path / "out", workers=1, progress=False)
    assert len(list((tmp_path / "out" / "cells").glob("*.json"))) == 1


def test_workers_end_with_the_process_that_was_killed(tmp_path: Path) -> None:
    file, pid = tmp_path / "waits.py", tmp_path / "pid"
    file.write_text(
        "import multiprocessing, os, pathlib, time\n"
        "from attnscope.normalizers import Sparsemax\n"
        "class Waits(Sparsemax):\n"
        "    def weights(self, logits, visible=None):\n"
        "        if multiprocessing.parent_process() is not None:\n"
        f"            pathlib.Path({str(pid)!r}).write_text(str(os.getpid()))\n"
        "            time.sleep(600)\n"
        "        return super().weights(logits, visible)\n"
    )
    command = ["recall", "--tasks", "max", "--normalizers", f"{file}:Waits", "--budgets", "none", "--workers", "1"]
    process = subprocess.Popen([sys.executable, "-m", "attnscope", *command, "--out", str(tmp_path / "out")])
    wait_until(pid.is_file)
    worker = int(pid.read_text())
    process.kill()
    process.wait()
    wait_until(lambda: not alive(worker))


def wait_until(holds: Callable[[], bool]) -> None:
    for _ in range(600):
        if holds():
            return
        time.sleep(0.1)
    raise AssertionError("not within a minute")


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return not Path(f"/proc/{pid}/stat").is_file() or " Z " not in Path(f"/proc/{pid}/stat").read_text()


def test_a_class_that_breaks_a_contract_is_not_trained(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("class Half:\n    def weights(self, logits, visible=None):\n        return logits * 0 + 0.5\n")
    plan = running.changed(PLAN, normalizers=(f"{file}:Half",), budgets=(math.inf,))
    with pytest.raises(InputError, match=r"breaks .* sum to 3\.5, not to one"):
        recall(plan, out=tmp_path / "out", progress=False)


def test_other_seeds_give_other_numbers(inline: None, tmp_path: Path) -> None:
    plan = running.changed(PLAN, normalizers=("softmax",), budgets=(math.inf,), tasks=("mean",), examples=64)
    one, other = (
        recall(running.changed(plan, first_seed=first), out=tmp_path / str(first), progress=False) for first in (0, 50)
    )
    assert one.table["seed"].to_list() == [0, 1, 0, 1]
    assert one.table["accuracy"].to_list() != other.table["accuracy"].to_list()


def test_the_learning_rate_has_the_smallest_validation_loss(inline: None, tmp_path: Path) -> None:
    result = recall(PLAN, out=tmp_path, progress=False)
    for cell in result.run["cells"]:
        losses = cell["validation_losses"]
        assert cell["learning_rate"] == running.RATES[losses.index(min(losses))]
    alone = recall(running.changed(PLAN, learning_rates=(0.01,)), out=tmp_path / "alone", progress=False)
    second = [cell["validation_losses"][1] for cell in result.run["cells"]]
    assert [cell["validation_losses"][0] for cell in alone.run["cells"]] == pytest.approx(second, rel=1e-3)
    assert set(alone.table["learning_rate"]) == {0.01}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"normalizers": ("hardmax",)}, "no normalizer is named 'hardmax'"),
        ({"tasks": ("sort",)}, "no task is named 'sort': choose from max, needle"),
        ({"positions": ("learned",)}, "no position encoding is named 'learned'"),
        ({"budgets": (-1.0,)}, "budgets takes positive numbers, or none; received -1.0"),
        ({"budgets": (math.nan,)}, "budgets takes positive numbers"),
        ({"normalizers": ("topk",)}, "topk has no Lipschitz constant"),
        ({"seeds": 1}, "seeds"),
        ({"length_ratios": (4, 16)}, "length_ratios must contain 1"),
        ({"effort": 0.0}, "effort takes a positive number"),
        ({"learning_rates": (0.01, -0.01)}, "learning_rates takes positive numbers; received -0.01"),
        ({"budgets": (3.0, 3.0)}, "budgets takes one or more, each once"),
        ({"normalizers": ("softmax", "softmax")}, "normalizers takes one or more, each once"),
        ({"qk_norm": (False,)}, "a budget needs QK-norm"),
    ],
)
def test_a_plan_that_cannot_be_run_is_refused_before_anything_is_trained(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        recall(running.changed(PLAN, **settings), out=tmp_path / "never", progress=False)
    assert not (tmp_path / "never").exists()


# Summary, terminal, picture


def lines(**accuracies: Sequence[float]) -> pl.DataFrame:
    fixed = {"task": "max", "position_encoding": "none", "qk_norm": True, "learning_rate": 0.01, "ceiling": 1.0}
    numbers = {"jacobian_norm": 1.0, "answer_weight": 0.5, "answer_weight_limit": 0.7}
    rows = [
        fixed | numbers | {"normalizer": name, "budget": budget, "seed": seed, "length": 16 * ratio,
                           "length_ratio": ratio, "accuracy": value / ratio}
        for name, values in accuracies.items()
        for budget in (2.0, 8.0)
        for ratio in (1, 16)
        for seed, value in enumerate(values)
    ]  # fmt: skip
    return pl.DataFrame(rows, schema=running.TABLE)


@pytest.mark.parametrize("values", [(0.2, 0.5, 0.3), (0.9, 0.95), (0.1, 0.2, 0.3, 0.4, 0.7)])
def test_intervals_are_those_of_student(values: Sequence[float]) -> None:
    line = summarize(lines(one=values)).filter(length_ratio=1).to_dicts()[0]
    low, high = scipy.stats.t.interval(
        0.95, len(values) - 1, loc=sum(values) / len(values), scale=scipy.stats.sem(values)
    )
    assert line["accuracy_low"] == pytest.approx(low, abs=1e-3)
    assert line["accuracy_high"] == pytest.approx(high, abs=1e-3)


def test_the_best_are_those_whose_difference_by_seed_may_be_zero() -> None:
    summary = summarize(lines(best=(0.8, 0.6, 0.7), near=(0.79, 0.61, 0.69), lower=(0.7, 0.5, 0.6)))
    found = summary.filter(length_ratio=1, budget=2.0)
    # `lower` has overlapping intervals, but it is behind by the same in every seed.
    assert dict(zip(found["normalizer"], found["among_best"], strict=True)) == {
        "best": True,
        "near": True,
        "lower": False,
    }


def test_the_picture_has_a_line_for_each_normalizer_below_the_frontier() -> None:
    figure = budget_figure(summarize(lines(softmax=(0.2, 0.3), lipmix=(0.7, 0.8))))
    assert figure is not None
    assert figure.data["normalizer"].unique(maintain_order=True).to_list() == ["softmax", "lipmix"]
    assert bool((figure.data["answer_weight"] <= figure.data["answer_weight_limit"]).all())
    assert [mark.label for mark, _ in figure.rows[1][0].series] == ["softmax", "lipmix", "limit of Theorem S"]
    assert budget_figure(summarize(lines(softmax=(0.2, 0.3)).filter(budget=2.0))) is None


def test_the_tables_fit_80_columns() -> None:
    shown = io.StringIO()
    table = lines(**{"entmax:alpha=1.3": (1.0, 0.2), "power_softmax": (0.9, 0.8)}).with_columns(ceiling=0.9)
    terminal.write(Console(file=shown, width=80), recall_blocks(summarize(table)))
    assert max(len(line.rstrip()) for line in shown.getvalue().splitlines()) <= 80
    assert "90.0" in shown.getvalue()


def test_the_command_writes_what_it_prints(inline: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = "--quick --tasks max --normalizers softmax --seeds 2 --effort 0.002 --examples 5 --length-ratios 1,16"
    assert run(["recall", *options.split(), "--out", str(tmp_path), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert set(answer["files"]) >= {"recall.parquet", "summary.parquet", "run.json", "budget.svg"}
    assert answer["summary"] == pl.read_parquet(tmp_path / "summary.parquet").to_dicts()
    assert pl.read_parquet(tmp_path / "recall.parquet").height == 3 * 2 * 2
    assert nz.parse("softmax").name == answer["summary"][0]["normalizer"]


def test_options_of_the_command_are_the_fields_of_the_plan() -> None:
    assert {field.name for field in fields(RecallOptions)} == {field.name for field in fields(Plan)}
    assert set(arguments(RecallOptions()).values()) == {None}
