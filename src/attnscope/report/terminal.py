"""Tables, paragraphs and closing lines for a terminal of 80 columns.

Requirements of the design:

- headings are broken into lines at their spaces, and cells of numbers are never broken or cut;
- text wraps between words, under its own indentation;
- what has to be copied (paths, commands) is never broken by a line end of ours.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console

_LONGEST_HEADING = 9  # characters of one of its lines, unless a word is longer


def table(headings: Sequence[str], title: str = "", texts: int = 1) -> Table:
    """A table without lines, whose first `texts` columns hold text and the others numbers."""
    lines = [_heading_lines(heading) for heading in headings]
    height = max((len(one) for one in lines), default=0)
    made = Table(
        title=title or None, title_justify="left", title_style="bold", header_style="bold", box=None,
        padding=(0, 1, 0, 0), pad_edge=False,
    )  # fmt: skip
    for index, heading in enumerate(lines):
        text = "\n".join([*[""] * (height - len(heading)), *heading])  # the last lines of all are on one line
        made.add_column(text, justify="left" if index < texts else "right", no_wrap=index >= texts, overflow="fold")
    return made


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


def print_closing(console: Console, files: Sequence[Path], report: Path | None, commands: Mapping[str, str]) -> None:
    """Print the last lines of a command: its files, how to open the report, and what to type next, with the reason."""
    if files:
        names = ", ".join(path.name for path in files)
        console.print(Text.assemble(("Files", "bold"), f" in {files[0].parent}: {names}"), soft_wrap=True)
    if report is not None:
        console.print(Text.assemble(("Open", "bold"), f"  {open_command(report)}"), soft_wrap=True)
    if commands:
        console.print(Text("Next", style="bold"))
        for command, reason in commands.items():
            console.print(Text(f"  {command}"), soft_wrap=True)
            console.print(paragraph(reason, 6, style="dim"))


def open_command(path: Path) -> str:
    """What opens a page from a shell here; its file:// address where there is no such command."""
    if sys.platform == "win32":
        return f'start "" "{path}"'
    opener = "open" if sys.platform == "darwin" else "xdg-open"
    return f"{opener} {shlex.quote(str(path))}" if shutil.which(opener) else path.absolute().as_uri()
