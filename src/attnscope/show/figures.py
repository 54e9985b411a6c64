"""Figures of panels with one legend, composed for one or two columns of a page: axes, marks, labels.

A figure does not know its size: `Figure.chart` lays its panels out for a width in inches, with type that is readable at
that width. A legend shows each series by the mark that draws it.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Any, Literal, NamedTuple

import altair as alt
import polars as pl

FigureWidth = Literal["one-column", "two-column"]
PADDING = 7  # pixels between the first and last tick and the frame
_PLAIN = "format(datum.value, '~g')"
_EXPONENT = "replace(format(datum.value, '.0e'), '+', '')"


def log_axis(name: str, title: str, values: Iterable[float], most: int = 6) -> Channel:
    """A logarithmic channel with ticks at some of the values, always at the first and the last."""
    ticks = thinned(sorted(set(values)), most)
    return {
        "shorthand": f"{name}:Q",
        "title": title,
        "scale": alt.Scale(type="log", nice=False, domain=[ticks[0], ticks[-1]], padding=PADDING),
        "axis": alt.Axis(values=ticks, format="~g", labelFlush=False),
    }


def log_range(name: str, title: str, low: float, high: float) -> Channel:
    """A logarithmic channel from the last round number below `low` to the first above `high`, with ticks at both."""
    ticks = even_ticks(low, high) if high < 4 * low else round_ticks(low, high)
    return {
        "shorthand": f"{name}:Q",
        "title": title,
        "scale": alt.Scale(type="log", nice=False, domain=[ticks[0], ticks[-1]], padding=PADDING),
        "axis": alt.Axis(values=ticks, labelFlush=False, labelExpr=_EXPONENT if ticks[0] < 1e-3 else _PLAIN),
    }


def linear_range(name: str, title: str, low: float, high: float) -> Channel:
    """A linear channel from the last round number below `low` to the first above `high`, with ticks at both."""
    ticks = even_ticks(low, high)
    return {
        "shorthand": f"{name}:Q",
        "title": title,
        "scale": alt.Scale(nice=False, zero=False, domain=[ticks[0], ticks[-1]], padding=PADDING),
        "axis": alt.Axis(values=list(ticks), format="~g", labelFlush=False),
    }


def thinned(values: Sequence[float], most: int) -> list[float]:
    """At most `most` of the increasing values, spread evenly on a log axis, including the first and the last."""
    first, last = values[0], values[-1]
    if len(values) <= most:
        return list(values)
    step = math.log(last / first) / (most - 1)
    chosen = [last]
    for value in reversed(values[1:-1]):
        if math.log(chosen[-1] / value) >= step * 0.999 and math.log(value / first) >= step * 0.8:
            chosen.append(value)
    return [first, *reversed(chosen)]


def even_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, the first at most `low` and the last at least `high`."""
    if high <= low:
        low, high = low - abs(low or 1.0) / 20, low + abs(low or 1.0) / 20
    smallest = 10.0 ** math.floor(math.log10((high - low) / most))
    for step in (factor * smallest for factor in (1, 2, 5, 10, 20)):
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        if last - first < most:
            break
    return [float(f"{k * step:.12g}") for k in range(first, last + 1)]


