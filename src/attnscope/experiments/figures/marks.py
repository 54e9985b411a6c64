"""How a series is drawn: the same `Mark` draws its data in a panel and its sample in the legend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import altair as alt
import polars as pl

# The Okabe-Ito palette, which has the green, blue and red of the paper's figures.
GREEN, BLUE, RED, ORANGE, SKY, PURPLE, BLACK, GRAY = (
    "#009e73", "#0072b2", "#d55e00", "#e69f00", "#56b4e9", "#cc79a7", "#222222", "#9a9a9a",
)  # fmt: skip
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
