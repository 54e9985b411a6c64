"""The manifest of a run in parts: which blocks of windows are finished, in which files, with their digests.

`manifest.jsonl` lies beside the files. Its first line is the plan of the run, everything that determines the numbers,
with the names of model and text; each further line is a finished block. Lines are appended, so that a process that is
killed loses at most the last one.

| folder | holds |
|---|---|
| `.parts` | the finished blocks of a run in progress, or of one that was stopped |
| `parts` | the tables of a finished run that are too large for one file each |
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from attnscope.errors import OutputError, shown

MANIFEST = "manifest.jsonl"
UNFINISHED, FINISHED = ".parts", "parts"
CHUNK = 25_000  # lines that are read at once
_SHOWN = 60  # characters of a setting in a message


@dataclass
class Manifest:
    """What a manifest says: the header, and the entry of each finished block by number."""

    folder: Path
    header: dict[str, Any]
    entries: dict[int, dict[str, Any]] = field(default_factory=dict)
    _heads: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, folder: Path) -> Manifest | None:
        """The manifest in a folder; None if there is none. A line that is not whole ends it."""
        try:
            lines = (folder / MANIFEST).read_bytes().split(b"\n")
            header = json.loads(lines[0])
            header["plan"], header["windows"], header["block"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        found = cls(folder, header)
        for line in lines[1:]:
            try:
                found._keep(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                break
        return found

    def unlike(self, other: Manifest) -> list[str]:
        """In which entries of the plan another run differs, in words; names of the model and the text do not count."""
        theirs, ours = ({key: each.header[key] for key in ("plan", "windows", "block")} for each in (self, other))
        return differences(theirs["plan"], ours["plan"]) or differences(theirs, ours)

    @property
    def finished_windows(self) -> int:
        """How many windows are finished."""
        return sum(stop - start for start, stop in (entry["windows"] for entry in self.entries.values()))

    def sound(self, number: int) -> bool:
        """Whether the files of a block are those that were written."""
        tables = self.entries[number]["tables"]
        try:
            return all(digest(self._file(one)) == one["sha256"] for one in tables.values())
        except OSError:
            return False

    def lines(self, table: str) -> int:
        """Lines of a table in all parts."""
        return sum(entry["tables"][table]["lines"] for entry in self.entries.values() if table in entry["tables"])

    def files(self, table: str) -> list[Path]:
        """The files of a table, in the order of the blocks."""
        entries = (self.entries[number]["tables"] for number in sorted(self.entries))
        return [self._file(tables[table]) for tables in entries if table in tables]

    def frame(self, table: str, schema: pl.Schema) -> pl.LazyFrame:
        """A table as one lazy frame; OutputError if a file is missing or was cut."""
        for entry in self.entries.values():
            for one in entry["tables"].values():
                file = self._file(one)
                if not file.is_file() or file.stat().st_size != one["bytes"]:
                    raise OutputError(f"{str(file)!r} is missing or damaged; scan again")
        files = self.files(table)
        return pl.scan_parquet(files, schema=schema, glob=False) if files else pl.LazyFrame(schema=schema)

    @property
    def windows(self) -> list[int]:
        """The numbers of all finished windows, in order."""
        spans = (self.entries[number]["windows"] for number in sorted(self.entries))
        return [window for start, stop in spans for window in range(start, stop)]

    def chunks(self, schemas: Mapping[str, pl.Schema]) -> Iterator[tuple[pl.DataFrame, ...]]:
        """The tables of some consecutive blocks after another, as many at a time as make a chunk of `CHUNK` lines."""
        waiting: list[dict[str, Any]] = []
        lines = 0
        for number in sorted(self.entries):
            tables = self.entries[number]["tables"]
            waiting.append(tables)
            lines += max((one["lines"] for one in tables.values()), default=0)
            if lines >= CHUNK:
                yield self._chunk(waiting, schemas)
                waiting, lines = [], 0
        if waiting:
            yield self._chunk(waiting, schemas)

    def _chunk(self, blocks: list[dict[str, Any]], schemas: Mapping[str, pl.Schema]) -> tuple[pl.DataFrame, ...]:
        found = []
        for name, schema in schemas.items():
            files = [self._file(tables[name]) for tables in blocks if name in tables]
            parts = [pl.read_parquet(file, schema=schema) for file in files]
            found.append(pl.concat(parts) if parts else pl.DataFrame(schema=schema))
        return tuple(found)

    def _file(self, entry: dict[str, Any]) -> Path:
        """A file of the manifest, which lies beside it whatever its entry says."""
        return self.folder / Path(entry["file"]).name

    def text(self) -> str:
        """The manifest as it is written, blocks in order."""
        return "".join(_lines([self.header, *(self.entries[number] for number in sorted(self.entries))]))

    def append(self, entry: dict[str, Any]) -> None:
        """Add a finished block whose files are written; the manifest itself is written with the first one."""
        new = [] if (self.folder / MANIFEST).exists() else [self.header]
        try:
            with (self.folder / MANIFEST).open("a", encoding="utf-8") as file:
                file.writelines(_lines([*new, entry]))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise OutputError(f"cannot write to {str(self.folder)!r}: {error.strerror}") from error
        self._keep(entry)

    def _keep(self, entry: dict[str, Any]) -> None:
        """Hold an entry; what the notes of all blocks say alike about heads is in memory once."""
        heads = entry["notes"].get("heads")
        entry["notes"]["heads"] = self._heads.setdefault(json.dumps(heads), heads)
        self.entries[int(entry["block"])] = entry


def _lines(records: list[dict[str, Any]]) -> Iterator[str]:
    return (json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n" for record in records)


def digest(file: Path) -> str:
    """SHA-256 of a file."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def differences(stored: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = "") -> list[str]:
    """In which entries two plans differ, in words."""
    found: list[str] = []
    for name in dict.fromkeys([*stored, *wanted]):
        one, other = stored.get(name), wanted.get(name)
        if one == other:
            continue
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            found += differences(one, other, f"{prefix}{name}.")
        elif max(len(repr(one)), len(repr(other))) > _SHOWN:
            found.append(f"{prefix}{name} differs")
        else:
            found.append(f"{prefix}{name} is {shown(one)} there and {shown(other)} here")
    return found