def round_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Powers of ten, times 1, 2 and 5 where those fit; the first is at most `low` and the last at least `high`."""
    lowest, highest = math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1
    for steps, skip in chain((((1, 2, 5), 1), ((1, 3), 1)), (((1,), skip) for skip in count(1))):
        powers = range(lowest - lowest % skip, highest + skip, skip)
        ticks = [float(f"{step}e{power}") for power in powers for step in steps]
        first = max(i for i, tick in enumerate(ticks) if tick <= low * (1 + 1e-9))
        last = min(i for i, tick in enumerate(ticks) if i > first and tick >= high * (1 - 1e-9))
        if last - first < most:
            break
    return ticks[first : last + 1]


STAR = "M0,-1L0.24,-0.31L0.95,-0.31L0.36,0.12L0.59,0.81L0,0.4L-0.59,0.81L-0.36,0.12L-0.95,-0.31L-0.24,-0.31Z"

Channel = dict[str, Any]  # arguments of `alt.X` or `alt.Y`


@dataclass(frozen=True)
class Mark:
    """A series of a figure: its label in the legend, and which marks show its columns `value`, `low` and `high`.

    Sizes are in pixels of 1/96 inch; 0 or "" leaves a part out. Data with a column `order` is a path in that order.
    """

    label: str
    color: str
    line: float = 1.4  # width of the line through `value`
    dash: tuple[int, ...] = ()
    line_opacity: float = 1.0
    point: str = ""  # shape of the point at `value`
    size: float = 18  # area of a point
    fill: str = ""  # of a point, where it is not the color of its outline
    bar: float = 0  # width of the vertical bar from `low` to `high`
    bar_opacity: float = 1.0
    band: float = 0  # opacity of the area from `low` to `high`
    edge: float = 0  # width of the line around that area, which is seen where the area is thin

    def parts(self) -> Iterator[tuple[str, Callable[[alt.InlineData, Channel, Channel], alt.Chart]]]:
        """The parts that the series has, in the order in which all series of a panel are drawn."""
        if self.band:
            yield "band", self._band
        if self.bar:
            yield "bar", self._bar
        if self.line:
            yield "line", self._line
        if self.point:
            yield "point", self._point

    def _band(self, data: alt.InlineData, x: Channel, y: Channel) -> alt.Chart:
        low = alt.Y(**(y | {"shorthand": "low:Q"}))
        area = alt.Chart(data).mark_area(
            color=self.color, opacity=1, fillOpacity=self.band, clip=True,
            stroke=self.color if self.edge else "transparent", strokeWidth=self.edge,
        )  # fmt: skip
        return area.encode(x=alt.X(**x), y=low, y2="high:Q")

    def _bar(self, data: alt.InlineData, x: Channel, y: Channel) -> alt.Chart:
        low = alt.Y(**(y | {"shorthand": "low:Q"}))
        rule = alt.Chart(data).mark_rule(
            color=self.color, strokeWidth=self.bar, opacity=self.bar_opacity, strokeCap="butt", clip=True
        )
        return rule.encode(x=alt.X(**x), y=low, y2="high:Q")

    def _line(self, data: alt.InlineData, x: Channel, y: Channel) -> alt.Chart:
        line = alt.Chart(data).mark_line(
            color=self.color, strokeWidth=self.line, opacity=self.line_opacity, clip=True,
            strokeDash=list(self.dash) or [1, 0],
        )  # fmt: skip
        chart = line.encode(x=alt.X(**x), y=alt.Y(**y))
        return chart.encode(order="order:Q") if "order" in str(data.values).split("\n", 1)[0].split(",") else chart

    def _point(self, data: alt.InlineData, x: Channel, y: Channel) -> alt.Chart:
        point = alt.Chart(data).mark_point(
            shape=self.point, size=self.size, opacity=1, clip=False, strokeWidth=1.2, stroke=self.color,
            fill=self.fill or self.color,
        )  # fmt: skip
        return point.encode(x=alt.X(**x), y=alt.Y(**y))


def inline(table: pl.DataFrame) -> alt.InlineData:
    """The table as inline CSV: altair copies a chart's data at every step, and copying a string is free."""
    types = {name: "number" for name, kind in table.schema.items() if kind.is_numeric()}
    text = table.with_columns(pl.selectors.float().round_sig_figs(6)).write_csv()
    return alt.InlineData(values=text, format=alt.CsvDataFormat(type="csv", parse=types))


