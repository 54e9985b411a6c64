"""The results of windows: what is recorded while the model runs, finished parts, and how parts are merged."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import polars as pl

Head = tuple[int, int]
"""Layer number, head number."""


@dataclass(frozen=True)
class Part:
    """The tables of a finished window, or of a block of them, by name, and notes for `run.json`."""

    tables: dict[str, pl.DataFrame]
    notes: dict[str, Any]


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
            "measure_seconds": self.measure_seconds,
        }
        return Part(tables, notes)


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


def merge_notes(notes: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The notes of several windows or blocks as one."""
    notes = list(notes)
    heads = {entry["layer"]: entry for note in notes for entry in note["heads"]}
    return {
        "skipped": list(merge_skipped(note["skipped"] for note in notes).values()),
        "heads": [heads[layer] for layer in sorted(heads)],
        **{name: sum(note[name] for note in notes) for name in ("tokens", "dropped_rows", "measure_seconds")},
    }


def merge_parts(parts: list[Part]) -> Part:
    """The windows of a block as one part, its tables sorted by layer and head."""
    if len(parts) == 1:
        return parts[0]
    tables = {}
    for name in parts[0].tables:
        table = pl.concat([part.tables[name] for part in parts])
        keys = [key for key in ("layer", "head") if key in table.columns]
        tables[name] = table.sort(keys, maintain_order=True) if keys else table
    return Part(tables, merge_notes(part.notes for part in parts))


@dataclass(frozen=True)
class BlockFiles:
    """A finished block as it is kept: a Parquet file for each table that has lines."""

    files: dict[str, bytes]
    lines: dict[str, int]
    notes: dict[str, Any]


def encode_parts(parts: list[Part]) -> BlockFiles:
    """The windows of a block as files."""
    merged = merge_parts(parts)
    files, lines = {}, {}
    for name, table in merged.tables.items():
        if table.height:
            content = io.BytesIO()
            table.write_parquet(content)
            files[name], lines[name] = content.getvalue(), table.height
    return BlockFiles(files, lines, merged.notes)
