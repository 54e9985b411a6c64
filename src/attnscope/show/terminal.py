"""Blocks in a terminal, within its width (80 columns if it is not one).

Headings of tables are broken into lines at their spaces, cells of numbers are neither broken nor cut, and words wrap
under their own indentation. A command is continued on the next line after a backslash, so that it can be copied as a
whole.
"""

from __future__ import annotations

import io
import shlex
import sys
from collections.abc import Iterable, Sequence
from functools import singledispatch

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from attnscope.show import blocks as kind, palette
from attnscope.show.blocks import Block, Cell, Span, Tone, Words, flattened, parts, plain
from attnscope.show.numbers import visible

WIDTH = 80
_LONGEST_HEADING = 9  # characters of one of its lines, unless a word is longer
_MARGIN = 6  # columns before the first head of a map
_CELL = 4  # columns of a head, if there is room
_TALL = (kind.Table, kind.HeadMap)


def write(console: Console, blocks: Iterable[Block], verbose: bool = False) -> None:
    """Print blocks; those behind a fold if `verbose`."""
    # A file or another program gets a command on one line, and cmd.exe has no backslash.
    breaks = console.is_terminal and sys.platform != "win32"
    for made in _spaced(flattened(blocks, verbose), console.width, breaks):
        console.print(made, soft_wrap=isinstance(made, Text) and made.no_wrap)


def text(blocks: Iterable[Block], width: int = WIDTH, verbose: bool = False) -> str:
    """Blocks as text of at most `width` columns, without colors."""
    # A terminal, as far as rich knows: what goes to a file may be wider than asked for.
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None, highlight=False)
    with console.capture() as captured:
        write(console, blocks, verbose)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()).strip("\n")


def _spaced(blocks: Sequence[Block], width: int, breaks: bool) -> Iterable[RenderableType]:
    """What is printed for each block, with empty lines between; long commands are broken if `breaks`."""
    shown = [block for block in blocks if not isinstance(block, (kind.Chart, kind.Grid)) and block not in _EMPTY]
    for before, block in zip([None, *shown], shown, strict=False):
        if _apart(before, block):
            yield Text()
        if isinstance(block, kind.Next) and not isinstance(before, kind.Next):
            yield Text("Next", style="bold")
        yield from _written(block, width if breaks or not isinstance(block, kind.Next) else sys.maxsize)


_EMPTY = (kind.Items(()), kind.Facts({}))


def _apart(before: Block | None, block: Block) -> bool:
    if before is None or (isinstance(before, kind.Heading) and before.level > 1):
        return False
    if isinstance(block, kind.Next):
        return not isinstance(before, kind.Next)
    return isinstance(block, (kind.Heading, *_TALL)) or isinstance(before, (kind.Heading, *_TALL))


@singledispatch
def _written(block: Block, width: int) -> Iterable[RenderableType]:
    raise TypeError(f"the terminal shows no {type(block).__name__}")


@_written.register
def _heading(block: kind.Heading, width: int) -> Iterable[RenderableType]:
    title = words_text(block.title, "strong")
    yield Text.assemble(title, f": {visible(block.note)}") if block.note else title


@_written.register
def _verdict(block: kind.Verdict, width: int) -> Iterable[RenderableType]:
    yield Text.assemble(("Verdict: ", "bold"), words_text(block.words, block.tone))


@_written.register
def _note(block: kind.Note, width: int) -> Iterable[RenderableType]:
    yield paragraph(block.words, block.indent, block.mark, block.tone)


@_written.register
def _items(block: kind.Items, width: int) -> Iterable[RenderableType]:
    for place, item in enumerate(block.items, 1):
        yield paragraph(item, 2, f"{place}. " if block.ordered else "- ")


@_written.register
def _facts(block: kind.Facts, width: int) -> Iterable[RenderableType]:
    longest = max((len(name) for name, words in block.facts.items() if plain(words)), default=0)
    for name, words in block.facts.items():
        if plain(words):
            yield paragraph(words, 2, f"{name:{longest}}  ")


@_written.register
def _table(block: kind.Table, width: int) -> Iterable[RenderableType]:
    if block.title:
        yield words_text(block.title, "strong")
    yield from _tables(block, width)
    for note in block.notes:
        yield paragraph(note, tone="soft")


@_written.register
def _head_map(block: kind.HeadMap, width: int) -> Iterable[RenderableType]:
    title = words_text(block.title, "strong")
    yield Text.assemble(title, f": {visible(block.note)}") if block.note else title
    cell = cell_width(block, width)
    yield from map_lines(block, width)
    widest = max((len(one.wide) for one in block.cells.values()), default=0)
    if block.narrow and cell < widest:
        yield Text(" " * _MARGIN + block.narrow, style="dim")
    if block.scale:
        low, high = block.scale
        colors = [("  ", f"on {color}") for color in palette.SCALE]
        yield Text.assemble(" " * _MARGIN, f"{low} ", *colors, f" {high}")
    longest = max((len(key.name) for key in block.keys), default=0)
    counted = any(key.heads is not None for key in block.keys)
    for key in block.keys:
        mark = Text.assemble(
            (f" {key.mark or ' '} ", on_color(key.color) if key.color else ""), f" {visible(key.name):{longest}}  "
        )
        if counted:
            mark.append(f"{'' if key.heads is None else f'{key.heads:,}':>4}  ")
        yield paragraph(key.words, 5, mark)


@_written.register
def _next(block: kind.Next, width: int) -> Iterable[RenderableType]:
    yield Text(broken(shlex.split(block.command), width), no_wrap=True)
    if block.why:
        yield paragraph(block.why, 6, tone="soft")


