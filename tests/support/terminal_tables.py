"""The tables that a command prints, as rich draws them at a width, and what must be true of each."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

WIDTH = 80


@dataclass(frozen=True)
class Drawn:
    """A table: its headings and cells as they were given, and the lines that were drawn."""

    columns: dict[str, list[str]]
    headings: list[str]
    lines: list[str]

    @property
    def cells(self) -> list[str]:
        return [cell for cells in self.columns.values() for cell in cells]


@contextmanager
def recorded_tables(width: int = WIDTH) -> Iterator[list[Drawn]]:
    """Record every table that is printed inside the block, drawn anew at `width`; grids without headings are not."""
    found: list[Drawn] = []
    draw = Table.__rich_console__

    def record(table: Table, console: Console, options: Any) -> Any:
        if table.show_header and not getattr(table, "_recorded", False):
            table._recorded = True  # type: ignore[attr-defined]  # drawing it here would record it again
            text = io.StringIO()
            Console(file=text, width=width, force_terminal=True, color_system=None).print(table)
            headings = [" ".join(str(column.header).split()) for column in table.columns]
            cells = [[str(cell) for cell in column.cells] for column in table.columns]
            lines = [line.rstrip() for line in text.getvalue().splitlines()]
            found.append(Drawn(dict(zip(headings, cells, strict=True)), headings, lines))
        return draw(table, console, options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Table, "__rich_console__", record)
        yield found


def assert_readable(table: Drawn, width: int = WIDTH) -> None:
    """No cell is cut, no word is broken, no two columns have the same heading, no line is too long."""
    named = [heading for heading in table.headings if heading]
    assert len(set(named)) == len(named), f"two columns have the same heading: {table.headings}"
    assert not [line for line in table.lines if len(line) > width]
    drawn = "\n".join(table.lines)
    assert "…" not in drawn, drawn
    there = drawn.split()
    words = [word for text in (*table.headings, *table.cells) for word in text.split()]
    missing = [word for word in words if there.count(word) < words.count(word)]
    assert not missing, f"broken or cut: {missing}\n{drawn}"
