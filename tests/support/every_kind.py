"""A small folder of every kind of run, made by the functions that users call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from training_runs import Training

import attnscope

QUIET: dict[str, Any] = {"progress": False}


def _scan(folder: Path) -> None:
    attnscope.scan(length=64, out=folder, **QUIET)


def _diagnosed_scan(folder: Path) -> None:
    attnscope.scan(length=64, windows=2, diagnose=True, out=folder, **QUIET)


def _diagnosis(folder: Path) -> None:
    attnscope.diagnose(length=64, windows=2, rows=8, **QUIET).save(folder)


def _training(folder: Path) -> None:
    Training(folder).measure(50)


def _audit(folder: Path) -> None:
    attnscope.audit("lemma-1", **QUIET).save(folder)


def _budget(folder: Path) -> None:
    from attnscope.studies.budget.running import budget

    budget(keep=0.5, length=32, windows=3, calibration_windows=1, **QUIET).save(folder)


def _comparison(folder: Path) -> None:
    attnscope.compare(normalizers=["sparsemax"], lengths=[32], top_n=5, modes=["what-if"], **QUIET).save(folder)


def _guidelines(folder: Path) -> None:
    from attnscope.cli import run

    assert run(["guidelines", "--lengths", "8,16", "--top-n", "2", "--out", str(folder)]) == 0


def _horizon(folder: Path) -> None:
    attnscope.horizon(length=64, to=256, windows=2, **QUIET).save(folder)


def _reproduction(folder: Path) -> None:
    attnscope.reproduce(length=32, windows=2, out=folder, notice=lambda _: None, **QUIET)


def _recall(folder: Path) -> None:
    from attnscope.studies.recall import Plan, recall

    plan = Plan(normalizers=("softmax",), tasks=("max",), budgets=(3.0,), seeds=2, effort=0.01, examples=8)
    recall(plan, out=folder, workers=1, **QUIET)


def _scorecard(folder: Path) -> None:
    from attnscope.studies.recall import scorecard

    scorecard(["sparsemax"], out=folder, plan=None, **QUIET)


# By name of the folder: the kind, and how it is made.
EVERY_KIND = {
    "scan": ("scan", _scan),
    "diagnosed": ("scan", _diagnosed_scan),
    "diagnosis": ("diagnosis", _diagnosis),
    "training": ("training", _training),
    "audit": ("audit", _audit),
    "budget": ("budget", _budget),
    "comparison": ("comparison", _comparison),
    "guidelines": ("guidelines", _guidelines),
    "horizon": ("horizon", _horizon),
    "reproduction": ("reproduction", _reproduction),
    "recall": ("recall", _recall),
    "scorecard": ("scorecard", _scorecard),
}
