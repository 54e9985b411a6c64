"""Runs that go on, as server-sent events: what is added to each, for the pages that follow it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from starlette.concurrency import run_in_threadpool

from attnscope.errors import OutputError
from attnscope.store.kinds import resolve

MOST_STREAMS = 32  # pages that follow runs at the same time
_POLL, _HEARTBEAT, _LONGEST = 1.0, 15.0, 900.0  # seconds
_RETRY = 2000  # milliseconds until a page connects again


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


async def events(live: str, folder: Path, since: str, ended: Callable[[], bool]) -> AsyncIterator[str]:
    """What is added to a run after a position, as server-sent events, until the run has ended or `ended` says so.

    `live` is the module of its kind (`Kind.live`). The id of an event is the position after it: a page that connects
    again gets what it missed. `again` asks the page to read everything, `gone` says that the run was deleted or
    renamed. A stream ends after a quarter of an hour; the page connects again.
    """
    yield f"retry: {_RETRY}\n\n"
    changed, added = resolve(f"{live}:changed"), resolve(f"{live}:added")
    position, seen = since, None
    sent = started = time.monotonic()
    while not ended() and time.monotonic() - started < _LONGEST:
        now = await run_in_threadpool(changed, folder)
        if now != seen:
            seen = now
            try:
                content, position, last = await run_in_threadpool(added, folder, position)
            except ValueError:
                yield _event("again")
                return
            except OutputError:
                yield _event("gone")
                return
            yield f"id: {position}\n{_event('added', content)}"
            sent = time.monotonic()
            if last:
                return
        elif time.monotonic() - sent > _HEARTBEAT:
            yield ": still here\n\n"
            sent = time.monotonic()
        await asyncio.sleep(_POLL)


def _event(name: str, content: object = None) -> str:
    return f"event: {name}\ndata: {json.dumps(content, separators=(',', ':'), allow_nan=False)}\n\n"
