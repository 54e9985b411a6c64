"""The kinds of runs: how the folder of each is recognized, read, described and shown.

A room or a study declares its kinds in its `__init__.py` as `KINDS`, a tuple of `Kind`. Nothing else lists them:
studies are found by looking into `attnscope.studies`. Whatever reads folders (`load_run`, `attnscope report`,
`attnscope serve`) asks here and knows no kind by name.

Requirement: importing this module, and finding the kinds, loads neither torch nor polars. What a kind can do is named
as "module:name" and imported when it is used.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Any, Literal

from attnscope._process import refuses_after_fork
from attnscope.errors import OutputError, shown

RECORD = "run.json"
OLDEST = (0, 2, 0)  # the version whose folders are still read

# Rooms that declare kinds; their `__init__` is light, as that of every study.
_ROOMS = ("attnscope.scanning", "attnscope.diagnosis", "attnscope.monitor")
_STUDIES = "attnscope.studies"

State = Literal["finished", "running", "training", "failed", "stopped", "unreadable"]


@dataclass(frozen=True)
class Verb:
    """A command of the command line: its name, its function as "module:name", and its group in `--help`."""

    name: str
    function: str
    group: str


@dataclass(frozen=True)
class Kind:
    """A kind of run.

    Attributes
    ----------
    name
        The field `kind` of its `run.json`.
    load
        "module:name" of a function of the folder that gives the result: a `Result`, with `page()`.
    describe
        "module:name" of a function of the folder and its record that gives a `Description`.
    record
        The JSON file that says what was run. Beside another one than `run.json`, that names the kind (`name_kind`).
    beside
        Files, as patterns, of which one shows the kind beside a `run.json` that names none or cannot be read.
    written
        All files that a run of this kind may have, as patterns.
    needs
        Files that it cannot be read without, beside its record: of each group one; errors name its first.
    schema
        The version of its format that is read, the field `schema` of its record; 0: it has none.
    joins
        The kind whose folder, result and page a run of this kind becomes part of; empty: none.
    page
        "module:name" of a function of a place on a server and of a folder that gives the page there. Default: the
        page of the result. The place has the addresses `home` and `here`, and the `names` of the runs.
    side_by_side
        Whether `page` takes a second folder, to show two runs of this kind beside each other.
    live
        The module that follows a run while it goes on, with `data(folder)`, `changed(folder)` and
        `added(folder, since)` as in `attnscope.monitor.page`.
    verbs
        Its commands.
    """

    name: str
    load: str
    describe: str
    record: str = RECORD
    beside: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    needs: tuple[tuple[str, ...], ...] = ()
    schema: int = 0
    joins: str = ""
    page: str = ""
    side_by_side: bool = False
    live: str = ""
    verbs: tuple[Verb, ...] = ()


@dataclass(frozen=True)
class Description:
    """A run in a list: what was measured, of which model on which text, with which verdict."""

    model: str = ""
    text: str = ""
    settings: str = ""
    verdict: str = ""
    finished: str = ""  # a time in ISO format; empty: when the record was written
    state: State = "finished"


def kinds() -> Iterator[Kind]:
    """Every kind: those of the rooms first, then those of the studies that are there."""
    studies = importlib.import_module(_STUDIES)
    found = sorted(module.name for module in pkgutil.iter_modules(studies.__path__, f"{_STUDIES}."))
    for module in (*_ROOMS, *found):
        yield from getattr(importlib.import_module(module), "KINDS", ())


def kind_of(folder: Path) -> Kind:
    """The kind of the run in a folder; OutputError says why there is none that can be read."""
    found = find_kind(folder)
    if found is None:
        if not folder.is_dir():
            raise OutputError(f"{shown(str(folder))} is not a folder; give one that a run was saved to")
        if (folder / RECORD).is_file():
            raise OutputError(f"{RECORD} in {str(folder)!r} cannot be read as that of a run; run again")
        records = ", ".join(dict.fromkeys(kind.record for kind in kinds()))
        raise OutputError(f"{str(folder)!r} holds no finished run: there is none of {records}")
    return found


def find_kind(folder: Path) -> Kind | None:
    """The kind of the run in a folder; None if there is no run.

    `run.json` names the kind. Without that field or without `run.json`, as version 0.2.0 wrote it, the files tell it.
    A `run.json` that is not of this package counts for nothing.
    """
    known = tuple(kinds())
    record = _content(folder / RECORD)
    name = record.get("kind") if isinstance(record, Mapping) else None
    if isinstance(name, str):
        for kind in known:
            if kind.name == name:
                return kind
        if "attnscope" in record:
            raise OutputError(
                f"{str(folder)!r} holds a run of the kind {shown(name)}, which is not part of this attnscope"
            )
    for kind in known:
        if (folder / kind.record).is_file() and (kind.record != RECORD or _has_any(folder, kind.beside)):
            return kind
    return None


def _has_any(folder: Path, patterns: tuple[str, ...]) -> bool:
    return any(next(folder.glob(pattern), None) is not None for pattern in patterns)


def read_record(folder: Path, kind: Kind) -> dict[str, Any]:
    """The record of a run; OutputError if it cannot be read, or was written by a version that is too old."""
    file = folder / kind.record
    try:
        content = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise OutputError(
            f"{file.name} in {str(folder)!r} cannot be read ({type(error).__name__}); run again"
        ) from error
    if not isinstance(content, dict):
        raise OutputError(f"{file.name} in {str(folder)!r} is damaged: it holds no JSON object; run again")
    version = content.get("attnscope")
    numbers = tuple(map(int, re.findall(r"\d+", version)[:3])) if isinstance(version, str) else OLDEST
    if numbers < OLDEST:
        raise OutputError(f"{str(folder)!r} was written by attnscope {version}, which is no longer read; run it again")
    return content


def describe(folder: Path, kind: Kind | None = None) -> Description:
    """One run as a line of a list; OutputError says what is damaged."""
    kind = kind or kind_of(folder)
    record = read_record(folder, kind)
    _refuse_unreadable(folder, kind, record)
    try:
        found: Description = resolve(kind.describe)(folder, record)
        found = found if found.finished else replace(found, finished=_written_at(folder / kind.record))
        for value in (found.model, found.text, found.settings, found.verdict, found.finished):
            if not isinstance(value, str):
                raise TypeError(f"{shown(value)} is no text")
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, OSError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise OutputError(f"{kind.record} in {str(folder)!r} is damaged ({reason}); run again") from error
    return found


def _refuse_unreadable(folder: Path, kind: Kind, record: Mapping[str, Any]) -> None:
    """Raise OutputError for a run in another format, and for one that lacks files."""
    version = record.get("schema")
    if kind.schema and version != kind.schema:
        newer = isinstance(version, int) and version > kind.schema
        which, advice = ("a newer", "upgrade attnscope") if newer else ("an older", "run again")
        raise OutputError(
            f"{str(folder)!r} was written by {which} attnscope (schema {shown(version)}, this one reads "
            f"{kind.schema}); {advice}"
        )
    missing = [files[0] for files in kind.needs if not any((folder / file).is_file() for file in files)]
    if missing:
        raise OutputError(f"{str(folder)!r} holds no finished run: {' and '.join(missing)} is missing; run again")


@refuses_after_fork
def load_run(folder: str | Path) -> Any:
    """Read a folder that a result was saved to, whatever kind of run it was.

    >>> folder = attnscope.scan(length=64, progress=False).save("runs/first")
    >>> attnscope.load_run(folder).run["settings"]["length"]
    64

    Parameters
    ----------
    folder
        What was given as `out` or to `save`. Runs of version 0.2.0 and later are read. A training run may still be
        going on.

    Returns
    -------
    Result
        The result as it was: a `ScanResult` with what was found in its folder later, a `Diagnosis`, a `TrainingRun`, or
        the result of a study; attnscope.OutputError if the folder holds none that can be read.
    """
    from attnscope.store.folders import given_folder

    path = given_folder(folder)
    kind = kind_of(path)
    describe(path, kind)  # what is damaged or missing is refused in the same words as in a list
    return resolve(kind.load)(path)


def name_kind(folder: Path, name: str) -> None:
    """Name the kind of a run with another record in `run.json`, which keeps its place if the study is deleted.

    The `run.json` of another run, or of a program of the user, stays: the folder is then of that kind.
    """
    from attnscope import __version__
    from attnscope.store.folders import as_file, write_all

    (kind,) = (kind for kind in kinds() if kind.name == name)
    found = _content(folder / RECORD)
    if not (folder / RECORD).exists() or (isinstance(found, Mapping) and isinstance(found.get("record"), str)):
        content = {"kind": name, "record": kind.record, "attnscope": __version__}
        write_all(folder, {RECORD: as_file(content)})


def files_of(kind: Kind) -> tuple[str, ...]:
    """All files that the folder of a kind may have, as patterns: with those of runs that it is joined with."""
    others = [other for other in kinds() if kind.name == other.joins or other.name == kind.joins]
    return tuple(dict.fromkeys(pattern for each in (kind, *others) for pattern in (*each.written, RECORD)))


def load_joined(folder: Path, name: str) -> dict[str, Any]:
    """The results in the folder of a run that are part of it, by kind; those that cannot be read are left out."""
    found = {}
    for kind in kinds():
        if kind.joins == name and (folder / kind.record).is_file():
            with suppress(OutputError):
                found[kind.name] = resolve(kind.load)(folder)
    return found


def write_joined(folder: Path, name: str, results: Mapping[str, Any]) -> None:
    """Write the results that are part of a run; those of an older run in the folder are removed."""
    for kind in kinds():
        if kind.joins == name and kind.name in results:
            results[kind.name].write(folder)
        elif kind.joins == name:
            for file in kind.written:
                (folder / file).unlink(missing_ok=True)


def _written_at(file: Path) -> str:
    return datetime.fromtimestamp(file.stat().st_mtime, UTC).isoformat(timespec="seconds")


def resolve(target: str) -> Any:
    """What is named as "module:name", where the name may be that of a method, "Class.method"."""
    module, _, name = target.partition(":")
    start: Any = importlib.import_module(module)
    found: Any = reduce(getattr, name.split("."), start)
    return found


def _content(file: Path) -> Any:
    try:
        return json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