DPI = 96  # pixels of a chart per inch
TEXT, SMALL = 8 * DPI / 72, 7 * DPI / 72  # 8 points, and 7 for the numbers at the ticks
CHARACTER = 0.53 * TEXT  # mean width
INK = "#1a1a1a"
LABEL_HEIGHT = 13  # from the middle of a name to that of one below it
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
    tops = [py - LABEL_HEIGHT / 2 + shift * LABEL_HEIGHT / 2 for shift in range(-40, 41)]
    boxes = [
        Box(left, top, left + length, top + LABEL_HEIGHT)
        for top in sorted(tops, key=lambda top: abs(top + LABEL_HEIGHT / 2 - py))
        for left in (min(max(left, EDGE), max(width - length - EDGE, EDGE)) for left in lefts)
        if top >= 0 and top + LABEL_HEIGHT <= height
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


INCHES: dict[FigureWidth, float] = {"one-column": 3.3, "two-column": 6.9}
FONT = "Arial, Helvetica, Liberation Sans, sans-serif"
MARGIN, GAP, TALLEST = 4, 14, 160
OVERHANG = 4  # of the number at the last tick
NUMBERS, TITLE = 30, 15  # width of the numbers and of the title at a vertical axis
SAMPLE, LINE = 26, 15  # width of a legend's sample and height of its line
# The parts of marks in drawing order, with the columns that they show.
PARTS = {"band": ["low", "high"], "bar": ["low", "high"], "line": ["value"], "point": ["value"]}

Series = tuple[Mark, pl.DataFrame]


@dataclass(frozen=True)
class Panel:
    """A panel: its axes, and its series in drawing order; series with the same mark share a legend entry."""

    heading: str
    x: Channel
    y: Channel
    series: Sequence[Series]
    square: bool = False
    names: pl.DataFrame | None = None  # texts of single points, in the columns x, value and text

    @property
    def left(self) -> int:
        """The width of the vertical axis."""
        return NUMBERS + (TITLE if self.y["title"] else 0)

    def chart(self, width: float, tallest: float) -> alt.LayerChart:
        """The layers, `width` pixels wide including the vertical axis, and at most `tallest` pixels high."""
        layers = [
            draw(inline(data.drop_nulls(PARTS[kind])), self.x, self.y)  # a missing interval is not drawn
            for kind in PARTS
            for mark, data in self.series
            for name, draw in mark.parts()
            if name == kind
        ]
        inner = round(width - self.left)
        heading = textwrap.wrap(self.heading, max(8, int(width / CHARACTER)))
        title = alt.Title(heading, fontSize=TEXT, anchor="start", frame="bounds", fontWeight="bold", offset=6)
        height = inner if self.square else round(min(0.85 * inner, tallest))
        if self.names is not None:
            layers += labeled(self.names, self.x, self.y, inner, height)
        return alt.LayerChart(layer=layers, width=inner, height=height, title=title if heading else alt.Undefined)


@dataclass(frozen=True)
class Figure:
    """Panels in one or two rows, their data in long form, and what a caption says about them.

    In the one-column format, two rows become two columns, and the panels of a single row are stacked.
    """

    title: str
    notes: Sequence[str]
    rows: Sequence[Sequence[Panel]]
    data: pl.DataFrame = field(repr=False)

    @property
    def caption(self) -> str:
        """The title and the notes as sentences."""
        return " ".join(f"{line.rstrip('.')}." for line in (self.title, *self.notes))

    def chart(self, width: FigureWidth = "two-column", titles: bool = False) -> alt.VConcatChart:
        """The figure as an Altair chart of exactly this width, with its caption above it if `titles` is set."""
        inside = INCHES[width] * DPI - 2 * MARGIN
        panels = [panel for row in self.rows for panel in row]
        if width == "two-column":
            rows = [list(row) for row in self.rows]
        elif len(self.rows) == 2:
            rows = [list(pair) for pair in zip(*self.rows, strict=True)]
        else:
            across = 2 if panels[0].square else 1
            rows = [panels[start : start + across] for start in range(0, len(panels), across)]
        most = max(len(row) for row in rows)
        slot = (inside - GAP * (most - 1)) / most - OVERHANG
        tallest = TALLEST * (1 if len(panels) > 1 else 2)
        lines: list[Any] = [
            alt.HConcatChart(hconcat=[panel.chart(slot, tallest) for panel in row], spacing=GAP) for row in rows
        ]
        marks = dict.fromkeys(mark for panel in panels for mark, _ in panel.series)
        by_kind = sorted(marks, key=lambda mark: not (mark.point or mark.bar or mark.band))  # reference lines last
        return alt.VConcatChart(
            vconcat=[*lines, legend(by_kind, inside - max(row[0].left for row in rows))],
            spacing=8,
            description=self.caption,
            background="white",
            padding=MARGIN,
            config=_config(),
            title=self._title(inside) if titles else alt.Undefined,
        )

    def _title(self, width: float) -> alt.Title:
        notes = [line for note in self.notes for line in textwrap.wrap(note, int(width / CHARACTER))]
        title = textwrap.wrap(self.title, int(width / (1.35 * CHARACTER)))
        return alt.Title(
            title, subtitle=notes, fontSize=1.2 * TEXT, subtitleFontSize=TEXT, anchor="start", offset=8,
            subtitleColor="#444444",
        )  # fmt: skip


def legend(marks: Sequence[Mark], width: float) -> alt.LayerChart:
    """The samples of the marks with their labels, in as many columns as fit into `width` pixels."""
    starts = _columns([SAMPLE + 22 + CHARACTER * len(mark.label) for mark in marks], width)
    lines = -(-len(marks) // len(starts))
    x: Channel = {"shorthand": "x:Q", "axis": None, "scale": alt.Scale(domain=[0, width], nice=False)}
    y: Channel = {"shorthand": "value:Q", "axis": None, "scale": alt.Scale(domain=[0, lines * LINE], nice=False)}
    layers = []
    for index, mark in enumerate(marks):
        left, middle = starts[index % len(starts)], (lines - index // len(starts) - 0.5) * LINE
        ends = pl.DataFrame({"x": [left, left + SAMPLE / 2, left + SAMPLE]}).with_columns(
            value=middle, low=middle - 0.35 * LINE, high=middle + 0.35 * LINE
        )
        for part, draw in mark.parts():
            layers.append(draw(inline(ends[1:2] if part in ("bar", "point") else ends), x, y))
        text = pl.DataFrame({"x": [left + SAMPLE + 6.0], "value": [middle], "label": [mark.label]})
        words = alt.Chart(inline(text)).mark_text(align="left", baseline="middle", fontSize=TEXT, color=INK)
        layers.append(words.encode(x=alt.X(**x), y=alt.Y(**y), text="label:N"))
    return alt.LayerChart(layer=layers, width=width, height=lines * LINE, view=alt.ViewConfig(stroke=None, fill=None))


def _columns(widths: Sequence[float], width: float) -> list[float]:
    """Where the columns of a legend start, as many as fit when its entries are filled in row by row."""
    for size in range(len(widths), 0, -1):
        columns = [max(widths[start::size]) for start in range(size)]
        if sum(columns) <= width or size == 1:
            break
    return [float(sum(columns[:index])) for index in range(size)]


def _config() -> alt.Config:
    return alt.Config(
        font=FONT,
        axis=alt.AxisConfig(
            labelFontSize=SMALL, titleFontSize=TEXT, titleFontWeight="normal", labelColor=INK,
            titleColor=INK, gridColor="#ececec", titlePadding=4, labelPadding=2, tickSize=4,
        ),
        axisY=alt.AxisConfig(minExtent=NUMBERS - 2, maxExtent=NUMBERS - 2),
        view=alt.ViewConfig(stroke="#cccccc"),
    )  # fmt: skip
