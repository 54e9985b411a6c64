"""Maps of heads and of attention as SVG: a cell for each head, or for each row and run of keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from attnscope.results.html import escape

# From dark blue over gray to yellow (the cividis scale), readable with any color vision.
SCALE = (
    "#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838",
)  # fmt: skip
UNKNOWN = "#b8bec6"
_LARGE, _SMALL = 18, 13  # pixels of a head


class Cell(NamedTuple):
    """A colored cell; the mark is a letter on it, the words are shown when the pointer rests on it."""

    color: str
    words: str = ""
    mark: str = ""


def color_of(value: float | None, low: float = 0.0, high: float = 1.0) -> str:
    """The color of a value on the scale from `low` to `high`."""
    if value is None or value != value:
        return UNKNOWN
    share = (value - low) / (high - low) if high > low else 0.5
    return SCALE[min(len(SCALE) - 1, max(0, int(share * len(SCALE))))]


def ink_on(color: str) -> str:
    """Black or white, whichever is the more readable on a color."""
    red, green, blue = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (red, green, blue)]
    light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if (light + 0.05) / 0.05 >= 1.05 / (light + 0.05) else "#ffffff"


def head_map(cells: Mapping[tuple[int, int], Cell], label: str) -> str:
    """A cell for each (layer, head): layers from top to bottom, heads from left to right."""
    layers, heads = max(layer for layer, _ in cells) + 1, max(head for _, head in cells) + 1
    size = _LARGE if max(layers, heads) <= 16 else _SMALL
    left, top, side = 30, 16, size - 1
    parts = [_text(left + (head + 0.5) * size, top - 4, f"H{head}", "middle") for head in _numbered(heads, 34 // size)]
    parts += [_text(left - 4, top + (layer + 0.5) * size + 4, f"L{layer}", "end") for layer in _numbered(layers, 1)]
    by_color: dict[str, list[str]] = {}
    marks = []
    for (layer, head), cell in cells.items():
        x, y = left + head * size, top + layer * size
        title = f"<title>{escape(cell.words)}</title>" if cell.words else ""
        box = f'<rect x="{x}" y="{y}" width="{side}" height="{side}">{title}</rect>'
        by_color.setdefault(cell.color, []).append(box)
        if cell.mark and size == _LARGE:
            place = f'x="{x + side / 2:g}" y="{y + side / 2 + 4:g}" text-anchor="middle"'
            style = f'style="fill:{ink_on(cell.color)};pointer-events:none"'
            marks.append(f"<text {place} {style}>{escape(cell.mark)}</text>")
    parts += [f'<g fill="{color}">{"".join(boxes)}</g>' for color, boxes in by_color.items()]
    parts += marks
    return _svg(left + heads * size, top + layers * size, label, parts)


def grid_map(cells: Sequence[Sequence[str | None]], label: str, size: int = 6) -> str:
    """Colors in rows from top to bottom; runs of equal colors are one mark, and cells without color are left out."""
    parts = []
    for y, row in enumerate(cells):
        x = 0
        while x < len(row):
            end = x + 1
            while end < len(row) and row[end] == row[x]:
                end += 1
            if row[x]:
                box = f'x="{x * size}" y="{y * size}" width="{(end - x) * size}" height="{size}"'
                parts.append(f'<rect {box} fill="{row[x]}"/>')
            x = end
    return _svg(max(map(len, cells), default=0) * size, len(cells) * size, label, parts)


def scale_key(low: str, high: str) -> str:
    """The color scale with its ends."""
    box = '<span style="display:inline-block;width:14px;height:10px;background:{}"></span>'
    return f'<p class="soft">{escape(low)} {"".join(box.format(color) for color in SCALE)} {escape(high)}</p>'


def _numbered(count: int, every: int) -> range:
    step = max(1, every)
    while count > step * 16:
        step *= 2
    return range(0, count, step)


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{words}</text>'


def _svg(width: float, height: float, label: str, parts: Sequence[str]) -> str:
    size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    return f'<svg {size} role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
