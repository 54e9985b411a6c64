"""What a monitor has measured so far: in the files of its folder, or in memory if it has none."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from attnscope.capture.error_handlers import handled
from attnscope.monitor.run_files import LINES, TABLES, TrainingFiles, now, read_record
from attnscope.monitor.run_reading import load


class History:
    """The tables of a training run. With a folder, one rank writes, and the others keep nothing."""

    def __init__(self, out: str | Path | None, run: Mapping[str, Any], *, writes: bool) -> None:
        """`run` is what run.json says of the run as a whole."""
        self._keeps = out is None
        self._run = {"started": now(), **run}
        self._written = time.monotonic()
        self._files = TrainingFiles(out) if out is not None and writes else None
        self._tables = {name: pl.DataFrame(schema=schema) for name, schema in (TABLES | LINES).items()}
        self._begin: int | None = 0  # the step after which lines are written, until an earlier run's are dropped
        if self._files is not None and read_record(self._files.folder) is None:
            self.write_record({"status": "running", "finished": None, "steps": 0, "measured": 0})

    def begin_after(self, step: int) -> None:
        """Go on after this step: what an earlier run wrote after it is dropped with the next lines."""
        self._begin = step
        self._tables = {name: table.filter(pl.col("step") <= step) for name, table in self._tables.items()}

    def table(self, name: str) -> pl.DataFrame:
        """The table `heads`, `parameters`, `alarms` or `scalars`."""
        if self._files is None:
            return self._tables[name]
        table: pl.DataFrame = getattr(load(self._files.folder), name)
        return table if self._begin is None else table.filter(pl.col("step") <= self._begin)

    def add(self, tables: Mapping[str, pl.DataFrame], progress: Mapping[str, Any]) -> None:
        """Add lines to tables, and say in run.json how far the run is; every file is tried if one fails."""
        files = self._files
        if self._keeps:
            for name, lines in tables.items():
                self._tables[name] = pl.concat([self._tables[name], lines])
        if files is None:
            return
        if self._begin is not None:
            files.keep_until(self._begin)
            self._begin = None
        errors: list[Exception] = []
        for name, lines in tables.items():
            with handled(errors.append):
                if name in TABLES:
                    files.add_table(name, lines)
                else:
                    files.add_lines(name, lines.iter_rows(named=True))
        with handled(errors.append):
            self.write_record(progress)
        if errors:
            raise errors[0]

    def write_record(self, progress: Mapping[str, Any]) -> None:
        """Write run.json; `interval` is the time since the last one, after which a reader can expect the next."""
        if self._files is not None:
            clock = time.monotonic()
            interval = round(clock - self._written, 3)
            self._files.write_record({**self._run, "updated": now(), "interval": interval, **progress})
            self._written = clock

    def close(self) -> None:
        """Leave the folder to others."""
        if self._files is not None:
            self._files.close()
