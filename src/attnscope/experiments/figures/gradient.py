"""Figure 4: the largest g(T, eps) over heads against T, in a random and in the worst direction."""

from __future__ import annotations

import polars as pl

from attnscope.experiments.claims.gradient import maxima
from attnscope.show.figures import (
    BLACK,
    BLUE,
    GRAY,
    GREEN,
    ORANGE,
    Channel,
    Figure,
    Mark,
    Panel,
    linear_range,
    log_axis,
    log_range,
)
from attnscope.studies.paper.evidence import Evidence
from attnscope.studies.paper.settings import STEPS, TEMPERATURES

# Curves of different eps coincide for large T: the line of a smaller eps is wider and drawn first.
CURVES = {
    step: Mark(f"eps = {step:g}", color, line=width, band=0.18)
    for step, color, width in zip(STEPS, (BLUE, GREEN, ORANGE), (4.2, 2.4, 1.0), strict=True)
}
LIMIT = Mark("1/(2T), exact supremum for small eps", GRAY, line=7, line_opacity=0.45)
PRINTED = Mark("min{1/(4T), \u221a2}, as printed", BLACK, line=1.2, dash=(6, 3))
SUPREMUM = "exact supremum: (\u221a2/eps) tanh(eps/(2\u221a2 T)), at most 1/(2T)"


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
        .with_columns(reading=pl.lit(reading))
        .sort("direction", "step", "temperature")
    )


def figure(e: Evidence) -> Figure:
    """Three panels: random direction, worst direction, and the latter as a share of its exact supremum."""
    scaled = data(e)
    notes = [
        "T = 1 is the model itself; largest g over heads, median over windows, bands: range over windows",
        SUPREMUM,
    ]
    title = "Figure 4. Largest g(T, eps) over heads against temperature"
    return Figure(title, notes, [panels(scaled)], pl.concat([scaled, data(e, "raw")]))


def panels(curves: pl.DataFrame, heading: str = "", every: pl.DataFrame | None = None) -> list[Panel]:
    """The panels of one reading; the axis of g is that of `every` reading, by default of this one."""
    x = log_axis("temperature", "temperature T", (0.01, 0.1, 1.0, 10.0))
    y = _axis(curves if every is None else every)
    random, worst = (curves.filter(direction=direction) for direction in ("random", "worst"))
    exact = pl.col("exact")
    shares = worst.with_columns(pl.col("value") / exact, pl.col("low") / exact, pl.col("high") / exact)
    share = linear_range("value", "g / exact supremum", 0, 1)
    ends = pl.DataFrame({"temperature": [TEMPERATURES[0], TEMPERATURES[-1]]})
    limit = (LIMIT, ends.with_columns(value=0.5 / pl.col("temperature")))
    printed = (PRINTED, worst.filter(step=STEPS[0]).select("temperature", value="printed"))
    return [
        Panel(f"{heading}random direction", x, y, [*_curves(random), printed]),
        Panel(f"{heading}worst direction", x, y, [limit, *_curves(worst), printed]),
        Panel(f"{heading}share of supremum", x, share, _curves(shares)),
    ]


def _axis(curves: pl.DataFrame) -> Channel:
    positive = curves.filter(pl.col("low") > 0)
    return log_range("value", "largest g over heads", float(positive["low"].to_numpy().min()), 0.5 / TEMPERATURES[0])


def _curves(table: pl.DataFrame) -> list[tuple[Mark, pl.DataFrame]]:
    return [(mark, table.filter(pl.col("low") > 0, step=step)) for step, mark in CURVES.items()]
