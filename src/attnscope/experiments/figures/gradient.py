"""Figure 4: the largest g(T, eps) over heads against T, in a random and in the worst direction."""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl

from attnscope.experiments.claims.evidence import Evidence
from attnscope.experiments.claims.gradient import maxima
from attnscope.experiments.figures.style import BLACK, BLUE, GREEN, ORANGE, inline, log_axis, panel, side_by_side
from attnscope.experiments.settings import STEPS

COLORS = dict(zip((f"eps = {step:g}" for step in STEPS), (BLUE, GREEN, ORANGE), strict=True))


def data(e: Evidence, reading: str = "scaled") -> pl.DataFrame:
    """Largest g over heads: median, minimum and maximum over windows, with every bound."""
    tables = [
        maxima(e, direction, reading).with_columns(direction=pl.lit(direction)) for direction in ("random", "worst")
    ]
    return (
        pl.concat(tables)
        .group_by("direction", "temperature", "step")
        .agg(
            value=pl.median("g"),
            low=pl.min("g"),
            high=pl.max("g"),
            printed=pl.first("printed"),
            exact=pl.first("exact"),
        )
        .with_columns(
            series=pl.format("eps = {}", pl.col("step").map_elements(lambda s: f"{s:g}", return_dtype=pl.String)),
            reading=pl.lit(reading),
        )
        .sort("direction", "step", "temperature")
    )


def figure(e: Evidence) -> tuple[alt.HConcatChart, pl.DataFrame]:
    """Two panels: a random direction as in the paper, and the worst direction with the exact suprema."""
    scaled = data(e)
    chart = side_by_side(
        *panels(scaled),
        title="Figure 4. Gradient sensitivity against temperature",
        subtitle=["T = 1 is the model itself; median over windows, bands: spread over windows"],
    )
    return chart, pl.concat([scaled, data(e, "raw")])


def panels(curves: pl.DataFrame, heading: str = "", least: float | None = None) -> list[alt.LayerChart]:
    """The panels of the two directions; `least` is the smallest g that the axis shows, by default of these curves."""
    least = float(curves["low"].to_numpy().min()) if least is None else least
    y = log_axis("value", "largest g over heads", domain=[0.7 * least, 70.0])
    random, worst = (curves.filter(direction=direction) for direction in ("random", "worst"))
    printed = _bound(random, "printed", y, [6, 4], BLACK)
    exact = _bound(worst, "exact", y, [6, 4], None)
    return [
        panel([*_curves(random, y), printed], f"{heading}random direction; black: min{{1/(4T), \u221a2}}"),
        panel([*_curves(worst, y), exact, printed], f"{heading}worst direction; colored dashes: exact suprema"),
    ]


def _color() -> alt.Color:
    return alt.Color(
        "series:N",
        title=None,
        scale=alt.Scale(domain=list(COLORS), range=list(COLORS.values())),
        legend=alt.Legend(orient="bottom", symbolOpacity=1),
    )


def _curves(table: pl.DataFrame, y: dict[str, Any]) -> list[alt.Chart]:
    x = alt.X(**log_axis("temperature", "temperature T", [0.01, 0.03, 0.1, 0.3, 1, 3, 10]))
    base = alt.Chart(inline(table)).encode(x=x, color=_color())
    band = base.mark_area(opacity=0.18, clip=True).encode(y=alt.Y(**(y | {"shorthand": "low:Q"})), y2="high:Q")
    # The curve of the smallest step is wider, so that it is visible where the curves coincide.
    width = alt.condition(f"datum.step == {STEPS[0]}", alt.value(4), alt.value(1.6))
    line = base.mark_line(clip=True).encode(y=alt.Y(**y), strokeWidth=width, order="temperature:Q")
    return [band, line]


def _bound(table: pl.DataFrame, column: str, y: dict[str, Any], dash: list[int], color: str | None) -> alt.Chart:
    chart = alt.Chart(inline(table)).mark_line(strokeDash=dash, strokeWidth=1.3, clip=True)
    encoded = chart.encode(x="temperature:Q", y=alt.Y(**(y | {"shorthand": f"{column}:Q"})))
    return encoded.encode(color=_color() if color is None else alt.value(color))
