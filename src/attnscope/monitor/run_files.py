"""The files of a training run: their schemas, writing while the model trains, and reading them as they grow.

| file | holds |
|---|---|
| `run.json` | `kind` "training", the model, settings, thresholds, versions, `status`, times, steps, errors |
| `heads/part-*.parquet` | one line for each measured step, layer and head |
| `parameters/part-*.parquet` | the same for the parameters of learned normalizers, if the model has any |
| `alarms.jsonl` | one line for each alarm |
| `scalars.jsonl` | one line for each number of the whole model that was given to the monitor, such as the loss |

`run.json` has `status` ("running", "finished" or "failed"), `started`, `updated` and `finished` (null while it runs),
`steps` (optimizer steps so far), `measured` (how many of them), `errors` and `last_error` of the monitor itself,
`model` (`name`, `class`, `dtype`, `parameters`, `heads`: layer, heads, module and kind of each layer), `settings`
(`every`, `rows`, `sequences`, `top_n`), `thresholds`, `versions`, `skipped_heads` (layer, head, step and reason).

A part is rewritten under a temporary name and renamed, with one more step each time, until it is full. Lines of the
other files are appended; a last line that was cut off is ignored. So a reader sees every finished step at any time, and
a run that was killed lacks at most the step at work. A resumed run drops the steps after the one it goes on from.

Trackers get a bounded set of numbers of each measured step:

| names | what |
|---|---|
| `attention/entropy_ratio/median`, `.../lowest`, `.../highest` | of all heads, for every measure |
| `attention/layer_3/entropy_ratio/median`, ... | of a layer, for as many measures as fit (in 76 layers: the median) |
| `attention/L3H5/entropy_ratio` | of a head that had an alarm, or was the worst of all heads in this measure early on |
| `attention/alarms` | how many alarms there have been |
"""

from __future__ import annotations

import importlib.util
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from attnscope.capture.watching import handled
from attnscope.columns import head_name
from attnscope.errors import OutputError
from attnscope.monitor.alarms import RULES, Alarm
from attnscope.monitor.training_run import TrainingRun, last_change, status_of
from attnscope.store.folders import given_folder, output_folder, without_infinities, write_all

KIND = "training"
SCHEMA_VERSION = 1
_PART_LINES = 1 << 14  # lines after which a part is full

# The measures of a head: means over its measured rows, but for the largest logit. `top_mass`, `separability` and
# `null_random` are those of the `top_n` largest weights that the settings in run.json name.
MEASURES = (
    "max_logit",
    "logit_std",
    "entropy_ratio",
    "max_weight",
    "participation",
    "sink_weight",
    "top_mass",
    "separability",
    "null_random",
    "jacobian_norm",
    "jacobian_bound",
)
_KEYS = {"step": pl.Int64, "layer": pl.Int32, "head": pl.Int32}
# `rows` is how many rows were measured, `length` the mean number of keys that they see.
HEADS = pl.Schema(_KEYS | {"rows": pl.Int32, "length": pl.Float64} | dict.fromkeys(MEASURES, pl.Float64))
PARAMETERS = pl.Schema(_KEYS | {"name": pl.String, "value": pl.Float64})
ALARMS = pl.Schema(_KEYS | {"kind": pl.String, "value": pl.Float64, "limit": pl.Float64, "advice": pl.String})
SCALARS = pl.Schema({"step": pl.Int64, "name": pl.String, "value": pl.Float64})

TABLES = {"heads": HEADS, "parameters": PARAMETERS}
LINES = {"alarms": ALARMS, "scalars": SCALARS}


