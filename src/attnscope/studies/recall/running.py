"""`recall`: a grid of tasks, normalizers, position encodings and budgets, trained cell by cell in worker processes.

A cell is one ensemble: all seeds and learning rates of one setting. Its result is a file that is named by a digest of
everything that determines its numbers, so that an interrupted run goes on where it stopped, and a run with more
normalizers in the same folder trains only those. Every cell runs in one thread of its own process: the numbers do not
depend on how many workers there are.
"""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from attnscope import __version__
from attnscope.errors import AttnscopeError, InputError, OutputError, parameter, shown, whole_number
from attnscope.intervals import student_deviations
from attnscope.progress import Progress, Step, reporting
from attnscope.show.result import Result
from attnscope.store.folders import as_file, output_folder, without_infinities, write_all
from attnscope.studies.recall.tasks import Position, find_task

if TYPE_CHECKING:
    from attnscope.show.blocks import Block

NORMALIZERS = ("softmax", "ssmax", "power_softmax", "entmax15", "asentmax", "sparsemax", "lipmax", "lipmix")
SCHEMA = 3  # of the cells: higher whenever the same setting gives other numbers
CELLS = "cells"
POSITIONS: tuple[Position, ...] = ("none", "rope", "alibi")
RATES = (3e-3, 1e-2, 3e-2)
_SECONDS_BETWEEN_LOOKS = 0.5


@dataclass(frozen=True)
class Plan:
    """What to train and test; the defaults are those of `attnscope recall`, `QUICK` those of `--quick`."""

    normalizers: tuple[str, ...] = NORMALIZERS
    tasks: tuple[str, ...] = ("max", "needle", "needles", "mean", "lookback", "mqar")
    positions: tuple[Position, ...] | None = None  # None: each task's default
    qk_norm: tuple[bool, ...] = (True,)
    budgets: tuple[float, ...] = (math.inf, 1.5, 3.0, 6.0, 12.0)
    seeds: int = 5
    first_seed: int = 0
    length_ratios: tuple[int, ...] = (1, 4, 16, 64)
    effort: float = 1.0  # of the steps of each task
    examples: int = 1024  # tested at each length, for each seed
    learning_rates: tuple[float, ...] = RATES  # the best of them is chosen for each setting

    def cells(self) -> list[Cell]:
        """The cells, in the order of the table."""
        found = []
        for task, budget, qk_norm in product(self.tasks, self.budgets, self.qk_norm):
            for position in self.positions or (find_task(task).position,):
                seeds = tuple(range(self.first_seed, self.first_seed + self.seeds))
                steps = max(1, round(find_task(task).steps * self.effort))
                tested = (self.length_ratios, self.examples, self.learning_rates)
                found += [
                    Cell(task, name, position, qk_norm, budget, seeds, steps, *tested)
                    for name in self.normalizers
                    if qk_norm or budget == math.inf  # without QK-norm a budget on the logits bounds nothing
                ]
        return found


QUICK = Plan(
    normalizers=("softmax", "ssmax", "entmax15", "sparsemax", "lipmax", "lipmix"),
    tasks=("max", "needle", "mean"),
    budgets=(math.inf, 1.5, 6.0),
    seeds=3,
    length_ratios=(1, 16, 64),
    examples=512,
)


@dataclass(frozen=True)
class Cell:
    """One ensemble, and how it is tested."""

    task: str
    normalizer: str
    position: Position
    qk_norm: bool
    budget: float
    seeds: tuple[int, ...]
    steps: int
    length_ratios: tuple[int, ...]
    examples: int
    learning_rates: tuple[float, ...] = RATES

    def identity(self) -> dict[str, Any]:
        """Everything that determines its numbers."""
        from attnscope.normalizers.specs import source_of

        known = {"schema": SCHEMA, "attnscope": __version__, "source": source_of(self.normalizer)}
        return without_infinities(known | asdict(self))

    def file(self) -> str:
        """The name of the file with its result."""
        text = json.dumps(self.identity(), sort_keys=True)
        return f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"


