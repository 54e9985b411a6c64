"""Where finished blocks of windows are kept: in memory or on disk.

On disk, every block is kept as soon as it is finished: after an interruption, the same command reads the finished
blocks back instead of running them again.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import polars as pl

from attnscope.engine.blocks import Failure, run_blocks
from attnscope.engine.run import BlockFiles, Part, encode_parts, merge_parts
from attnscope.errors import OutputError, parameter
from attnscope.store.folders import write_all
from attnscope.store.manifest import FINISHED, MANIFEST, UNFINISHED, Manifest

if TYPE_CHECKING:
    from attnscope.engine.blocks import Blocks, Engine, Work
    from attnscope.progress import OnStep


class PartStore(ABC):
    """The finished blocks of a run, and those that failed."""

    def __init__(self) -> None:
        self.failed: list[dict[str, Any]] = []
        self.resumed = 0  # windows that an earlier run had finished

    finish: Callable[[list[Part]], Any]  # what `Work.finish` is to be for this store

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, *error: object) -> None:
        """The run ends, with or without an error."""

    @abstractmethod
    def done(self) -> None:
        """Drop the blocks: their tables are written. If some failed they stay, and the same command tries those."""

    @abstractmethod
    def finished_blocks(self) -> list[int]:
        """The finished blocks, in order."""

    @abstractmethod
    def part(self, number: int) -> Part:
        """A finished block."""

    @abstractmethod
    def add(self, number: int, span: range, result: Any) -> None:
        """Keep a finished block."""

    @abstractmethod
    def notes(self) -> list[dict[str, Any]]:
        """The notes of the finished blocks, in order."""

    def table(self, name: str, schema: pl.Schema | None = None) -> pl.DataFrame:
        """A table of all finished blocks, in the order of windows."""
        tables = [part.tables[name] for part in map(self.part, self.finished_blocks()) if name in part.tables]
        tables = [table for table in tables if table.width]
        if not tables:
            return pl.DataFrame(schema=schema)
        joined = pl.concat(tables)
        in_order = "window" not in joined.columns or joined["window"].is_sorted()
        return joined if in_order else joined.sort("window", maintain_order=True)


class BlocksInMemory(PartStore):
    """Finished blocks in memory."""

    finish = staticmethod(merge_parts)

    def __init__(self) -> None:
        super().__init__()
        self._parts: dict[int, Part] = {}

    def __exit__(self, *error: object) -> None:
        """There is nothing to clean up."""

    def done(self) -> None:
        """The result has the tables."""

    def finished_blocks(self) -> list[int]:
        return sorted(self._parts)

    def part(self, number: int) -> Part:
        return self._parts[number]

    def add(self, number: int, span: range, result: Part) -> None:
        self._parts[number] = result

    def notes(self) -> list[dict[str, Any]]:
        return [self._parts[number].notes for number in self.finished_blocks()]


class BlocksOnDisk(PartStore):
    """Finished blocks on disk, in the folder `.parts` of the run, with their manifest.

    `plan` is everything that determines the numbers: a folder with blocks of another plan is refused. `names` are those
    of the model and the text, for whoever lists the run. Used as a context manager in a folder that is locked for this
    process.
    """

    finish = staticmethod(encode_parts)

    def __init__(
        self, folder: Path, plan: dict[str, Any], blocks: Blocks, names: Mapping[str, str | None] | None = None
    ) -> None:
        super().__init__()
        self.folder = folder / UNFINISHED
        header = {"plan": plan, "windows": len(blocks.windows), "block": blocks.size, "names": names or {}}
        self.manifest = Manifest(self.folder, json.loads(json.dumps(header)))

    def __enter__(self) -> Self:
        self._reopen()
        for file in self.folder.glob("overview*"):  # of the blocks that were finished then
            file.unlink()
        stored = Manifest.read(self.folder)
        if stored is None:  # of an older version, or not whole
            self.clear()
            return self
        unlike = stored.unlike(self.manifest)
        if unlike and stored.entries:
            raise OutputError(
                f"{str(self.folder.parent)!r} has an unfinished run that is not this one: {'; '.join(unlike)}. Repeat "
                f"its own command to finish it, delete {str(self.folder)!r} to drop it, or choose another "
                f"{parameter('out')}"
            )
        sound = {number: entry for number, entry in stored.entries.items() if not unlike and stored.sound(number)}
        self.manifest.entries = sound
        self.resumed = self.manifest.finished_windows
        text = self.manifest.text()
        if sound:
            write_all(self.folder, {MANIFEST: lambda path: path.write_text(text, encoding="utf-8")})
        else:
            self.clear()
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError):  # it has finished blocks: keep it for resuming
            self.folder.rmdir()

    def _reopen(self) -> None:
        """Take back the parts of a run that has ended, or that was killed as it ended: nothing is measured twice."""
        finished = self.folder.with_name(FINISHED)
        stored = Manifest.read(finished)
        if not self.folder.exists() and stored is not None and not stored.unlike(self.manifest):
            finished.with_name("run.json").unlink(missing_ok=True)
            finished.rename(self.folder)

    def finished_blocks(self) -> list[int]:
        return sorted(self.manifest.entries)

    def part(self, number: int) -> Part:
        entry = self.manifest.entries[number]
        tables = {name: pl.read_parquet(self.folder / one["file"]) for name, one in entry["tables"].items()}
        return Part(tables, entry["notes"])

    def notes(self) -> list[dict[str, Any]]:
        return [self.manifest.entries[number]["notes"] for number in self.finished_blocks()]

    def add(self, number: int, span: range, result: BlockFiles) -> None:
        """Write a finished block; its line in the manifest is written last and marks it as complete."""
        names = {name: f"{name}-{number:05d}.parquet" for name in result.files}
        write_all(self.folder, {names[name]: _writer(content) for name, content in result.files.items()})
        tables = {
            name: {
                "file": names[name],
                "lines": result.lines[name],
                "bytes": len(content),
                "sha256": hashlib.sha256(content).hexdigest(),
            }
            for name, content in result.files.items()
        }
        entry = {"block": number, "windows": [span.start, span.stop], "tables": tables, "notes": result.notes}
        self.manifest.append(entry)

    def done(self) -> None:
        """Delete all blocks, unless some failed."""
        if not self.failed:
            self.clear()

    def clear(self) -> None:
        """Delete all blocks, and what older versions have left."""
        for pattern in ("*.parquet", "*.json", "*.jsonl", ".*-*"):
            for file in self.folder.glob(pattern):
                file.unlink(missing_ok=True)


def _writer(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def collect(
    engine: Engine, work: Work[Part, Any], blocks: Blocks, store: PartStore, progress: OnStep | None = None
) -> None:
    """Run all blocks that the store does not have yet; those that fail are listed in `store.failed`."""
    for number, outcome in run_blocks(engine, work, blocks, finished=store.finished_blocks(), progress=progress):
        span = blocks.span(number)
        if isinstance(outcome, Failure):
            windows = {"first_window": span.start, "last_window": span.stop - 1}
            store.failed.append({"block": number, **windows, "reason": outcome.reason, "attempts": outcome.attempts})
        else:
            store.add(number, span, outcome)
    store.failed.sort(key=lambda failure: failure["block"])
