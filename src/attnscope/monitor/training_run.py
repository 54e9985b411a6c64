"""A training run as its folder shows it: tables, alarms, whether it goes on, what its numbers say, and what
is shown of it.

A reading is no diagnosis: it looks at means over a few rows of one batch. `attnscope.diagnose` tries simpler rules on
many rows of a text. Everything that shows readings takes them from here: `TrainingRun.readings`, the summary, the page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import polars as pl

from attnscope import columns
from attnscope.columns import head_name
from attnscope.diagnosis.result import marked_map
from attnscope.errors import parameter
from attnscope.monitor.alarms import RULES
from attnscope.show.blocks import Block, Heading, Items, Note, Table, Verdict
from attnscope.show.numbers import counted, measured, model_name, number
from attnscope.show.result import Result
from attnscope.store.folders import copy_run
from attnscope.store.kinds import resolve  # charts and the page read run folders, and so import this file


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
    """Color, mark and sentence of every reading, as `diagnosis.result.state_looks` gives them for states."""
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


_ALARMS = 5  # if not verbose
_STATUSES = {
    "training": "still training",
    "finished": "finished",
    "failed": "ended by an error",
    "stopped": "stopped without being closed",
}


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
        """The alarms, a map of the readings at the last step, the loss, the median head at both ends."""
        heading = Heading(model_name(self.run), subject(self))
        if self.heads.is_empty():
            return [heading, Note("Nothing was measured yet.")]
        alarms = self.alarms if verbose else self.alarms.head(_ALARMS)
        lines = [
            f"step {one['step']:,}, {head_name(one['layer'], one['head'])}: "
            f"{_kind(one)}, {evidence(one)}: {one['advice']}"
            for one in alarms.iter_rows(named=True)
        ]
        found: list[Block] = [heading, Verdict(alarm_words(self), "strong"), Items(lines)]
        if alarms.height < self.alarms.height:
            more = self.alarms.height - alarms.height
            found.append(Note(f"and {more:,} more ({parameter('verbose', True)})", indent=4))
        heads = [
            {"layer": layer, "head": head, "state": reading, "edge": None}
            for layer, head, reading in self.readings.select("layer", "head", "reading").iter_rows()
        ]
        title = f"Readings at step {self.steps[-1]:,}"
        note = "the first limit that a head's numbers cross; no diagnosis"
        found.append(marked_map(title, note, heads, reading_looks(self.run.get("thresholds", {}))))
        return [*found, *map(Note, loss_words(self)), _medians(self)]

    def brief(self) -> list[str]:
        """What was watched, alarms, readings at the last step, the loss."""
        found = [f"TrainingRun: {model_name(self.run)}, {subject(self)}"]
        if self.heads.is_empty():
            return [*found, "Nothing was measured yet."]
        return [*found, alarm_words(self), reading_words(self), *loss_words(self)]

    def calls(self) -> tuple[str, ...]:
        if self.heads.is_empty():
            return (f"attnscope.load_run({str(self.folder)!r}) reads it again",)
        plots = ('.plot.curve("entropy_ratio")', f'.plot.map("max_logit", {self.steps[-1]})')
        return (".summary()", ".heads", ".alarms", ".readings", *plots, ".show()")


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


def subject(run: TrainingRun) -> str:
    """What was watched, how far, and whether it goes on."""
    heads = run.heads.select("layer", "head").unique()
    size = f"{counted(heads['layer'].n_unique(), 'layer')}, {counted(heads.height, 'head')}"
    steps = run.steps
    until = f"{counted(len(steps), 'measured step')} up to step {steps[-1]:,}, " if steps else ""
    return f"{size}; {until}{_STATUSES[run.status]}"


def alarm_words(run: TrainingRun) -> str:
    """The alarms in a sentence."""
    alarms = run.alarms
    if alarms.is_empty():
        return f"No alarm in {counted(len(run.steps), 'measured step')}."
    first = alarms.row(0, named=True)
    some, every = (one.select("layer", "head").n_unique() for one in (alarms, run.heads))
    where = f"{head_name(first['layer'], first['head'])}, {_kind(first)}"
    heads = f"{some} of {counted(every, 'head')}"
    return f"{counted(alarms.height, 'alarm')} in {heads}, the first at step {first['step']:,}: {where}"


def evidence(alarm: Mapping[str, Any]) -> str:
    """The value that raised an alarm, and its limit."""
    name = RULES[alarm["kind"]].measure if alarm["kind"] in RULES else None
    if alarm["value"] is None or name is None:
        return "not a number" if alarm["value"] is None else number(alarm["value"])
    return f"{columns.label(name).lower()} {measured(name, alarm['value'])} (limit {measured(name, alarm['limit'])})"


def reading_words(run: TrainingRun) -> str:
    """How many heads have which reading at the last step."""
    counts = Counter(run.readings["reading"])
    parts = ", ".join(f"{counts[one.name]} {one.name}" for one in LISTED if counts[one.name])
    return f"Readings at step {run.steps[-1]:,} (limits crossed, no diagnosis): {parts}"


def loss_words(run: TrainingRun) -> list[str]:
    """The first and the last loss, if one was given to the monitor."""
    losses = run.scalars.filter(name="loss").drop_nulls("value")
    if losses.is_empty():
        return []
    (first, start), (last, end) = (losses.row(i)[::2] for i in (0, -1))
    return [f"Loss {number(start)} at step {first:,}, {number(end)} at step {last:,}"]


def _kind(alarm: Mapping[str, Any]) -> str:
    return str(alarm["kind"]).replace("-", " ")


def _medians(run: TrainingRun) -> Table:
    """The median head at the first and the last step."""
    ends = [run.heads.filter(step=step) for step in (run.steps[0], run.steps[-1])]
    n = run.run["settings"].get("top_n")
    rows = []
    for name in run.heads.columns:
        if name in columns.COLUMNS:
            medians: list[Any] = [part[name].drop_nans().median() for part in ends]
            rows.append([columns.label(name, n), *(measured(name, median) for median in medians)])
    return Table(["Median over heads", *(f"step {part['step'][0]:,}" for part in ends)], rows)