def run_cell(cell: Cell) -> dict[str, Any]:
    """Train the members, choose the learning rate on validation examples, and test the members that have it."""
    from attnscope.studies.recall.training import Setting, make_rule, test, train, validation_losses

    begin = time.process_time()
    task = find_task(cell.task)
    setting = Setting(task, make_rule(cell.normalizer, cell.budget), cell.position, cell.qk_norm)
    rates = cell.learning_rates
    model = train(setting, cell.seeds, rates, cell.steps)
    losses = validation_losses(model, task, cell.seeds, len(rates)).view(len(cell.seeds), len(rates))
    mean_losses = losses.mean(0)
    chosen = int(mean_losses.argmin())
    best = model.chosen([index * len(rates) + chosen for index in range(len(cell.seeds))])
    lines = [
        {"seed": seed, "length": task.length * ratio, "length_ratio": ratio, **line}
        for ratio in cell.length_ratios
        for seed, line in zip(cell.seeds, test(best, task, cell.seeds, task.length * ratio, cell.examples), strict=True)
    ]
    return without_infinities(
        {
            "learning_rate": rates[chosen],
            "validation_losses": mean_losses.tolist(),
            "processor_seconds": round(time.process_time() - begin, 2),
            "lines": lines,
        }
    )


TABLE = {
    "task": pl.String, "normalizer": pl.String, "position_encoding": pl.String, "qk_norm": pl.Boolean,
    "budget": pl.Float64, "learning_rate": pl.Float64, "seed": pl.Int64, "length": pl.Int64, "length_ratio": pl.Int64,
    "accuracy": pl.Float64, "ceiling": pl.Float64, "jacobian_norm": pl.Float64, "answer_weight": pl.Float64,
    "answer_weight_limit": pl.Float64,
}  # fmt: skip


KEYS = ("task", "position_encoding", "qk_norm", "budget", "length", "length_ratio", "normalizer")


def half_width(deviation: float, seeds: int) -> float:
    """Half the 95% interval of a mean over seeds, from their standard deviation."""
    return student_deviations(seeds - 1) * deviation / math.sqrt(seeds)


def summarize(table: pl.DataFrame) -> pl.DataFrame:
    """One line for each setting and length: the mean over seeds, its 95% interval, and whether it is among the best.

    `among_best` is whether, over the same seeds and test examples, the interval of the difference to the normalizer
    with the highest mean contains zero.
    """
    means = table.group_by(KEYS, maintain_order=True).agg(
        pl.len().alias("seeds"),
        pl.col("accuracy").mean(),
        pl.col("accuracy").std().alias("deviation"),
        pl.col("ceiling").mean(),
        pl.col("jacobian_norm").max(),
        pl.col("answer_weight").mean(),
        pl.col("answer_weight_limit").mean(),
        pl.col("accuracy").alias("by_seed"),
    )
    lines = means.to_dicts()
    best: dict[tuple[object, ...], list[float]] = {}
    for line in sorted(lines, key=lambda line: line["accuracy"]):
        best[tuple(line[key] for key in KEYS[:-1])] = line["by_seed"]
    for line in lines:
        half = half_width(line.pop("deviation"), line["seeds"])
        line["accuracy_low"], line["accuracy_high"] = line["accuracy"] - half, line["accuracy"] + half
        differences = [b - a for a, b in zip(line.pop("by_seed"), best[tuple(line[k] for k in KEYS[:-1])], strict=True)]
        mean = sum(differences) / len(differences)
        deviation = math.sqrt(sum((d - mean) ** 2 for d in differences) / (len(differences) - 1))
        line["among_best"] = mean <= half_width(deviation, len(differences)) + 1e-12
    return pl.DataFrame(lines, schema_overrides={"budget": pl.Float64, "answer_weight": pl.Float64,
                                                 "answer_weight_limit": pl.Float64})  # fmt: skip


