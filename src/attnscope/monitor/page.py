"""The data of a training run's page: the measures of every head at the steps that there is room for.

A page has a budget of numbers. Of a run with more measured steps it has the first and the last, those at which an alarm
was raised, and others evenly between them, with the numbers as measured. Nothing in between is lost from sight: the
range over all heads (`low`, `median`, `high`) is taken over all steps since the one before. The page says how many
steps it has. A server shows the page of a run that goes on, and adds to it what is new.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from attnscope import columns
from attnscope.monitor.alarms import RULES
from attnscope.monitor.run_files import Position, WentBackError, read_after, read_record
from attnscope.monitor.training_run import Status, last_change, page_readings, status_of
from attnscope.scanning.overview import explained_measure
from attnscope.scanning.page_data import rounded_columns
from attnscope.show.page import packed, training_page
from attnscope.store.folders import without_infinities

if TYPE_CHECKING:
    from attnscope.monitor.training_run import TrainingRun

DATA_VERSION = 1
PLACE = ["layer", "head"]

_NUMBERS = 800_000  # of all heads and measures; a number takes about three bytes of the file
_MOST_STEPS, _LEAST_STEPS = 1_000, 12
_MOST_ADDED = 50  # in one addition
_MOST_POINTS = 800  # of the loss
MOST_ALARMS = 500
_NO_MEASURES = ("step", *PLACE, "rows", "length")

Data = dict[str, Any]


def render_training(run: TrainingRun) -> str:
    """The page of a training run as it is now, as one HTML document."""
    return training_page(training_data(run))


def training_data(run: TrainingRun) -> Data:
    """All data of the page."""
    table = with_parameters(run.heads, run.parameters)
    measures, order = measure_names(table), head_order(table)
    steps = table["step"].unique().sort().to_list()
    room = max(_LEAST_STEPS, min(_MOST_STEPS, _NUMBERS // max(1, order.height * len(measures))))
    n = run.run["settings"].get("top_n")
    return {
        "version": DATA_VERSION,
        "run": run.run,
        "heads": order.to_dict(as_series=False),
        "measures": {name: _explained(name, n) for name in measures},
        "room": room,
        "most_alarms": MOST_ALARMS,
        "kinds": {kind: rule.measure for kind, rule in RULES.items()},
        **page_readings(run.run.get("thresholds", {})),
        **added_data(run, table, order, measures, choose_steps(steps, run.alarms["step"].to_list(), room)),
    }


def added_data(
    run: TrainingRun, table: pl.DataFrame, order: pl.DataFrame, measures: Sequence[str], shown: Sequence[int]
) -> Data:
    """The part of the data that grows with a run: of all its steps, or of those since the page was made."""
    scalars = run.scalars.group_by("name", maintain_order=True)
    return {
        "status": run.status,
        "updated": run.updated.isoformat(timespec="seconds"),
        "errors": run.run.get("errors", 0),
        "last_error": run.run.get("last_error"),
        "measured_steps": table["step"].n_unique(),
        **step_columns(table, order, measures, shown),
        "scalars": {str(name): scalar_points(lines) for (name,), lines in scalars},
        "alarms": alarm_lines(run.alarms),
        "alarm_count": run.alarms.height,
    }


def with_parameters(heads: pl.DataFrame, parameters: pl.DataFrame) -> pl.DataFrame:
    """The table of heads with a column for each parameter of learned normalizers."""
    if parameters.is_empty():
        return heads
    keys = ["step", *PLACE]
    wide = parameters.pivot("name", index=keys, values="value", aggregate_function="last")
    taken = {name: f"{name} (parameter)" for name in wide.columns if name in heads.columns and name not in keys}
    return heads.join(wide.rename(taken), on=keys, how="left", maintain_order="left")


def measure_names(heads: pl.DataFrame) -> list[str]:
    """The columns of the table that are measures, in their order."""
    return [name for name in heads.columns if name not in _NO_MEASURES]


def head_order(heads: pl.DataFrame) -> pl.DataFrame:
    """All heads, `layer` and `head`, in the order of the page's numbers."""
    return heads.select(PLACE).unique().sort(PLACE)


