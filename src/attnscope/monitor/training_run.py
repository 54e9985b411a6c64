"""A training run as its folder shows it: tables, alarms, whether it goes on, and what it looks like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from attnscope.folders import copy_run
from attnscope.monitor.readings import read_heads
from attnscope.results.base import Result, View

if TYPE_CHECKING:
    from attnscope.results.training_charts import TrainingPlots

Status = Literal["training", "finished", "failed", "stopped"]

# A run counts as stopped after this many seconds without a change of its files, or this many times the time between
# the last two changes, whichever is longer.
SILENCE, SILENT_INTERVALS = 120.0, 5.0


@dataclass(frozen=True, repr=False, eq=False)
class TrainingRun(Result):
    """What `attnscope.Monitor` wrote about a training run, finished or not.

    >>> run = attnscope.load_run("runs/train")  # doctest: +SKIP
    >>> run.heads.filter(step=500).sort("max_logit")  # doctest: +SKIP
    >>> run.plot.curve("entropy_ratio", [(3, 5)])  # doctest: +SKIP

    Attributes
    ----------
    run
        How the model was watched (`run.json`).
    heads
        One line for each measured step, layer and head: a column for each measure.
    parameters
        The parameters of learned normalizers: step, layer, head, name and value.
    alarms
        One line for each alarm: step, layer, head, kind, value, limit and advice.
    scalars
        Numbers of the whole model, such as the loss: step, name and value.
    folder
        The folder of the run.
    status
        "training", "finished", "failed" if an exception ended it, or "stopped" if it was not closed and nothing was
        written for a while.
    updated
        When something was last written.
    """

    run: dict[str, Any]
    heads: pl.DataFrame
    parameters: pl.DataFrame
    alarms: pl.DataFrame
    scalars: pl.DataFrame
    folder: Path
    status: Status
    updated: datetime

    @property
    def steps(self) -> list[int]:
        """The measured steps."""
        return self.heads["step"].unique().sort().to_list()

    @cached_property
    def readings(self) -> pl.DataFrame:
        """The heads at the last measured step, with a column `reading`: what their numbers say there.

        A reading is the first of a few limits that a head's numbers cross (`attnscope.monitor.readings`), no diagnosis.
        """
        last = self.heads.filter(pl.col("step") == pl.col("step").max())
        return last.with_columns(reading=read_heads(last, self.run.get("thresholds", {})))

    @property
    def plot(self) -> TrainingPlots:
        """Altair charts: `plot.curve("entropy_ratio", [(3, 5)])`, `plot.map("max_logit", step=500)`, `plot.loss()`."""
        from attnscope.results.training_charts import TrainingPlots

        return TrainingPlots(self)

    def page(self) -> str:
        """The page of the run, as one HTML document."""
        from attnscope.report.training_page import render_training

        return render_training(self)

    def write(self, folder: Path) -> None:
        """Copy what was written so far to a folder that is locked already."""
        copy_run(self.folder, folder)

    @staticmethod
    def _view() -> View:
        from attnscope.results import training_view

        return training_view


def status_of(run: Mapping[str, Any], updated: datetime, now: datetime | None = None) -> Status:
    """Whether a run goes on: as its record says, unless it has been silent for too long.

    Parameters
    ----------
    run
        Its record.
    updated
        When its files were last changed.
    now
        The time to compare with. Default: the present.
    """
    if run.get("status") != "running":
        return "failed" if run.get("status") == "failed" else "finished"
    interval = run.get("interval")
    patience = SILENT_INTERVALS * interval if isinstance(interval, int | float) else 0.0
    silent = ((now or datetime.now(UTC)) - updated).total_seconds()
    return "training" if silent <= max(SILENCE, patience) else "stopped"


def last_change(folder: Path) -> datetime:
    """When a file of a training run was last written."""
    files = [*folder.glob("*.json*"), *(folder / "heads").glob("part-*.parquet")]
    newest = 0.0
    for file in files:
        try:
            newest = max(newest, file.stat().st_mtime)
        except OSError:  # replaced just now
            continue
    return datetime.fromtimestamp(newest, UTC)
