"""Scans started from the page: one at a time, each in a process that can be stopped at any moment.

The finished windows of a stopped scan are kept, so that it can be resumed; a scan without a finished window leaves no
files.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any, Literal

from attnscope import tables
from attnscope.errors import InputError, shown
from attnscope.serve.library import REQUEST

_GRACE = 5.0  # seconds a process has to end before it is killed
_LONGEST_LINE = 2**20  # bytes that a scan may print at once


@dataclass
class Job:
    """A scan and its progress."""

    name: str
    state: Literal["running", "finished", "cancelled", "failed"] = "running"
    done: int = 0
    total: int = 0
    activity: str = "loading the model"
    error: str = ""
    process: asyncio.subprocess.Process | None = field(default=None, repr=False)
    watch: asyncio.Task[None] | None = field(default=None, repr=False)

    def as_json(self) -> dict[str, Any]:
        """The fields that the page displays."""
        return {key: value for key, value in self.__dict__.items() if key not in ("process", "watch")}


@dataclass(frozen=True)
class ScanRequest:
    """The checked settings of a scan from the form."""

    model: str | None
    text: str | None
    pasted: str | None
    length: int | None
    lengths: list[int] | None
    rows: str
    windows: int
    normalizers: list[str]
    bounds: str | None
    diagnose: bool
    verify: bool
    source: str


_FIELDS = {field.name for field in fields(ScanRequest)} - {"source"}


def parse_form(form: dict[str, Any]) -> ScanRequest:
    """The settings of a scan, with the types of the form's fields checked; their values are checked by the scan."""

    unknown = sorted(set(form) - _FIELDS)
    if unknown:
        raise InputError(f"a scan has no setting {shown(unknown[0])}; it has {', '.join(sorted(_FIELDS))}")

    def content(key: str) -> str | None:
        value = form.get(key)
        if value is None:
            return None
        if not isinstance(value, str):
            raise InputError(f"{key} takes text; received {shown(value)}")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"{key} is no Unicode text: a lone surrogate at offset {error.start}") from None
        if "\0" in value:
            raise InputError(f"{key} has a zero byte at offset {value.index(chr(0))}; leave it out")
        return value if value.strip() else None

    def text(key: str) -> str | None:
        value = content(key)
        return None if value is None else value.strip()

    def numbers(key: str) -> list[int]:
        value = text(key) or ""
        try:
            return [int(part) for part in value.split(",") if part.strip()]
        except ValueError:
            raise InputError(f"{key} takes whole numbers separated by commas; received {shown(value)}") from None

    def number(key: str) -> int | None:
        found = numbers(key)
        if len(found) > 1:
            raise InputError(f"{key} takes one whole number; received {shown(form[key])}")
        return found[0] if found else None

    def checked(key: str) -> bool:
        value = form.get(key, False)
        if value not in (True, False, "on", ""):
            raise InputError(f"{key} takes true or false; received {shown(value)}")
        return bool(value)

    pasted, path = content("pasted"), text("text")
    if pasted and path:
        raise InputError("give a text file or pasted text, not both")
    windows = number("windows")
    return ScanRequest(
        text("model"),
        path,
        pasted,
        number("length"),
        numbers("lengths") or None,
        text("rows") or "last",
        1 if windows is None else windows,
        [part for part in (text("normalizers") or "").split(",") if part],
        text("bounds"),
        checked("diagnose") or checked("verify"),
        checked("verify"),
        "pasted text" if pasted else path or "sample",
    )


class Jobs:
    """The scans of this server."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.by_name: dict[str, Job] = {}
        self._starting = asyncio.Lock()  # starting takes a moment, in which another request may come

    @property
    def running(self) -> Job | None:
        """The running scan, if there is one."""
        return next((job for job in self.by_name.values() if job.state == "running"), None)

    async def start(self, request: ScanRequest) -> Job:
        """Start a new scan."""
        async with self._starting:
            self._check_free()
            folder = self._new_folder(request.model)
            content = json.dumps(asdict(request))
            tables.write_all(folder, {REQUEST: lambda path: path.write_text(content, encoding="utf-8")})
            return await self._run(folder.name)

    async def resume(self, name: str, folder: Path) -> Job:
        """Resume a scan that was stopped."""
        async with self._starting:
            self._check_free()
            if not (folder / REQUEST).is_file():
                raise InputError(f"{name} was not started here; resume it with the command that started it")
            return await self._run(name)

    async def cancel(self, name: str) -> Job:
        """Stop a scan and wait until it has ended."""
        job = self.by_name.get(name)
        if job is None:
            raise InputError(f"no scan {name!r} was started here")
        if job.state == "running" and job.process is not None and job.watch is not None:
            job.state = "cancelled"
            with suppress(ProcessLookupError):
                job.process.terminate()
            try:
                await asyncio.wait_for(asyncio.shield(job.watch), _GRACE)
            except TimeoutError:
                with suppress(ProcessLookupError):
                    job.process.kill()
                await job.watch
        return job

    async def close(self) -> None:
        """Stop the running scan when the server shuts down."""
        if self.running is not None:
            await self.cancel(self.running.name)

    def _check_free(self) -> None:
        if self.running is not None:
            raise InputError(f"{self.running.name} is still running; wait for it or cancel it")

    def _new_folder(self, model: str | None) -> Path:
        """A new folder named after the model and the time; a second one of the same second has a number too."""
        stem = self.root / f"{tables.folder_name(model)}-{datetime.now():%Y%m%d-%H%M%S}"
        for number in count(1):
            folder = stem if number == 1 else stem.with_name(f"{stem.name}-{number}")
            with suppress(FileExistsError):
                folder.mkdir()
                break
        return folder

    async def _run(self, name: str) -> Job:
        job = Job(name)
        job.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "attnscope.serve.worker", str(self.root / name)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the server, which then stops the scan itself
            limit=_LONGEST_LINE,
        )
        self.by_name[name] = job
        job.watch = asyncio.create_task(self._follow(job))
        return job

    async def _follow(self, job: Job) -> None:
        assert job.process is not None
        assert job.process.stdout is not None
        ended = False
        async for line in job.process.stdout:
            try:
                message = json.loads(line)
            except ValueError:
                continue  # output of a library
            if not isinstance(message, dict):
                continue
            if "total" in message:
                job.done, job.total = message["done"], message["total"]
                step = f"window {message['window'] + 1} of {message['windows']}, layer {message['layer']}"
                job.activity = message.get("doing") or step
            ended = ended or "finished" in message
            job.error = message.get("error", job.error)
        await job.process.wait()
        if job.state == "running":
            job.state = "finished" if ended else "failed"
            if not ended and not job.error:
                job.error = f"the scan ended with code {job.process.returncode}; run attnscope scan to see why"
        self._remove_if_empty(self.root / job.name)

    @staticmethod
    def _remove_if_empty(folder: Path) -> None:
        """Remove the folder of a scan that has finished no window."""
        if not (folder / "run.json").exists() and not (folder / ".parts").exists():
            (folder / REQUEST).unlink(missing_ok=True)
            with suppress(OSError):
                folder.rmdir()