def choose_steps(steps: Sequence[int], alarms: Sequence[int], room: int) -> list[int]:
    """At most `room` of the steps: the first, the last, those with an alarm, and others evenly between them.

    Alarms take up to half of the room, and are chosen evenly too if there are more.
    """
    if len(steps) <= room:
        return list(steps)
    ends = {steps[0], steps[-1]}
    raised = sorted(set(alarms).intersection(steps) - ends)
    kept = ends.union(_evenly(raised, room // 2 - 1))
    others = [step for step in steps if step not in kept]
    return sorted(kept.union(_evenly(others, room - len(kept))))


def _evenly(items: Sequence[int], count: int) -> list[int]:
    """At most `count` items, the middle ones of as many equal parts."""
    if len(items) <= count:
        return list(items)
    return [items[(2 * i + 1) * len(items) // (2 * count)] for i in range(count)]


def step_columns(heads: pl.DataFrame, order: pl.DataFrame, measures: Sequence[str], shown: Sequence[int]) -> Data:
    """The measures of every head at the steps `shown`, and their range over all heads since the step before.

    Columns run over the steps, and for each step over the heads; the ranges have one number for each step.
    """
    steps = pl.DataFrame({"step": shown}, schema={"step": pl.Int64})
    grid = steps.join(order, how="cross", maintain_order="left_right")
    values = grid.join(heads, on=["step", *PLACE], how="left", maintain_order="left").select(measures)
    finite = heads.select("step", pl.when(pl.col(measures).is_finite()).then(pl.col(measures)).name.keep())
    until = steps.with_columns(until=pl.col("step"))
    grouped = finite.sort("step").join_asof(until, on="step", strategy="forward").group_by("until")
    ranges = {
        "low": grouped.agg(pl.col(measures).min()),
        "median": grouped.agg(pl.col(measures).median()),
        "high": grouped.agg(pl.col(measures).max()),
    }
    return {
        "steps": list(shown),
        "columns": rounded_columns(values.cast(pl.Float64)),
        **{
            name: rounded_columns(
                steps.join(table, left_on="step", right_on="until", how="left", maintain_order="left")
                .select(measures)
                .cast(pl.Float64)
            )
            for name, table in ranges.items()
        },
    }


def scalar_points(scalars: pl.DataFrame) -> Data:
    """A number of the whole model against the step: means over equal runs of steps, with their lowest and highest.

    `broken` is the first step at which it was not a number or infinite.
    """
    lines = scalars.select("step", pl.when(pl.col("value").is_finite()).then(pl.col("value")))
    broken = lines.filter(pl.col("value").is_null())["step"].min()
    count = min(_MOST_POINTS, lines.height)
    part = pl.int_range(pl.len()) * count // max(1, lines.height)
    value = pl.col("value")
    points = (
        lines.with_columns(part=part)
        .group_by("part", maintain_order=True)
        .agg(pl.col("step").last(), value.mean(), low=value.min(), high=value.max())
        .drop("part")
    )
    return {**rounded_columns(points), "measured": lines.height, "broken": broken}


def alarm_lines(alarms: pl.DataFrame) -> list[dict[str, Any]]:
    """The first alarms of a run, as many as there is room for."""
    lines: list[dict[str, Any]] = without_infinities(alarms.head(MOST_ALARMS).to_dicts())
    return lines


def _explained(name: str, n: int | None) -> dict[str, Any]:
    """How the page shows a measure; parameters of normalizers are not declared."""
    if name in columns.COLUMNS:
        return explained_measure(name, n, {"n": n})
    return {"label": name, "sentence": "A parameter of the normalizer.", "unit": "", "style": "number", "fixed": False}


def page(place: Mapping[str, Any], folder: Path) -> str:
    """The page of a training run, which follows it while it goes on."""
    here = place["here"]
    return training_page(_data(folder), {"home": place["home"], "data": f"{here}/data", "events": f"{here}/events"})


def data(folder: Path) -> str:
    """The data of the page as it is now, packed."""
    return packed(_data(folder))


def _data(folder: Path) -> dict[str, Any]:
    run, position = read_after(folder, Position())
    return training_data(run) | {"position": str(position)}


def changed(folder: Path) -> tuple[datetime, Status]:
    """Something that differs when there is something new to tell."""
    updated = last_change(folder)
    return updated, status_of(read_record(folder) or {}, updated)


def added(folder: Path, since: str) -> tuple[dict[str, Any], str, bool]:
    """What the page adds to its data after a position, the position now, and whether the run has ended.

    ValueError for what is no position of this run, e.g. after steps were dropped; OutputError if there is no run.
    """
    try:
        run, position = read_after(folder, Position.parse(since) if since else Position())
    except WentBackError as error:
        raise ValueError(str(error)) from error
    table = with_parameters(run.heads, run.parameters)
    order, steps = head_order(table), table["step"].unique().sort().to_list()
    shown = choose_steps(steps, run.alarms["step"].to_list(), _MOST_ADDED)
    content: dict[str, Any] = {"heads": order.height} | added_data(run, table, order, measure_names(table), shown)
    return content, str(position), content["status"] in ("finished", "failed")
