"""Training runs on the server: their entry in the list, their page, and events while they go on."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool

from attnscope.errors import OutputError
from attnscope.monitor.page import (
    added_data,
    choose_steps,
    head_order,
    measure_names,
    training_data,
    with_parameters,
)
from attnscope.monitor.run_files import KIND, LINES, TABLES, Position, WentBackError, read_after, read_record
from attnscope.monitor.training_run import Status, last_change, status_of
from attnscope.show.page import packed, training_page

MOST_STREAMS = 32  # pages that follow runs at the same time
DOWNLOADS = tuple(f"{name}.jsonl" for name in LINES)
_POLL, _HEARTBEAT, _LONGEST = 1.0, 15.0, 900.0  # seconds
_RETRY = 2000  # milliseconds until a page connects again
_MOST_STEPS = 50  # in one event


def is_training(record: Mapping[str, Any]) -> bool:
    """Whether a `run.json` was written by a monitor."""
    return record.get("kind") == KIND


def files_of(folder: Path) -> list[Path]:
    """Every file and folder that reading a training run opens."""
    folders = [folder / name for name in TABLES]
    parts = [part for one in folders for part in one.glob("part-*.parquet")]
    return [folder / "run.json", *(folder / name for name in DOWNLOADS), *folders, *parts]


def describe(folder: Path, record: Mapping[str, Any]) -> tuple[Status, str, str, str]:
    """Whether a run goes on, what was measured, how many alarms there are, and when it was last written."""
    updated = last_change(folder)
    steps, measured = int(record["steps"]), int(record["measured"])
    try:
        alarms = (folder / "alarms.jsonl").read_bytes().count(b"\n")
    except OSError:
        alarms = 0
    size = f"training: {measured:,} measured steps up to step {steps:,}"
    words = f"{alarms:,} alarm{'' if alarms == 1 else 's'}" if alarms else "no alarms"
    return status_of(record, updated), size, words, updated.isoformat(timespec="seconds")


def page(name: str, folder: Path) -> str:
    """The page of a training run, which follows it while it goes on."""
    here = f"/run/{quote(name)}"
    return training_page(_data(folder), {"home": "/", "data": f"{here}/data", "events": f"{here}/events"})


def packed_data(folder: Path) -> str:
    """The data of the page as it is now."""
    return packed(_data(folder))


def _data(folder: Path) -> dict[str, Any]:
    run, position = read_after(folder, Position())
    return training_data(run) | {"position": str(position)}


def position_of(*texts: str | None) -> Position | None:
    """The first position among what a request gives; None if it is malformed."""
    try:
        return next((Position.parse(text) for text in texts if text), Position())
    except ValueError:
        return None


class Streams:
    """Keeps the number of open streams of events within a limit."""

    def __init__(self) -> None:
        self._open = 0

    async def counted(self, stream: AsyncIterator[str]) -> AsyncIterator[str]:
        """A stream that counts while it is open; if there are too many, one that asks the page to wait."""
        if self._open >= MOST_STREAMS:
            yield f"retry: {10 * _RETRY}\n\n"
            return
        self._open += 1
        try:
            async for part in stream:
                yield part
        finally:
            self._open -= 1


async def events(folder: Path, since: Position | None, ended: Callable[[], bool]) -> AsyncIterator[str]:
    """What is added to a run after a position, as server-sent events, until the run is finished or `ended` says so.

    The id of an event is the position after it: a page that connects again gets what it missed. `again` asks the page
    to read everything, after steps were dropped. A stream ends after a quarter of an hour; the page connects again.
    """
    yield f"retry: {_RETRY}\n\n"
    if since is None:
        yield _event("again")
        return
    position = since
    seen: object = None
    sent = started = time.monotonic()
    while not ended() and time.monotonic() - started < _LONGEST:
        now = await run_in_threadpool(_signature, folder)
        if now != seen:
            seen = now
            try:
                added, position = await run_in_threadpool(_added, folder, position)
            except WentBackError:
                yield _event("again")
                return
            except OutputError:  # deleted or renamed
                yield _event("gone")
                return
            yield f"id: {position}\n{_event('added', added)}"
            sent = time.monotonic()
            if added["status"] in ("finished", "failed"):
                return
        elif time.monotonic() - sent > _HEARTBEAT:
            yield ": still here\n\n"
            sent = time.monotonic()
        await asyncio.sleep(_POLL)


def _event(name: str, content: object = None) -> str:
    return f"event: {name}\ndata: {json.dumps(content, separators=(',', ':'), allow_nan=False)}\n\n"


def _signature(folder: Path) -> tuple[datetime, Status]:
    """Something that changes when there is something new to tell."""
    updated = last_change(folder)
    record = read_record(folder) or {}
    return updated, status_of(record, updated)


def _added(folder: Path, since: Position) -> tuple[dict[str, Any], Position]:
    """What the page of a run adds to its data, and the position after it."""
    run, position = read_after(folder, since)
    table = with_parameters(run.heads, run.parameters)
    order, steps = head_order(table), table["step"].unique().sort().to_list()
    shown = choose_steps(steps, run.alarms["step"].to_list(), _MOST_STEPS)
    return {"heads": order.height} | added_data(run, table, order, measure_names(table), shown), position