def read_record(folder: Path) -> dict[str, Any] | None:
    """The content of run.json, of whatever kind of run; None if there is none, or it cannot be read."""
    try:
        run = json.loads((folder / "run.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return run if isinstance(run, dict) else None


def now() -> str:
    """The present time as run.json has it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class TrainingFiles:
    """Writes the files of a training run; the only writer of its folder until it is closed."""

    def __init__(self, folder: str | Path) -> None:
        """OutputError if the folder cannot be written, or holds a run of another kind."""
        self.folder = given_folder(folder)
        if (self.folder / "compare.json").exists() or (self.folder / "run.json").exists():
            earlier = read_record(self.folder)
            if earlier is None or earlier.get("kind") != KIND:
                raise OutputError(f"{str(self.folder)!r} holds another kind of run; choose another folder for `out`")
        self._stack = ExitStack()
        self._stack.enter_context(output_folder(self.folder))
        self._unfinished = {name: pl.DataFrame(schema=schema) for name, schema in TABLES.items()}

    def keep_until(self, step: int) -> None:
        """Drop what was written after this step, by an earlier run or by this one."""
        self._unfinished = {name: part.clear() for name, part in self._unfinished.items()}  # the next part is new
        for name, schema in TABLES.items():
            for part in sorted((self.folder / name).glob("part-*.parquet")):
                lines = read_part(part, schema)
                kept = lines.filter(pl.col("step") <= step)
                if kept.is_empty():
                    part.unlink()
                elif kept.height < lines.height:
                    write_all(part.parent, {part.name: kept.write_parquet})
        for name, schema in LINES.items():
            file = self.folder / f"{name}.jsonl"
            if file.exists():
                kept = read_lines(file, schema)[0].filter(pl.col("step") <= step)
                text = "".join(f"{json.dumps(line)}\n" for line in kept.iter_rows(named=True))
                write_all(self.folder, {file.name: partial(_write_text, text)})

    def add_table(self, name: str, lines: pl.DataFrame) -> None:
        """Add the lines of a measured step to `heads` or `parameters`."""
        part = pl.concat([self._unfinished[name], lines.select(TABLES[name].names()).cast(TABLES[name])])
        if part.is_empty():
            return
        self._unfinished[name] = part  # written with the next step if it cannot be written now
        write_all(self.folder / name, {f"part-{part['step'][0]:09d}.parquet": part.write_parquet})
        if part.height >= _PART_LINES:
            self._unfinished[name] = part.clear()

    def add_lines(self, name: str, lines: Iterable[Mapping[str, Any]]) -> None:
        """Append lines to `alarms` or `scalars`."""
        text = "".join(f"{json.dumps(without_infinities(dict(line)))}\n" for line in lines)
        if not text:
            return
        try:
            with (self.folder / f"{name}.jsonl").open("ab+") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(0, end - 1))
                cut_off = file.read() not in (b"", b"\n")  # by a full disk
                file.write(b"\n" * cut_off + text.encode())
        except OSError as error:
            raise OutputError(f"cannot write to {str(self.folder)!r}: {error.strerror}") from error

    def write_record(self, run: Mapping[str, Any]) -> None:
        """Write run.json."""
        text = json.dumps({"schema": SCHEMA_VERSION, "kind": KIND, **run}, indent=1, allow_nan=False) + "\n"
        write_all(self.folder, {"run.json": partial(_write_text, text)})

    def close(self) -> None:
        """Leave the folder to others."""
        self._stack.close()


def _write_text(text: str, path: Path) -> None:
    path.write_text(text, encoding="utf-8")


def read_part(file: Path, schema: pl.Schema) -> pl.DataFrame:
    """The lines of a part; none if it cannot be read, or was replaced just now."""
    try:
        return pl.read_parquet(file, schema=schema)
    except (OSError, pl.exceptions.PolarsError):
        return pl.DataFrame(schema=schema)


def read_lines(file: Path, schema: pl.Schema, start: int = 0) -> tuple[pl.DataFrame, int]:
    """The lines of a file from a byte on that can be read, and the byte at which the next one will begin."""
    try:
        with file.open("rb") as opened:
            opened.seek(start)
            whole, end, _ = opened.read().rpartition(b"\n")
    except OSError:
        return pl.DataFrame(schema=schema), start
    lines = []
    for line in whole.splitlines():
        try:
            content = json.loads(line)
            lines.append({name: content[name] for name in schema})
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    table = _typed(lines, schema).sort("step", maintain_order=True)
    return table, start + len(whole) + len(end)


def _typed(lines: list[dict[str, Any]], schema: pl.Schema) -> pl.DataFrame:
    """The lines whose values have the types of the schema; a damaged file has others."""
    try:
        return pl.DataFrame(lines, schema=schema, orient="row")
    except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError):
        half = len(lines) // 2
        parts = (_typed(lines[:half], schema), _typed(lines[half:], schema)) if half else ()
        return pl.concat([pl.DataFrame(schema=schema), *parts])


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


MOST_NAMES = 300
_MOST_HEADS = 40  # names of single heads
_MOST_WORST = 20  # of them, without an alarm: in the first steps, the worst head is another one each time
_PREFIX = "attention"
_ENDS = ("median", "lowest", "highest")
# The measures by importance, and the ends at which a head is the worst one.
_BY_IMPORTANCE = ("entropy_ratio", "max_logit", "separability", "jacobian_norm", "logit_std", "max_weight")
_WORST = (
    ("max_logit", True),
    ("entropy_ratio", False),
    ("entropy_ratio", True),
    ("separability", False),
    ("jacobian_norm", True),
)


class LogValues:
    """The latest numbers for trackers, and which single heads they name."""

    def __init__(self) -> None:
        self.step = 0  # of the latest numbers
        self.latest: dict[str, float] = {}
        self._heads: dict[tuple[int, int, str], None] = {}

    def add(self, step: int, table: pl.DataFrame, alarms: Sequence[Alarm]) -> None:
        """Take the lines of a measured step, and all alarms so far."""
        values: dict[str, float | None] = {f"{_PREFIX}/alarms": len(alarms)}
        for measure in MEASURES:
            values |= _spread(f"{_PREFIX}/{measure}", table[measure])
        layers = table["layer"].unique(maintain_order=True).to_list()
        room = (MOST_NAMES - _MOST_HEADS - len(values)) // max(1, len(layers))
        ends = _ENDS if room >= len(_ENDS) else _ENDS[:1]
        others = [measure for measure in MEASURES if measure not in _BY_IMPORTANCE]
        for measure in (*_BY_IMPORTANCE, *others)[: room // len(ends)]:
            for layer in layers:
                lines = table.filter(pl.col("layer") == layer)[measure]
                values |= _spread(f"{_PREFIX}/layer_{layer}/{measure}", lines, ends)
        for alarm in alarms:
            about = RULES[alarm.kind].measure
            if about is not None and len(self._heads) < _MOST_HEADS:
                self._heads[alarm.layer, alarm.head, about] = None
        for measure, highest in _WORST:
            worst = table.drop_nulls(measure).sort(measure, descending=highest).head(1)
            for layer, head in worst.select("layer", "head").iter_rows():
                if len(self._heads) < _MOST_WORST:
                    self._heads[layer, head, measure] = None
        for layer, head, measure in self._heads:
            lines = table.filter((pl.col("layer") == layer) & (pl.col("head") == head))[measure]
            values[f"{_PREFIX}/{head_name(layer, head)}/{measure}"] = lines[0] if len(lines) else None
        self.step = step
        self.latest = {name: float(value) for name, value in values.items() if value is not None}


def _spread(name: str, values: pl.Series, ends: Sequence[str] = _ENDS) -> dict[str, float | None]:
    numbers = {"median": values.median(), "lowest": values.min(), "highest": values.max()}
    return {f"{name}/{end}": numbers[end] for end in ends}  # type: ignore[misc]


class TensorBoardWriter:
    """Writes the numbers of measured steps to event files; the writer is made with the first of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None

    @staticmethod
    def available() -> bool:
        """Whether the package `tensorboard` is installed."""
        return importlib.util.find_spec("tensorboard") is not None

    def __call__(self, step: int, values: dict[str, float]) -> None:
        """Write the numbers of one step."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._folder))
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the files."""
        if self._writer is not None:
            self._writer.close()
