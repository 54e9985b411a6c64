"""The page of a training run on a server, and what is added to it while the run goes on."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from attnscope.monitor.page import (
    added_data,
    choose_steps,
    head_order,
    measure_names,
    training_data,
    with_parameters,
)
from attnscope.monitor.run_files import Position, WentBackError, read_after, read_record
from attnscope.monitor.training_run import Status, last_change, status_of
from attnscope.show.page import packed, training_page

_MOST_STEPS = 50  # in one addition


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
    shown = choose_steps(steps, run.alarms["step"].to_list(), _MOST_STEPS)
    content: dict[str, Any] = {"heads": order.height} | added_data(run, table, order, measure_names(table), shown)
    return content, str(position), content["status"] in ("finished", "failed")
