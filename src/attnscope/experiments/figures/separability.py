"""Figure 3: box plots of separability against N, with the printed and the proved bounds."""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl

from attnscope.experiments.claims.evidence import Evidence
from attnscope.experiments.figures.style import (
    BLACK,
    BLUE,
    CORRECTED,
    GREEN,
    PRINTED,
    RED,
    colors,
    inline,
    panel,
    side_by_side,
)
from attnscope.experiments.settings import SEPARABILITY_N

BOUNDS = {
    "printed": ("separability_upper_printed", "separability_lower_printed"),
    "proved": ("separability_upper", "separability_lower"),
}


def data(e: Evidence, forms: tuple[str, ...] = tuple(BOUNDS)) -> pl.DataFrame:
    """Quantiles of separability over heads and windows at each N, and the median of each form of the bounds."""
    table = e.longest("topn").filter(pl.col("n").is_in(SEPARABILITY_N))
    s = pl.col("separability")
    by_window = (
        table.group_by("n", "window", "row")
        .agg(m=s.median())
        .group_by("n")
        .agg(window_low=pl.min("m"), window_high=pl.max("m"))
    )
    return (
        table.group_by("n")
        .agg(
            q05=s.quantile(0.05), q25=s.quantile(0.25), q50=s.median(), q75=s.quantile(0.75), q95=s.quantile(0.95),
            most=s.max(), **{f"upper_{form}": pl.median(BOUNDS[form][0]) for form in forms},
            **{f"lower_{form}": pl.median(BOUNDS[form][1]).clip(lower_bound=0) for form in forms},
        )
        .join(by_window, on="n")
        .sort("n")
    )  # fmt: skip


def figure(e: Evidence) -> tuple[alt.HConcatChart, pl.DataFrame]:
    """Two panels: box plots with the printed bounds, and with those of T2a."""
    quantiles = data(e)
    longest = int(e.table("topn")["prefix"].max())  # type: ignore[arg-type]
    chart = side_by_side(
        panel(boxes(quantiles, "printed"), f"{PRINTED} (Theorem 2)"),
        panel(boxes(quantiles, "proved"), f"{CORRECTED} (T2a)"),
        title="Figure 3. Separability against N",
        subtitle=[
            f"L = {longest:,}; boxes: quartiles over heads and windows, whiskers 5 % and 95 %, dots: the largest;",
            "black bar: medians of single windows; lines: median bounds (below 0 drawn at 0); gray: 0.70 to 0.85",
        ],
    )
    return chart, quantiles


def boxes(quantiles: pl.DataFrame, form: str) -> list[alt.Chart]:
    """Box plots over heads, with the medians of one form of the bounds."""
    x = alt.X("n:O", title="N, size of the top set", axis=alt.Axis(labelAngle=0))
    scale = alt.Scale(domain=[0, 1.02], nice=False)
    y: dict[str, Any] = {"title": "separability", "scale": scale}
    base = alt.Chart(inline(quantiles)).encode(x=x)
    palette = {f"upper bound, {form}": RED, f"lower bound, {form}": BLUE}
    long = quantiles.select(
        "n",
        pl.col(f"upper_{form}").alias(f"upper bound, {form}"),
        pl.col(f"lower_{form}").alias(f"lower bound, {form}"),
    )
    long = long.unpivot(on=list(palette), index="n", variable_name="series", value_name="value")
    claim = (
        alt.Chart(inline(pl.DataFrame({"low": [0.70], "high": [0.85]})))
        .mark_rect(opacity=0.35, color="#bbbbbb")
        .encode(y=alt.Y("low:Q", **y), y2="high:Q")
    )
    bounds = alt.Chart(inline(long)).mark_line(point=alt.OverlayMarkDef(size=22), strokeWidth=1.6).encode(
        x=x, y=alt.Y("value:Q", **y),
        color=colors(palette),
    )  # fmt: skip
    return [
        claim,
        base.mark_rule(color=GREEN).encode(y=alt.Y("q05:Q", **y), y2="q95:Q"),
        base.mark_bar(color=GREEN, opacity=0.55, size=14).encode(y=alt.Y("q25:Q", **y), y2="q75:Q"),
        base.mark_tick(color=GREEN, thickness=2, size=14).encode(y=alt.Y("q50:Q", **y)),
        base.mark_bar(color=BLACK, size=2.5).encode(y=alt.Y("window_low:Q", **y), y2="window_high:Q"),
        base.mark_circle(color=GREEN, size=16, opacity=1).encode(y=alt.Y("most:Q", **y)),
        bounds,
    ]
