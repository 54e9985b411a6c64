"""Results of finished windows, kept on disk until all windows are finished.

After an interruption, the same command reads the finished windows back instead of running them again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from attnscope.tables import write_all

Head = tuple[int, int]
"""Layer number, head number."""


@dataclass(frozen=True)
class Part:
    """The tables of one finished window by name, and notes for `run.json`."""

    tables: dict[str, pl.DataFrame]
    notes: dict[str, Any]
    measure_seconds: float = 0.0
    resumed: bool = False  # read back from disk


@dataclass
class WindowRecord:
    """What is recorded about a window while the model runs; measurers add the data they collect."""

    number: int = 0
    layers: dict[int, dict[str, Any]] = field(default_factory=dict)  # heads, module and kind of each
    skipped: dict[Head, str] = field(default_factory=dict)  # heads left out, with the reason
    tokens: int = 0  # without padding
    dropped_rows: int = 0  # rows without a visible key
    measure_seconds: float = 0.0

    def skip_layer(self, layer: int, heads: int, reason: str) -> None:
        """Leave all heads of a layer out."""
        self.skipped.update({(layer, head): reason for head in range(heads)})

    def skipped_heads(self) -> list[dict[str, Any]]:
        """The heads left out, as records for `run.json`."""
        return [
            {"layer": layer, "head": head, "window": self.number, "reason": reason}
            for (layer, head), reason in sorted(self.skipped.items())
        ]

    def part(self, tables: dict[str, pl.DataFrame]) -> Part:
        """The finished window with these tables."""
        notes = {
            "skipped": self.skipped_heads(),
            "heads": [self.layers[layer] for layer in sorted(self.layers)],
            "tokens": self.tokens,
            "dropped_rows": self.dropped_rows,
        }
        return Part(tables, notes, self.measure_seconds)


def merge_skipped(windows: Iterable[list[dict[str, Any]]]) -> dict[Head, dict[str, Any]]:
    """The skipped heads of all windows in order, each with the record of the first window in which it was skipped."""
    merged: dict[Head, dict[str, Any]] = {}
    for records in windows:
        for record in records:
            merged.setdefault((record["layer"], record["head"]), record)
    return dict(sorted(merged.items()))


def without_heads(table: pl.DataFrame, heads: Collection[Head]) -> pl.DataFrame:
    """The table without the lines of these heads; a table without heads is unchanged."""
    if not heads or not {"layer", "head"} <= set(table.columns):
        return table
    kinds = {name: table.schema[name] for name in ("layer", "head")}
    return table.join(
        pl.DataFrame(list(heads), schema=kinds, orient="row"), on=["layer", "head"], how="anti", maintain_order="left"
    )


class Parts:
    """The finished windows of a run in progress, stored in its folder `.parts`.

    `plan` is everything that determines the numbers: parts of a different plan are deleted. `schemas` maps the name of
    each table of a part to its schema, where that is fixed.
    """

    def __init__(self, folder: Path, plan: dict[str, Any], schemas: Mapping[str, pl.Schema | None]) -> None:
        self.folder = folder / ".parts"
        self._plan = json.loads(json.dumps(plan))
        self._schemas = schemas

    def __enter__(self) -> Parts:
        if self.folder.exists() and self._stored_plan() != self._plan:
            self.clear()
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError):  # it has finished windows: keep it for resuming
            self.folder.rmdir()

    def get(self, window: int) -> Part | None:
        """The part of a window, if it was finished and can be read; otherwise None."""
        files = self._files(window)
        try:
            notes = json.loads(files["notes"].read_text("utf-8"))
            tables = {name: pl.read_parquet(files[name], schema=schema) for name, schema in self._schemas.items()}
        except (OSError, ValueError, pl.exceptions.PolarsError):
            return None
        return Part(tables, notes, resumed=True)

    def add(self, window: int, part: Part) -> None:
        """Write a finished window; its notes are written last and mark it as complete."""
        files = self._files(window)
        plan, notes = json.dumps(self._plan), json.dumps(part.notes)
        write_all(
            self.folder,
            {
                "plan.json": lambda path: path.write_text(plan, encoding="utf-8"),
                **{files[name].name: part.tables[name].write_parquet for name in self._schemas},
                files["notes"].name: lambda path: path.write_text(notes, encoding="utf-8"),
            },
        )

    def clear(self) -> None:
        """Delete all windows."""
        for pattern in ("*.json", "*.parquet", ".*-*"):
            for file in self.folder.glob(pattern):
                file.unlink(missing_ok=True)

    def _files(self, window: int) -> dict[str, Path]:
        kinds = {**dict.fromkeys(self._schemas, "parquet"), "notes": "json"}
        return {name: self.folder / f"window-{window:05d}.{name}.{kind}" for name, kind in kinds.items()}

    def _stored_plan(self) -> object:
        try:
            return json.loads((self.folder / "plan.json").read_text("utf-8"))
        except (OSError, ValueError):
            return None
