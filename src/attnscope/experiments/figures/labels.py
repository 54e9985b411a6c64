"""Font sizes, and labels of single points, placed so that no label covers another label or a point."""

from __future__ import annotations

import math
from typing import NamedTuple

import altair as alt
import polars as pl

from attnscope.experiments.figures.axes import PADDING
from attnscope.experiments.figures.marks import Channel

DPI = 96  # pixels of a chart per inch
TEXT, SMALL = 8 * DPI / 72, 7 * DPI / 72  # 8 points, and 7 for the numbers at the ticks
CHARACTER = 0.53 * TEXT  # mean width
INK = "#1a1a1a"
LINE = 13  # from the middle of a name to that of one below it
MARK = 6  # half the width of a point with some room
EDGE = 3.0  # from a name to the frame


class Box(NamedTuple):
    """A rectangle in pixels."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        """Whether the two overlap."""
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )

    def nearest(self, x: float, y: float) -> tuple[float, float]:
        """The point of the rectangle that is nearest to another."""
        return min(max(x, self.left), self.right), min(max(y, self.top), self.bottom)


def labeled(names: pl.DataFrame, x: Channel, y: Channel, width: float, height: float) -> list[alt.Chart]:
    """The names as text, with a thin line to the point if the name is not next to it."""
    across = [_pixel(value, x, width) for value in names["x"]]
    down = [height - _pixel(value, y, height) for value in names["value"]]
    points, texts = list(zip(across, down, strict=True)), names["text"].to_list()
    layers = []
    for (px, py), text, box in zip(points, texts, place(points, texts, width, height), strict=True):
        end = box.nearest(px, py)
        if math.dist((px, py), end) > MARK + 4:
            ends = {"x": px, "y": py, "x2": end[0], "y2": end[1]}
            rule = alt.Chart(_ONE).mark_rule(color=INK, strokeWidth=0.5)
            layers.append(rule.encode(**{name: alt.value(value) for name, value in ends.items()}))
        left = box.right >= px
        words = alt.Chart(_ONE).mark_text(
            text=text, align="left" if left else "right", baseline="middle", fontSize=SMALL, color=INK
        )
        middle = (box.top + box.bottom) / 2
        layers.append(words.encode(x=alt.value(box.left if left else box.right), y=alt.value(middle)))
    return layers


_ONE = alt.InlineData(values=[{}])


def place(points: list[tuple[float, float]], texts: list[str], width: float, height: float) -> list[Box]:
    """A box for each text inside the panel: the nearest to its point that covers no point, other box or line to one.

    A line may cross a name if it cannot be avoided, and names overlap only if there are too many for the panel.
    """
    marks = [Box(px - MARK, py - MARK, px + MARK, py + MARK) for px, py in points]
    boxes: list[Box] = []
    lines: list[Box] = []
    for (px, py), text in zip(points, texts, strict=True):
        candidates = _candidates(px, py, len(text) * CHARACTER * SMALL / TEXT, width, height)
        free = [box for box in candidates if not any(box.meets(other) for other in (*marks, *boxes, *lines))]
        clear = (box for box in free if not any(dot.meets(other) for dot in _line(px, py, box) for other in boxes))
        box = next(clear, next(iter(free or candidates)))
        boxes.append(box)
        lines += _line(px, py, box)
    return boxes


def _candidates(px: float, py: float, length: float, width: float, height: float) -> list[Box]:
    """Boxes inside the panel around a point: beside it, then the nearest first."""
    beside = [offset for away in (MARK + 2, 20, 40, 80, 120) for offset in (away, -away - length)]
    lefts = [px + offset for offset in (*beside, *(-share * length for share in (0.1, 0.3, 0.5, 0.7, 0.9)))]
    tops = [py - LINE / 2 + shift * LINE / 2 for shift in range(-40, 41)]
    boxes = [
        Box(left, top, left + length, top + LINE)
        for top in sorted(tops, key=lambda top: abs(top + LINE / 2 - py))
        for left in (min(max(left, EDGE), max(width - length - EDGE, EDGE)) for left in lefts)
        if top >= 0 and top + LINE <= height
    ]

    def cost(box: Box) -> float:
        above_or_below = box.left < px < box.right
        return math.dist((px, py), box.nearest(px, py)) + (4 if above_or_below else 0)

    return sorted(boxes, key=cost)


def _line(px: float, py: float, box: Box) -> list[Box]:
    """Points along the line from a point to its box, but for the two ends."""
    ex, ey = box.nearest(px, py)
    shares = [k / 20 for k in range(1, 20)]
    dots = [(px + share * (ex - px), py + share * (ey - py)) for share in shares]
    return [Box(x - 0.5, y - 0.5, x + 0.5, y + 0.5) for x, y in dots if math.dist((x, y), (ex, ey)) > 1.5]


def _pixel(value: float, channel: Channel, size: float) -> float:
    """Where a value lies on an axis of this size."""
    low, high = channel["scale"].domain
    if channel["scale"].type == "log":
        low, high, value = math.log(low), math.log(high), math.log(value)
    return PADDING + (value - low) / (high - low) * (size - 2 * PADDING)