def words_text(words: Words, tone: Tone = "") -> Text:
    """Words with their tones, as rich prints them."""
    made = Text(style=palette.TERMINAL[tone])
    for part in parts(words):
        span = part if isinstance(part, Span) else Span(part)
        made.append(visible(span.text), on_color(span.color) if span.color else palette.TERMINAL[span.tone] or None)
    return made


def paragraph(words: Words, indent: int = 0, mark: str | Span | Text = "", tone: Tone = "") -> Padding:
    """Words with all lines indented; `mark` is put before the first line, inside the indentation."""
    made = words_text(words, tone)
    if not mark:
        return Padding(made, (0, 0, 0, indent))
    grid = RichTable.grid(padding=0)
    grid.add_column(no_wrap=True)
    grid.add_column()
    grid.add_row(mark if isinstance(mark, Text) else words_text(mark, tone), made)
    return Padding(grid, (0, 0, 0, indent))


def on_color(color: str) -> str:
    """The style of a mark on a background of this color (#rrggbb)."""
    return f"{palette.ink_on(color)} on {color}"


def broken(words: Sequence[str], width: int) -> str:
    """A command on lines of at most `width` columns, as far as its words allow; a shell reads it as one line."""
    lines = [" "]
    for word in map(shlex.quote, words):
        if lines[-1].strip() and len(f"{lines[-1]} {word} \\") > width:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {word}"
    return "\n".join(lines)


def _tables(block: kind.Table, width: int) -> list[RichTable]:
    """One table, or several with the same first column where the numbers have no room beside each other."""
    columns = range(len(block.headings))
    room = {column: _room(block, column) for column in columns}
    found: list[list[int]] = []
    numbers = [column for column in columns if column and column not in block.texts]
    fixed = [column for column in columns if column not in numbers]
    if sum(room.values()) <= width + 1 or not numbers:
        found = [list(columns)]
    else:
        first = fixed  # words are shown once, with the first numbers
        left = -1
        for column in numbers:
            if room[column] > left:
                found.append([*(first if not found else [0])])
                left = width + 1 - sum(room[each] for each in found[-1])
            found[-1].append(column)
            left -= room[column]
    return [_one_table(block, sorted(chosen), width) for chosen in found]


def _room(block: kind.Table, column: int) -> int:
    """The least width of a column, with the space after it."""
    lines = [line for row in block.rows for line in plain(row[column]).split("\n")]
    if column not in block.texts:
        return 1 + max(map(len, (*heading_lines(block.headings[column]), *lines)), default=0)
    longest_word = max((len(word) for line in lines for word in line.split()), default=0)
    natural = max(map(len, (block.headings[column], *lines)), default=0)
    return 1 + max(min(natural, block.narrow), min(longest_word, WIDTH // 2))


def _one_table(block: kind.Table, columns: Sequence[int], width: int) -> RichTable:
    headings = {
        column: [block.headings[column]] if column in block.texts else heading_lines(block.headings[column])
        for column in columns
    }
    height = max((len(lines) for lines in headings.values()), default=0)
    made = RichTable(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for column, lines in headings.items():
        is_text = column in block.texts
        made.add_column(
            visible("\n".join([*[""] * (height - len(lines)), *lines])),  # the last lines of all are on one line
            justify="left" if is_text else "right",
            no_wrap=not is_text,
            overflow="fold",
            min_width=min(width, _room(block, column) - 1) if is_text else None,
        )
    for row in block.rows:
        made.add_row(*(words_text(row[column]) for column in columns))
    return made


def heading_lines(heading: str) -> list[str]:
    """A heading in short lines."""
    lines: list[str] = []
    for word in heading.split():
        if lines and len(lines[-1]) + 1 + len(word) <= _LONGEST_HEADING:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def cell_width(block: kind.HeadMap, width: int) -> int:
    """Columns of a head on a map."""
    across = max((head for _, head in block.cells), default=0) + 1
    widest = max([_CELL, *(len(cell.wide) + 1 for cell in block.cells.values())])
    return next((each for each in range(widest, 1, -1) if across * each <= width - _MARGIN), 1)


def map_lines(block: kind.HeadMap, width: int) -> list[Text]:
    """The names of heads, as many as there is room for, then a line for each layer; many heads take several lines."""
    if not block.cells:
        return []
    across, cell = max(head for _, head in block.cells) + 1, cell_width(block, width)
    wide = cell >= max(len(one.wide) for one in block.cells.values())
    each = max(1, (width - _MARGIN) // cell)
    starts = range(0, across, each)
    step = -(-(len(f"H{across - 1}") + 1) // cell)  # heads between two names
    names = "".join(f"H{head}".ljust(step * cell) for head in range(0, min(each, across), step))
    lines = [Text(" " * _MARGIN + names.rstrip(), style="dim")]
    for layer in sorted({layer for layer, _ in block.cells}):
        for start in starts:
            name = f"L{layer}" if start == 0 else ""
            line = Text(f"{name:>{_MARGIN - 2}}  ", style="dim")
            made = Text.assemble(line)
            for head in range(start, min(start + each, across)):
                made.append_text(_cell(block.cells.get((layer, head)), cell, wide))
            lines.append(made)
    return lines


def _cell(cell: Cell | None, width: int, wide: bool) -> Text:
    if cell is None:
        return Text(" " * width)
    mark = (wide and cell.wide) or cell.mark
    return Text(visible(mark).center(width)[:width], on_color(cell.color))
