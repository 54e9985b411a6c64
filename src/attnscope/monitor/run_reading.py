"""Reading the files of a training run: all of them, or what was added since they were last read."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import polars as pl

from attnscope.errors import OutputError
from attnscope.folders import given_folder
from attnscope.monitor.run_files import KIND, LINES, SCHEMA_VERSION, TABLES, read_lines, read_part, read_record
from attnscope.monitor.training_run import TrainingRun, last_change, status_of


class WentBackError(OutputError):
    """The run dropped steps that were read already: it was resumed at an earlier one, or replaced."""


class Position(NamedTuple):
    """How far a run was read: its last step, and the inode and the number of bytes of each file of lines."""

    step: int = -1
    alarms: tuple[int, int] = (0, 0)
    scalars: tuple[int, int] = (0, 0)

    def __str__(self) -> str:
        """As text, for `parse`."""
        return "-".join(str(number) for number in (self.step + 1, *self.alarms, *self.scalars))

    @classmethod
    def parse(cls, text: str) -> Position:
        """The position that `str` gave; ValueError for any other text."""
        after, *numbers = (int(part) for part in text.split("-"))
        alarms, alarm_bytes, scalars, scalar_bytes = numbers
        return cls(after - 1, (alarms, alarm_bytes), (scalars, scalar_bytes))


def load(folder: str | Path) -> TrainingRun:
    """Read the folder of a training run, while it is written or later.

    >>> model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)
    >>> attnscope.Monitor(model, out="runs/train").close()
    >>> attnscope.monitor.load("runs/train").status
    'finished'

    Parameters
    ----------
    folder
        What was given to `attnscope.Monitor` as `out`.

    Returns
    -------
    TrainingRun
        What was written so far.
    """
    return read_after(given_folder(folder), Position())[0]


def read_after(path: Path, since: Position) -> tuple[TrainingRun, Position]:
    """What was written to a training run after a position, and the position now; WentBackError if that is not told."""
    run = read_record(path)
    if run is None or run.get("kind") != KIND:
        raise OutputError(f"{str(path)!r} holds no training run; give the folder that a Monitor has as `out`")
    schema = run.get("schema")
    if not isinstance(schema, int) or schema > SCHEMA_VERSION:
        raise OutputError(
            f"{str(path)!r} was written by a newer attnscope (training schema {schema}, this one reads "
            f"{SCHEMA_VERSION}); upgrade attnscope"
        )
    model = run.get("model")
    if (
        not isinstance(model, dict)
        or not isinstance(model.get("name"), str)
        or not isinstance(run.get("settings"), dict)
    ):
        raise OutputError(f"run.json in {str(path)!r} is damaged: it names no model or no settings")
    updated = last_change(path)
    tables = {name: _read_parts(path / name, kinds, since.step) for name, kinds in TABLES.items()}
    heads = tables["heads"]["step"]
    step = -1 if heads.is_empty() else int(heads[-1])
    if step < since.step:
        raise WentBackError(f"{str(path)!r} ends before step {since.step:,} now")
    tables = {name: table.filter(pl.col("step") > since.step) for name, table in tables.items()}
    lines, read = {}, {}
    for name, (inode, start) in (("alarms", since.alarms), ("scalars", since.scalars)):
        file = path / f"{name}.jsonl"
        now = _inode_and_size(file)
        if inode and (now[0] != inode or now[1] < start):
            raise WentBackError(f"{file.name} in {str(path)!r} was replaced")
        lines[name], end = read_lines(file, LINES[name], start)
        read[name] = (now[0], end)
    found = TrainingRun(run, **tables, **lines, folder=path, status=status_of(run, updated), updated=updated)
    return found, Position(step, read["alarms"], read["scalars"])


def _inode_and_size(file: Path) -> tuple[int, int]:
    try:
        found = file.stat()
    except OSError:
        return 0, 0
    return found.st_ino, found.st_size


def _read_parts(folder: Path, schema: pl.Schema, since: int) -> pl.DataFrame:
    """The parts that may hold a step from this one on; others are not opened."""
    files = sorted(folder.glob("part-*.parquet"))
    here = f"part-{max(0, since):09d}.parquet"
    wanted = [file for file, following in pairwise(files) if following.name > here] + files[-1:]
    parts = [read_part(file, schema) for file in wanted]
    return pl.concat([pl.DataFrame(schema=schema), *parts]).sort("step", "layer", "head", maintain_order=True)
