"""Normalizers side by side: `recall` trains short and tests long, `scorecard` says all that can be said of one.

They are one study, as a scorecard trains the models of `recall` and shows their tables.

| file | contents |
|---|---|
| `tasks` | what is read, asked and answered, and what a reader who knows the task answers |
| `training` | ensembles of small models with each normalizer, trained and tested together |
| `running` | the grid of settings, in worker processes; means over seeds with intervals |
| `contracts` | what every normalizer promises, tested; an error for each contract that a user's class breaks |
| `measuring` | bounds, exact Jacobian, nearness to Theorem S, capacity on real logits, speed |
| `cards` | `scorecard`: all of it, and recall against length and budget |
| `view`, `verb` | what both show; their commands |
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope._process import lazy
from attnscope.store.kinds import Description, Kind, Verb

if TYPE_CHECKING:
    from attnscope.studies.recall.cards import Scorecard as Scorecard, scorecard as scorecard
    from attnscope.studies.recall.running import QUICK as QUICK, Plan as Plan, Recall as Recall, recall as recall

_NAMES = {
    **dict.fromkeys(("QUICK", "Plan", "Recall", "recall"), "attnscope.studies.recall.running"),
    **dict.fromkeys(("Scorecard", "scorecard"), "attnscope.studies.recall.cards"),
}


def describe(folder: Path, run: Mapping[str, Any]) -> Description:
    """One recall run as a line of a list."""
    plan = run["plan"]
    size = f"recall: {len(plan['normalizers'])} normalizers, {', '.join(plan['tasks'])}, {plan['seeds']} seeds"
    return Description("", "", size, f"{len(run['cells'])} settings trained")


def describe_scorecard(folder: Path, data: Mapping[str, Any]) -> Description:
    """One scorecard as a line of a list."""
    names = ", ".join(str(card["normalizer"]) for card in data["cards"])
    return Description("", "", f"scorecard of {names}", "with recall" if data["recall"] else "without recall")


KINDS = (
    Kind(
        "recall",
        load="attnscope.studies.recall.running:Recall.load",
        describe="attnscope.studies.recall:describe",
        beside=("recall.parquet",),
        needs=(("recall.parquet",), ("summary.parquet",)),
        written=(
            *("run.json", "recall.parquet", "summary.parquet", "report.html", "cells/*.json"),
            *(f"budget.{kind}" for kind in ("svg", "pdf", "png", "parquet", "json")),
        ),
        verbs=(Verb("recall", "attnscope.studies.recall.verb:recall", "Normalizers"),),
    ),
    Kind(
        "scorecard",
        load="attnscope.studies.recall.cards:Scorecard.load",
        describe="attnscope.studies.recall:describe_scorecard",
        record="scorecard.json",
        written=("scorecard.json", "scorecard.html", "report.html", "recall*/*", "recall*/cells/*"),
        verbs=(Verb("scorecard", "attnscope.studies.recall.verb:scorecard", "Normalizers"),),
    ),
)

__getattr__, __dir__ = lazy(__name__, __path__, _NAMES)