@dataclass(frozen=True, repr=False)
class Recall(Result):
    """A line for each setting, seed and length; the same as means over seeds with intervals; the record of the run."""

    table: pl.DataFrame
    means: pl.DataFrame
    run: dict[str, Any]

    def write(self, folder: Path) -> None:
        """Write the tables and the record into a folder that is locked already."""
        tables = {"recall.parquet": self.table.write_parquet, "summary.parquet": self.means.write_parquet}
        write_all(folder, {**tables, "run.json": as_file(self.run)})

    def blocks(self, verbose: bool = False) -> list[Block]:
        """Accuracies by length, for each task and budget."""
        from attnscope.studies.recall.view import recall_blocks

        return recall_blocks(self.means)

    @classmethod
    def load(cls, folder: str | Path) -> Recall:
        """Read a run that was finished before."""
        path = Path(folder)
        try:
            run = json.loads((path / "run.json").read_text("utf-8"))
            table = pl.read_parquet(path / "recall.parquet", schema=TABLE)
            return cls(table, pl.read_parquet(path / "summary.parquet"), run)
        except (OSError, ValueError, RecursionError, pl.exceptions.PolarsError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise OutputError(f"{str(path)!r} is not a readable recall run: {reason}; run it again") from error


def recall(plan: Plan = QUICK, *, out: str | Path, workers: int | None = None, progress: Progress = None) -> Recall:
    """Train small models with each normalizer at a short length, and test them far beyond it.

    >>> from attnscope.studies.recall.running import Plan, recall
    >>> plan = Plan(normalizers=("softmax",), tasks=("max",), budgets=(3.0,), seeds=2, effort=0.01, examples=8)
    >>> recall(plan, out="runs/doc", workers=1, progress=False).means.height  # doctest: +SKIP
    4

    Parameters
    ----------
    plan
        What to train and test. Default: that of `attnscope recall --quick`.
    out
        Folder for recall.parquet, summary.parquet and run.json, and for the finished cells, from which the same call
        resumes.
    workers
        Processes that train at the same time. Default: one for each core.
    progress
        What to show: see `attnscope.progress`.

    Returns
    -------
    Recall
        The tables and the record of the run.
    """
    check(plan)
    count = available_cores() if workers is None else whole_number("workers", workers, 1)
    cells = plan.cells()
    with output_folder(Path(out)) as folder, reporting(progress, "starting") as report:
        results: dict[Cell, dict[str, Any]] = {}
        for cell in cells:
            stored = _stored(folder / CELLS / cell.file())
            if stored is not None:
                results[cell] = stored
        left = [cell for cell in cells if cell not in results]
        report(Step(len(results), len(cells), "training"))
        for cell, result in _trained(left, min(count, len(left))):
            write_all(folder / CELLS, {cell.file(): as_file(result)})
            results[cell] = result
            report(Step(len(results), len(cells), f"{cell.task}, {cell.normalizer}"))
        table = _table(cells, results)
        summary = summarize(table)
        run = _record(plan, cells, results)
        found = Recall(table, summary, run)
        found.write(folder)
    return found


def available_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check(plan: Plan) -> None:
    """Raise InputError for a plan that cannot be run, before anything is trained."""
    from attnscope.normalizers.specs import is_file
    from attnscope.studies.recall.contracts import require_contracts
    from attnscope.studies.recall.training import make_rule

    for name, least in {"seeds": 2, "examples": 1, "first_seed": 0}.items():
        whole_number(name, getattr(plan, name), least)
    for name in ("normalizers", "tasks", "positions", "qk_norm", "budgets", "length_ratios", "learning_rates"):
        given = getattr(plan, name)
        if given is not None and (not given or len(set(given)) < len(given)):
            raise InputError(f"{parameter(name)} takes one or more, each once; received {shown(given)}")
    for ratio in plan.length_ratios:
        whole_number("length_ratios", ratio, 1)
    if 1 not in plan.length_ratios:
        raise InputError(
            f"{parameter('length_ratios')} must contain 1, the training length; received {plan.length_ratios}"
        )
    for budget in plan.budgets:
        if not budget > 0:
            raise InputError(f"{parameter('budgets')} takes positive numbers, or none; received {shown(budget)}")
    for rate in plan.learning_rates:
        if not (math.isfinite(rate) and rate > 0):
            raise InputError(f"{parameter('learning_rates')} takes positive numbers; received {shown(rate)}")
    for position in plan.positions or ():
        if position not in POSITIONS:
            raise InputError(f"no position encoding is named {shown(position)}: choose from {', '.join(POSITIONS)}")
    if not (math.isfinite(plan.effort) and plan.effort > 0):
        raise InputError(f"{parameter('effort')} takes a positive number; received {shown(plan.effort)}")
    for task in plan.tasks:
        find_task(task)
    for name, budget in product(plan.normalizers, plan.budgets):
        make_rule(name, budget)
    for name in filter(is_file, plan.normalizers):
        require_contracts(name)
    if not plan.cells():
        raise InputError("nothing is left to train: a budget needs QK-norm, which fixes the size of the logits")


def _trained(cells: Sequence[Cell], workers: int) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Each cell with its result, as they finish."""
    if not cells:
        return
    others = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _start_worker) as pool:
        futures = {pool.submit(run_cell, cell): cell for cell in cells}
        try:
            left = set(futures)
            while left:  # an interrupt is answered when the main thread wakes up
                done, left = wait(left, timeout=_SECONDS_BETWEEN_LOOKS, return_when=FIRST_COMPLETED)
                for future in done:
                    yield futures[future], future.result()
        except BrokenProcessPool:
            raise AttnscopeError(
                "a worker process ended while it was training, perhaps for want of memory; what is finished is saved: "
                f"repeat the call with fewer {parameter('workers')}"
            ) from None
        finally:  # after an interrupt or an error, nobody waits for cells that are still being trained
            pool.shutdown(wait=False, cancel_futures=True)
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()


def _start_worker() -> None:
    import torch

    torch.set_num_threads(1)
    sys.stdout = sys.stderr  # standard output is for the result, whatever a user's class prints
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A pool whose process was killed leaves its workers waiting for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # a worker has one
    parent.join()
    os._exit(1)


def _stored(file: Path) -> dict[str, Any] | None:
    try:
        result: dict[str, Any] = json.loads(file.read_text("utf-8"))
        return result if result["lines"] and result["processor_seconds"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _table(cells: Sequence[Cell], results: dict[Cell, dict[str, Any]]) -> pl.DataFrame:
    lines = [
        {
            "task": cell.task,
            "normalizer": cell.normalizer,
            "position_encoding": cell.position,
            "qk_norm": cell.qk_norm,
            "budget": None if cell.budget == math.inf else cell.budget,
            "learning_rate": results[cell]["learning_rate"],
            **line,
        }
        for cell in cells
        for line in results[cell]["lines"]
    ]
    return pl.DataFrame(lines, schema=TABLE)


def _record(plan: Plan, cells: Sequence[Cell], results: dict[Cell, dict[str, Any]]) -> dict[str, Any]:
    import torch

    steps = {task: find_task(task).length for task in plan.tasks}
    return without_infinities(
        {
            "kind": "recall",
            "schema": SCHEMA,
            "attnscope": __version__,
            "torch": torch.__version__,
            "plan": asdict(plan) | {"budgets": list(plan.budgets)},
            "training_lengths": steps,
            "learning_rates": plan.learning_rates,
            "cells": [
                {"task": c.task, "normalizer": c.normalizer, "budget": c.budget, "position_encoding": c.position,
                 "qk_norm": c.qk_norm, "steps": c.steps}
                | {key: results[c][key] for key in ("learning_rate", "validation_losses", "processor_seconds")}
                for c in cells
            ],
            "processor_seconds": round(sum(results[c]["processor_seconds"] for c in cells), 1),
        }
    )  # fmt: skip


def changed(plan: Plan, **settings: Any) -> Plan:
    """The plan with the settings that are not None."""
    return replace(plan, **{name: value for name, value in settings.items() if value is not None})
