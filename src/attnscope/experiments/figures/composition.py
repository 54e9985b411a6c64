"""Figures of panels with one legend, composed for one or two columns of a page.

A figure does not know its size: `Figure.chart` lays its panels out for a width in inches, with type that is readable at
that width. A legend shows each series by the mark that draws it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import altair as alt
import polars as pl

from attnscope.experiments.figures.labels import CHARACTER, DPI, INK, SMALL, TEXT, labeled
from attnscope.experiments.figures.marks import Channel, Mark, inline
from attnscope.experiments.settings import FigureWidth

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
    for count in range(len(widths), 0, -1):
        columns = [max(widths[start::count]) for start in range(count)]
        if sum(columns) <= width or count == 1:
            break
    return [float(sum(columns[:index])) for index in range(count)]


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
