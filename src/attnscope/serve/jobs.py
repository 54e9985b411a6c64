"""Scans started from the page: one at a time, each in a process that can be stopped at any moment.

The finished windows of a stopped scan are kept, so that it can be resumed; a scan without a finished window leaves no
files. The process is `python -m attnscope.serve.jobs FOLDER`: it reads `.request.json` in the folder and prints one
line of JSON for each layer, when loops are compiled, and at the end. It exits when its standard input is closed, so
that no scan outlives its server.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any, Literal

from attnscope.errors import AttnscopeError, InputError
from attnscope.serve.library import REQUEST
from attnscope.store import folders
from attnscope.store.manifest import UNFINISHED, Manifest

_GRACE = 5.0  # seconds a process has to end before it is killed
_HIDDEN = ("process", "watch", "first_step", "cancelled")
_LONGEST_LINE = 2**20  # bytes that a scan may print at once
_LONGEST = 10_000  # characters of a message


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


@dataclass
class Job:
    """A scan and its progress."""

    name: str
    state: Literal["running", "finished", "cancelled", "failed"] = "running"
    done: int = 0
    total: int = 0
    activity: str = "loading the model"
    error: str = ""
    compiling: bool = False
    seconds_left: float | None = None
    cancelled: bool = field(default=False, repr=False)  # asked to end; its state says so once it has ended
    first_step: tuple[float, int] | None = field(default=None, repr=False)  # its time and number, for the time left
    process: asyncio.subprocess.Process | None = field(default=None, repr=False)
    watch: asyncio.Task[None] | None = field(default=None, repr=False)

    def as_json(self) -> dict[str, Any]:
        """The fields that the page displays."""
        return {key: value for key, value in self.__dict__.items() if key not in _HIDDEN}

    def step(self, message: dict[str, Any]) -> None:
        """Take over a step of the scan, and estimate the time left from the steps so far."""
        if message["done"] < self.done:  # other work begins: its speed says nothing of this one's
            self.first_step = None
        self.done, self.total = message["done"], message["total"] or 0
        self.activity = message["doing"]
        now = time.monotonic()
        started, first = self.first_step = self.first_step or (now, self.done)
        steps = self.done - first
        self.seconds_left = (now - started) / steps * (self.total - self.done) if steps > 0 and self.total else None


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
            folders.write_all(folder, {REQUEST: lambda path: path.write_text(content, encoding="utf-8")})
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
            job.cancelled = True
            with suppress(ProcessLookupError):
                job.process.terminate()
            try:
                await asyncio.wait_for(asyncio.shield(job.watch), _GRACE)
            except TimeoutError:
                with suppress(ProcessLookupError):
                    job.process.kill()
                await job.watch
        return job

    @asynccontextmanager
    async def idle(self, name: str) -> AsyncIterator[None]:
        """Keep scans from starting while a run is changed; InputError if its own scan is running."""
        async with self._starting:
            job = self.by_name.get(name)
            if job is not None and job.watch is not None and not job.watch.done():
                raise InputError(f"{name} is still running; wait for it or cancel it first")
            yield
            self.by_name.pop(name, None)

    async def close(self) -> None:
        """Stop the running scan when the server shuts down."""
        if self.running is not None:
            await self.cancel(self.running.name)

    def _check_free(self) -> None:
        if self.running is not None:
            raise InputError(f"{self.running.name} is still running; wait for it or cancel it")

    def _new_folder(self, model: str | None) -> Path:
        """A new folder named after the model and the time; a second one of the same second has a number too."""
        stem = self.root / f"{folders.folder_name(model)}-{datetime.now():%Y%m%d-%H%M%S}"
        for number in count(1):
            folder = stem if number == 1 else stem.with_name(f"{stem.name}-{number}")
            with suppress(FileExistsError):
                folder.mkdir()
                break
        return folder

    async def _run(self, name: str) -> Job:
        job = Job(name)
        job.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "attnscope.serve.jobs", str(self.root / name)),
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
                job.step(message)
            job.compiling = message.get("compiling", job.compiling)
            ended = ended or "finished" in message
            job.error = message.get("error", job.error)
        await job.process.wait()
        folder = self.root / job.name
        self._remove_if_empty(folder)
        ended = ended or (folder / "run.json").exists()  # whole before it could say so
        job.state = "finished" if ended else "cancelled" if job.cancelled else "failed"
        if job.state == "failed" and not job.error:
            job.error = f"the scan ended with code {job.process.returncode}; run attnscope scan to see why"

    @staticmethod
    def _remove_if_empty(folder: Path) -> None:
        """Remove the folder of a scan that has finished no window: a block counts once the manifest has it."""
        if not (folder / "run.json").exists() and Manifest.read(folder / UNFINISHED) is None:
            shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
            (folder / REQUEST).unlink(missing_ok=True)
            with suppress(OSError):
                folder.rmdir()


def main(folder: Path) -> int:
    """Run the scan that `.request.json` in the folder describes; returns the exit code."""
    threading.Thread(target=_exit_with_server, daemon=True).start()
    try:
        _scan(folder, json.loads((folder / REQUEST).read_text("utf-8")))
    except AttnscopeError as error:
        _send({"error": str(error)})
        return error.exit_code
    except Exception as error:  # any error is reported on the page
        _send({"error": f"{type(error).__name__}: {error}"[:_LONGEST]})
        return 1
    (folder / REQUEST).unlink(missing_ok=True)
    _send({"finished": True})
    return 0


def _scan(folder: Path, request: dict[str, Any]) -> None:
    from attnscope.capture.text import Text, read_text
    from attnscope.progress import watch_compiling

    pasted = request.get("pasted")
    text = Text(pasted, "pasted text") if pasted else read_text(request.get("text"))

    # Imported after the text is read: they take seconds to load, and an unreadable text is reported at once.
    from attnscope.measure.settings import row_choice
    from attnscope.scanning import scan

    with watch_compiling(lambda now: _send({"compiling": now})):
        scan(
            request.get("model"),
            text,
            length=request.get("length"),
            lengths=request.get("lengths"),
            rows=row_choice(request.get("rows") or "last"),
            windows=request.get("windows") or 1,
            normalizers=request.get("normalizers") or (),
            bounds=request.get("bounds"),
            diagnose=bool(request.get("diagnose")),
            verify=bool(request.get("verify")),
            out=folder,
            progress=lambda step: _send(step._asdict()),
        )


def _send(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def _exit_with_server() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
