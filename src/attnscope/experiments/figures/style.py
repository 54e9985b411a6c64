"""Shared style of the figures: colors, sizes, axes, and lines with their range over windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import polars as pl

from attnscope.experiments.claims.evidence import UNIT

# The Okabe-Ito palette, which has the green, blue and red of the paper's figures.
GREEN, BLUE, RED, ORANGE, SKY, PURPLE, BLACK, GRAY = (
    "#009e73", "#0072b2", "#d55e00", "#e69f00", "#56b4e9", "#cc79a7", "#222222", "#8a8a8a",
)  # fmt: skip
WIDTH, HEIGHT = 270, 210
PRINTED, CORRECTED = "as printed", "corrected"


def over_windows(table: pl.DataFrame, by: list[str], columns: dict[str, pl.Expr]) -> pl.DataFrame:
    """Each statistic over the heads of a window, then its median, minimum and maximum over windows, in long form."""
    per_unit = table.group_by(*UNIT, *by).agg(**columns)
    long = per_unit.unpivot(on=list(columns), index=[*UNIT, *by], variable_name="series", value_name="value")
    return (
        long.group_by(*by, "series")
        .agg(pl.median("value"), low=pl.min("value"), high=pl.max("value"))
        .sort("series", *by)
        .with_columns(pl.selectors.float().round_sig_figs(6))
    )


def inline(table: pl.DataFrame) -> alt.InlineData:
    """The table as inline CSV: altair copies a chart's data at every step, and copying a string is free."""
    types = {name: "number" for name, kind in table.schema.items() if kind.is_numeric()}
    text = table.with_columns(pl.selectors.float().round_sig_figs(6)).write_csv()
    return alt.InlineData(values=text, format=alt.CsvDataFormat(type="csv", parse=types))


def log_axis(name: str, title: str, values: Sequence[float] | None = None, **scale: Any) -> dict[str, Any]:
    """Arguments for a channel with a logarithmic axis."""
    axis = (
        alt.Axis(values=list(values), labelOverlap=True, format="~g")
        if values
        else alt.Axis(labelOverlap=True, format="~g", tickCount=5)
    )
    return {
        "shorthand": f"{name}:Q",
        "title": title,
        "scale": alt.Scale(type="log", nice=False, **scale),
        "axis": axis,
    }


def colors(palette: dict[str, str], columns: int = 2) -> alt.Color:
    """The color channel of the series, with a legend below the panel."""
    legend = alt.Legend(
        orient="bottom", columns=columns, labelLimit=260, symbolOpacity=1, symbolStrokeWidth=2.5, title=None
    )
    return alt.Color("series:N", scale=alt.Scale(domain=list(palette), range=list(palette.values())), legend=legend)


def median_lines(
    data: pl.DataFrame,
    palette: dict[str, str],
    x: dict[str, Any],
    y: dict[str, Any],
    dashed: tuple[str, ...] = (),
    legend: dict[str, str] | None = None,
) -> list[alt.Chart]:
    """Lines for the medians and bands from minimum to maximum over windows; `legend` may list further series."""
    chosen = data.filter(pl.col("series").is_in(list(palette)) & (pl.col("value") > 0) & (pl.col("low") > 0))
    base = alt.Chart(inline(chosen)).encode(x=alt.X(**x), color=colors(legend or palette))
    low = y | {"shorthand": "low:Q"}
    band = base.mark_area(opacity=0.18).encode(y=alt.Y(**low), y2="high:Q")
    dash = alt.condition(alt.FieldOneOfPredicate("series", list(dashed)), alt.value([5, 3]), alt.value([1, 0]))
    line = base.mark_line(strokeWidth=1.8, point=alt.OverlayMarkDef(size=22)).encode(y=alt.Y(**y), strokeDash=dash)
    return [band, line]


def panel(layers: list[alt.Chart], title: str, width: int = WIDTH, height: int = HEIGHT) -> alt.LayerChart:
    """A panel of the figure: its layers under a heading."""
    heading = alt.Title(title, fontSize=12, anchor="start", fontWeight="bold")
    return alt.LayerChart(layer=layers, width=width, height=height, title=heading)


def side_by_side(*panels: alt.LayerChart, title: str, subtitle: list[str], spacing: int = 28) -> alt.HConcatChart:
    """The figure: panels side by side, each with its own legend, in a type size that is readable in print.

    Altair copies the whole chart at every change, so the chart is built in one step.
    """
    return alt.HConcatChart(hconcat=panels, spacing=spacing, **_frame(title, subtitle))


def stacked(rows: list[list[alt.LayerChart]], title: str, subtitle: list[str]) -> alt.VConcatChart:
    """The figure: rows of panels, one below the other."""
    lines = [alt.HConcatChart(hconcat=panels, spacing=28, resolve=_OWN_COLORS) for panels in rows]
    return alt.VConcatChart(vconcat=lines, spacing=18, **_frame(title, subtitle))


_OWN_COLORS = alt.Resolve(scale=alt.ScaleResolveMap(color="independent"))


def _frame(title: str, subtitle: list[str]) -> dict[str, Any]:
    return {
        "resolve": _OWN_COLORS,
        "title": alt.Title(
            title, subtitle=subtitle, fontSize=14, subtitleFontSize=11, anchor="start", offset=10,
            subtitleColor="#444444",
        ),
        "background": "white",
        "padding": 8,
        "config": alt.Config(
            axis=alt.AxisConfig(labelFontSize=11, titleFontSize=11, gridColor="#ececec", titleFontWeight="normal"),
            legend=alt.LegendConfig(labelFontSize=11, padding=2),
            view=alt.ViewConfig(stroke="#cccccc"),
        ),
    }  # fmt: skip
