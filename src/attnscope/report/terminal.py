"""Tables and paragraphs for a terminal of 80 columns.

Headings are broken into lines at their spaces, cells of numbers are neither broken nor cut, and text wraps between
words, under its own indentation.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_NAMELESS = ("model", "models", "checkpoint", "weights", "main", "hf")  # these say nothing without their folder
_LONGEST_HEADING = 9  # characters of one of its lines, unless a word is longer


def table(headings: Sequence[str], texts: Collection[int] = (0,)) -> Table:
    """A table without lines; the columns `texts` hold text, the others numbers."""
    lines = [[heading] if index in texts else _heading_lines(heading) for index, heading in enumerate(headings)]
    height = max((len(one) for one in lines), default=0)
    made = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for index, heading in enumerate(lines):
        text = "\n".join([*[""] * (height - len(heading)), *heading])  # the last lines of all are on one line
        made.add_column(
            text, justify="left" if index in texts else "right", no_wrap=index not in texts, overflow="fold"
        )
    return made


def tables(
    headings: Sequence[str], rows: Sequence[Sequence[str | Text]], width: int, text_width: int | None = None
) -> list[Table]:
    """Rows of a text and numbers as one table, or as several with the same texts if all columns do not fit.

    Texts are as wide as they are, or wrapped at `text_width` or more.
    """
    longest = max(len(row[0]) for row in rows)
    room = width - min(longest, text_width or longest)
    parts: list[list[int]] = [[]]
    left = room
    for column in range(1, len(headings)):
        lengths = [len(line) for line in (*_heading_lines(headings[column]), *(row[column] for row in rows))]
        needed = max(lengths) + 1
        if parts[-1] and needed > left:
            parts.append([])
            left = room
        parts[-1].append(column)
        left -= needed
    made = []
    for part in parts:
        made.append(table([headings[0], *(headings[column] for column in part)]))
        for row in rows:
            add_row(made[-1], row[0], *(row[column] for column in part))
    return made


def titled(title: str, *made: Table) -> Group:
    """Tables under a title, which may be wider than they are."""
    return Group(Text(title, style="bold"), *made)


def _heading_lines(heading: str) -> list[str]:
    lines: list[str] = []
    for word in heading.split():
        if lines and len(lines[-1]) + 1 + len(word) <= _LONGEST_HEADING:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def add_row(made: Table, *cells: str | Text) -> None:
    """Add a row; columns of text get at least the width of their longest word, so that no word is broken."""
    for column, cell in zip(made.columns, cells, strict=False):
        if not column.no_wrap:
            longest = max((len(word) for word in str(cell).split()), default=0)
            column.min_width = max(column.min_width or 0, longest)
    made.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))


def short_path(name: str) -> str:
    """The last part of a path, or the last two if that is a word like "model"; names on a hub stay."""
    parts = [part for part in name.replace("\\", "/").split("/") if part]
    if not (name.startswith((".", "/", "~")) or len(parts) > 2 or "\\" in name):
        return name
    return "/".join(parts[-2:] if parts and parts[-1].lower() in _NAMELESS else parts[-1:]) or name


def paragraph(words: str | Text, indent: int = 0, first: str = "", style: str = "") -> Padding:
    """Text with all lines indented; `first` is put before its first line, inside the indentation."""
    text = Text(words, style=style) if isinstance(words, str) else words
    if not first:
        return Padding(text, (0, 0, 0, indent))
    grid = Table.grid(padding=0)
    grid.add_column(no_wrap=True)
    grid.add_column()
    grid.add_row(Text(first, style=style), text)
    return Padding(grid, (0, 0, 0, indent))
