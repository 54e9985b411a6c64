"""What a result shows, as a list of blocks: small data classes without any markup.

`terminal`, `html` and `markdown` write any list of blocks. A view is a function that makes the list:

    def blocks(result: Recall, verbose: bool = False) -> list[Block]:
        rows = [(name, number(value, "share"), Span("agrees", "good")) for name, value in result.values.items()]
        return [
            Heading("Recall of gpt2", "4 windows of 1,024 tokens of book.txt"),
            Verdict("2 of 3 normalizers keep their recall."),
            Table(("Normalizer", "Recall", "Verdict"), rows, texts=(0, 2), notes=("Recall: share of keys found.",)),
            Chart("Recall against length", lambda: result.plot.curve()),
            Details("How it is measured", [Note("Passages of the text come again.")]),
            Next("attnscope recall gpt2 --windows 8", "More windows give shorter intervals."),
        ]

- The terminal opens `Details` if `verbose`, and leaves charts out; a page folds details and draws charts.
- All words are plain text: every backend escapes them and writes out characters that cannot be seen. `Span` gives a
  tone; a tuple of texts and spans is a sentence with several tones.
- Numbers are written by `attnscope.show.numbers` alone.
- The terminal puts empty lines between tables, maps and headings itself, and none between notes that follow each
  other. A note about one table belongs to its `notes`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

Tone = Literal["", "strong", "plain", "soft", "good", "bad", "warning", "code"]
"""How words look: bold, not bold in a title, less important, as a good or bad result or a doubt, as code."""


@dataclass(frozen=True)
class Span:
    """Words in a tone, or as a mark on a color (#rrggbb)."""

    text: str
    tone: Tone = ""
    color: str = ""


Words = str | Span | tuple["str | Span", ...]
"""A text, or its parts, of which some have a tone."""


def plain(words: Words) -> str:
    """The text of words."""
    return "".join(part.text if isinstance(part, Span) else part for part in parts(words))


def parts(words: Words) -> tuple[str | Span, ...]:
    """The parts of words."""
    return words if isinstance(words, tuple) else (words,)


def unpadded(words: Words) -> Words:
    """Words without the spaces that put numbers below each other in a terminal."""
    found = [part if isinstance(part, Span) else Span(part) for part in parts(words)]
    texts = [re.sub(" {2,}", " ", part.text) for part in found]
    if texts:
        texts[0] = texts[0].lstrip(" ")
        texts[-1] = texts[-1].rstrip(" ")
    return tuple(replace(part, text=text) for part, text in zip(found, texts, strict=True))


@dataclass(frozen=True)
class Heading:
    """A title, and a few words after it (terminal) or below it; level 1 is that of the whole result."""

    title: Words
    note: str = ""
    level: int = 1


@dataclass(frozen=True)
class Verdict:
    """What was found, in a sentence; the terminal writes "Verdict: " before it."""

    words: Words
    tone: Tone = ""


@dataclass(frozen=True)
class Note:
    """A paragraph; `mark` stands before it, e.g. "- " or the name of what it is about, and its lines are indented."""

    words: Words
    tone: Tone = ""
    mark: str | Span = ""
    indent: int = 0  # columns in the terminal


@dataclass(frozen=True)
class Items:
    """A list, numbered if `ordered`."""

    items: Sequence[Words]
    ordered: bool = False


@dataclass(frozen=True)
class Facts:
    """Names with what they are, below each other; those without words are left out."""

    facts: Mapping[str, Words]


@dataclass(frozen=True)
class Table:
    """A table; columns in `texts` hold words, all others numbers.

    In the terminal, words wrap and numbers never do: columns that have no room go to a further table with the same
    first column. `narrow` is the width up to which the first column may be wrapped to make room.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[Words]]
    title: str = ""
    texts: Collection[int] = (0,)
    notes: Sequence[str] = ()
    narrow: int = 28


class Cell(NamedTuple):
    """A head on a map: its color, a letter or digit on it, and words for the pointer.

    The terminal shows `wide` instead of the mark where all cells have room for it, e.g. " 43 " for a mark of "4".
    """

    color: str
    mark: str = ""
    words: str = ""
    wide: str = ""


class Key(NamedTuple):
    """What a color, a mark or both mean on a map, and how many heads have them."""

    color: str
    mark: str
    name: str
    words: str = ""
    heads: int | None = None


@dataclass(frozen=True)
class HeadMap:
    """A cell for each (layer, head), layers from top to bottom.

    `keys` explain the colors, or `scale` gives both ends of the scale of numbers. `narrow` explains marks that replace
    the wide ones.
    """

    title: str
    cells: Mapping[tuple[int, int], Cell]
    note: str = ""
    keys: Sequence[Key] = ()
    scale: tuple[str, str] | None = None
    narrow: str = ""


@dataclass(frozen=True)
class Grid:
    """Colored cells in rows, None for an empty one: a small picture, which only pages and notebooks show."""

    title: str
    cells: Sequence[Sequence[str | None]]
    note: str = ""


@dataclass(frozen=True)
class Chart:
    """A chart of pages: `draw` makes an Altair chart, a `show.figures.Figure` or SVG when it is written.

    In Markdown it is a link to `file`, if there is one.
    """

    title: str
    draw: Callable[[], Any]
    file: str = ""


@dataclass(frozen=True)
class Next:
    """What to do next, and why: a command, which the terminal shows, or what to call in Python, which a page shows."""

    command: str
    why: str = ""
    python: str = ""


@dataclass(frozen=True)
class Details:
    """Blocks behind a fold: one click on a page, `--verbose` in the terminal."""

    title: str
    blocks: Sequence[Block]
    open: bool = False  # on a page


Block = Heading | Verdict | Note | Items | Facts | Table | HeadMap | Grid | Chart | Next | Details


def flattened(blocks: Iterable[Block], details: bool = True) -> list[Block]:
    """The blocks without folds: with what is in them, each under a heading, or without it."""
    found: list[Block] = []
    for block in blocks:
        if not isinstance(block, Details):
            found.append(block)
        elif details and block.blocks:
            first = block.blocks[0]
            titled = isinstance(first, (Table, HeadMap, Chart)) and first.title  # which says the same
            found += [] if titled else [Heading(block.title, level=2)]
            found += flattened(block.blocks)
    return found
