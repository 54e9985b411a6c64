"""Blocks as Markdown, as GitHub and most sites show it."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from functools import singledispatch

from attnscope.show import blocks as kind
from attnscope.show.blocks import Block, Span, Words, parts, plain, unpadded
from attnscope.show.numbers import visible

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|~#])")
_AROUND = {"strong": "**", "soft": "", "good": "**", "bad": "**", "warning": "**"}
_MAP_WIDTH = 120  # columns of a map of heads


def text(blocks: Iterable[Block]) -> str:
    """Blocks as a Markdown document; folds stay folded."""
    return "\n\n".join(filter(None, map(_written, blocks))) + "\n"


def escape(words: object) -> str:
    """Text that Markdown takes as it is: no markup, on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(visible(words).split("\n")))


def marked_up(words: Words) -> str:
    """Words with their tones, as far as Markdown has them."""
    return "".join(escape(part) if isinstance(part, str) else _span(part) for part in parts(words))


def _span(span: Span) -> str:
    around = _AROUND.get(span.tone, "")
    if span.tone == "code":
        return _code(span.text)
    return f"{around}{escape(span.text)}{around}" if span.text.strip() else escape(span.text)


def _code(words: str) -> str:
    """Code between more backticks than it holds in a row."""
    fence = "`" * (max(map(len, re.findall("`+", words)), default=0) + 1)
    room = " " if "`" in words else ""
    return f"{fence}{room}{visible(words).replace(chr(10), ' ')}{room}{fence}"


@singledispatch
def _written(block: Block) -> str:
    raise TypeError(f"Markdown shows no {type(block).__name__}")


@_written.register
def _heading(block: kind.Heading) -> str:
    title = f"{'#' * block.level} {marked_up(block.title)}"
    return f"{title}\n\n{escape(block.note)}" if block.note else title


@_written.register
def _verdict(block: kind.Verdict) -> str:
    return f"**Verdict:** {marked_up(block.words)}"


@_written.register
def _note(block: kind.Note) -> str:
    mark = marked_up(block.mark).strip()
    return f"{mark} {marked_up(block.words)}".strip()


@_written.register
def _items(block: kind.Items) -> str:
    return "\n".join(
        f"{f'{place}.' if block.ordered else '-'} {marked_up(item)}" for place, item in enumerate(block.items, 1)
    )


@_written.register
def _facts(block: kind.Facts) -> str:
    return "\n".join(f"- {escape(name)}: {marked_up(words)}" for name, words in block.facts.items() if plain(words))


@_written.register
def _table(block: kind.Table) -> str:
    kinds = [":--" if column in block.texts else "--:" for column in range(len(block.headings))]
    lines = [_line([escape(heading) for heading in block.headings]), _line(kinds)]
    lines += [
        _line([marked_up(cell if column in block.texts else unpadded(cell)) for column, cell in enumerate(row)])
        for row in block.rows
    ]
    title = f"**{escape(block.title)}**" if block.title else ""
    return "\n\n".join(filter(None, (title, "\n".join(lines), *map(escape, block.notes))))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


@_written.register
def _head_map(block: kind.HeadMap) -> str:
    from attnscope.show.terminal import map_lines

    title = f"**{escape(block.title)}**" + (f": {escape(block.note)}" if block.note else "")
    lines = "\n".join(line.plain.rstrip() for line in map_lines(block, _MAP_WIDTH))
    keys = [
        f"- {_code(key.mark or ' ')} {escape(key.name)}"
        + ("" if key.heads is None else f" ({key.heads:,})")
        + (f": {escape(key.words)}" if key.words else "")
        for key in block.keys
    ]
    return "\n\n".join(filter(None, (title, f"```text\n{lines}\n```" if lines else "", "\n".join(keys))))


@_written.register
def _grid(block: kind.Grid) -> str:
    return ""


@_written.register
def _chart(block: kind.Chart) -> str:
    return f"![{escape(block.title)}]({block.file})" if block.file else ""


@_written.register
def _next(block: kind.Next) -> str:
    return f"Next: {_code(block.command)} {escape(block.why)}".rstrip()


@_written.register
def _details(block: kind.Details) -> str:
    inside = text(block.blocks).rstrip()
    return f"<details><summary>{html.escape(visible(block.title))}</summary>\n\n{inside}\n\n</details>"
