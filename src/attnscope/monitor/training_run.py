"""A training run as its folder shows it: tables, alarms, whether it goes on, and what its numbers say.

A reading is no diagnosis: it looks at means over a few rows of one batch. `attnscope.diagnose` tries simpler rules on
many rows of a text. Everything that shows readings takes them from here: `TrainingRun.readings`, the summary, the page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from attnscope.show.result import Result
from attnscope.store.folders import copy_run
from attnscope.store.kinds import resolve  # its views read run folders, and so import this file

if TYPE_CHECKING:
    from attnscope.show.blocks import Block


@dataclass(frozen=True)
class Symptom:
    """What a reading can say of a head: its `measure` has crossed `limit`, and no earlier symptom holds."""

    name: str
    color: str
    mark: str
    sentence: str  # `{limit}` is the limit
    measure: str = ""
    side: Literal["at least", "at most"] = "at least"
    limit: float = 0.0
    threshold: str = ""  # of the alarms, which has the limit in its place

    def number(self, thresholds: Mapping[str, Any]) -> float:
        """The limit in a run whose alarms have these thresholds."""
        return float(thresholds.get(self.threshold, self.limit))


# In the order in which they are tried.
SYMPTOMS = (
    Symptom(
        "first-key",
        "#cc79a7",
        "f",
        "At least {limit:.0%} of the weight is on the first key it sees.",
        "sink_weight",
        "at least",
        0.9,
    ),
    Symptom(
        "one-hot",
        "#d55e00",
        "1",
        "Nearly all weight of a row is on one key: the entropy is at most {limit:.0%} of its largest value.",
        "entropy_ratio",
        "at most",
        0.1,
        "collapse_entropy",
    ),
    Symptom(
        "dilute",
        "#0072b2",
        "d",
        "The weight is spread nearly evenly: the entropy is at least {limit:.0%} of its largest value.",
        "entropy_ratio",
        "at least",
        0.98,
        "dilution_entropy",
    ),
)
IN_LIMITS = Symptom("in limits", "#9ecae1", "·", "None of the limits of the other readings is crossed.")
UNKNOWN = Symptom("no numbers", "#5f6368", "?", "Its weights were not measured at this step, or are not numbers.")
LISTED = (*SYMPTOMS, IN_LIMITS, UNKNOWN)


def reading_looks(thresholds: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Color, mark and sentence of every reading, as `diagnosis.view.state_looks` gives them for states."""
    looks = {}
    for one in LISTED:
        sentence = one.sentence.format(limit=one.number(thresholds))
        short = f"{sentence[0].lower()}{sentence[1:-1]}"
        looks[one.name] = {"color": one.color, "mark": one.mark, "short": short, "sentence": sentence}
    return looks


def page_readings(thresholds: Mapping[str, Any]) -> dict[str, Any]:
    """The readings for the page: how each looks, and the rules in the order in which they are tried."""
    looks = reading_looks(thresholds)
    looks[IN_LIMITS.name]["mark"] = "\u00a0"  # a space: most cells of the map have it
    rules = [
        {"state": one.name, "measure": one.measure, "side": one.side, "limit": one.number(thresholds)}
        for one in SYMPTOMS
    ]
    return {"states": looks, "rules": rules, "otherwise": IN_LIMITS.name, "unknown": UNKNOWN.name}


def read_heads(heads: pl.DataFrame, thresholds: Mapping[str, Any]) -> pl.Series:
    """The reading of every line of a table of heads."""

    def crossed(one: Symptom) -> pl.Expr:
        value, limit = pl.col(one.measure), one.number(thresholds)
        return value >= limit if one.side == "at least" else value <= limit

    known = pl.all_horizontal(pl.col(one.measure).is_finite().fill_null(False) for one in SYMPTOMS)
    first = pl.coalesce(
        pl.when(~known).then(pl.lit(UNKNOWN.name)),
        *(pl.when(crossed(one)).then(pl.lit(one.name)) for one in SYMPTOMS),
        pl.lit(IN_LIMITS.name),
    )
    return heads.select(reading=first)["reading"]


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

        A reading is the first of a few limits that a head's numbers cross (`monitor.training_run`), no diagnosis.
        """
        last = self.heads.filter(pl.col("step") == pl.col("step").max())
        return last.with_columns(reading=read_heads(last, self.run.get("thresholds", {})))

    @property
    def plot(self) -> Any:
        """Altair charts: `plot.curve("entropy_ratio", [(3, 5)])`, `plot.map("max_logit", step=500)`, `plot.loss()`."""
        return resolve("attnscope.monitor.plots:TrainingPlots")(self)

    def page(self) -> str:
        """The page of the run, as one HTML document."""
        page: str = resolve("attnscope.monitor.page:render_training")(self)
        return page

    def write(self, folder: Path) -> None:
        """Copy what was written so far to a folder that is locked already."""
        copy_run(self.folder, folder)

    def blocks(self, verbose: bool = False) -> list[Block]:
        """The alarms, a map of the readings at the last step, the loss, medians."""
        found: list[Block] = resolve("attnscope.monitor.view:blocks")(self, verbose)
        return found

    def brief(self) -> list[str]:
        """What was watched, alarms, readings at the last step, the loss."""
        lines: list[str] = resolve("attnscope.monitor.view:brief")(self)
        return lines

    def calls(self) -> tuple[str, ...]:
        """What to call next."""
        found: tuple[str, ...] = resolve("attnscope.monitor.view:calls")(self)
        return found


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
