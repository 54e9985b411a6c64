"""Figure 1: the tokens of one row on the circle, scaled by their weights, and the ball around the context."""

from __future__ import annotations

import math

import altair as alt
import polars as pl

from attnscope.columns import head_name
from attnscope.experiments.figures.style import BLACK, PURPLE, SKY, inline, panel, side_by_side

SIZE = 190
SELECTED, LEFT_OUT = "in the top set", "left out"


def figure(circle: pl.DataFrame) -> alt.HConcatChart:
    """Three panels: tokens on the circle, tokens scaled by their weights, and the enlarged ball."""
    kind = pl.when(pl.col("selected")).then(pl.lit(SELECTED)).otherwise(pl.lit(LEFT_OUT)).alias("kind")
    tokens = circle.with_columns(
        kind,
        scaled_x=pl.col("x") * pl.col("weight"),
        scaled_y=pl.col("y") * pl.col("weight"),
    )
    one = circle.row(0, named=True)
    radius, center = one["radius"], (one["context_x"], one["context_y"])
    reach = 1.15 * max(
        radius, *(math.hypot(x - center[0], y - center[1]) for x, y in tokens.select("scaled_x", "scaled_y").rows())
    )
    panels = [
        _panel(tokens, "x", "y", (0.0, 0.0), 1.12, [(0.0, 0.0, 1.0, None)], "tokens on the circle"),
        _panel(tokens, "scaled_x", "scaled_y", (0.0, 0.0), 1.12, [(0.0, 0.0, 1.0, None)], "scaled by their weights"),
        _panel(tokens, "scaled_x", "scaled_y", center, reach, [(*center, radius, SKY)], "the ball, enlarged"),
    ]
    count, inside = int(circle["selected"].sum()), int(circle["inside"].sum())
    return side_by_side(
        *panels,
        title="Figure 1. What it takes to tell tokens apart",
        subtitle=[
            f"{head_name(one['layer'], one['head'])}, last row of {len(circle)} tokens, N = {count}: real weights, "
            f"{one['vectors']} vectors in the plane",
            f"where they spread most. {inside} of {count} lie in the ball here; in all dimensions "
            f"{one['separability']:.2f} of the top set do.",
        ],
        spacing=22,
    )


def _panel(
    tokens: pl.DataFrame,
    x: str,
    y: str,
    center: tuple[float, float],
    reach: float,
    rings: list[tuple[float, float, float, str | None]],
    title: str,
) -> alt.LayerChart:
    legend = alt.Legend(orient="bottom", title=None, symbolOpacity=1) if x == "x" else None
    across, up = (alt.Scale(domain=[middle - reach, middle + reach], nice=False, zero=False) for middle in center)
    layers = []
    for cx, cy, radius, fill in rings:
        outline = pl.DataFrame(
            {
                "x": [cx + radius * math.cos(2 * math.pi * k / 120) for k in range(121)],
                "y": [cy + radius * math.sin(2 * math.pi * k / 120) for k in range(121)],
                "k": range(121),
            }
        )
        mark = alt.Chart(inline(outline)).mark_line(
            stroke=fill or "#999999", fill=fill, fillOpacity=0.25 if fill else 0, strokeWidth=1, clip=True
        )
        layers.append(
            mark.encode(x=alt.X("x:Q", scale=across, title=None), y=alt.Y("y:Q", scale=up, title=None), order="k:Q")
        )
    base = alt.Chart(inline(tokens)).encode(
        x=alt.X(f"{x}:Q", scale=across, title=None, axis=alt.Axis(tickCount=3, grid=False, format="~g")),
        y=alt.Y(f"{y}:Q", scale=up, title=None, axis=alt.Axis(tickCount=3, grid=False, format="~g")),
        color=alt.Color("kind:N", scale=alt.Scale(domain=[SELECTED, LEFT_OUT], range=[PURPLE, BLACK]), legend=legend),
    )
    layers.append(base.transform_filter(f"datum.kind == '{LEFT_OUT}'").mark_circle(size=26, opacity=0.6))
    star = "M0,-1L0.24,-0.31L0.95,-0.31L0.36,0.12L0.59,0.81L0,0.4L-0.59,0.81L-0.36,0.12L-0.95,-0.31L-0.24,-0.31Z"
    layers.append(
        base.transform_filter(f"datum.kind == '{SELECTED}'").mark_point(shape=star, size=150, filled=True, opacity=0.95)
    )
    if rings[0][3]:
        context = pl.DataFrame({"cx": [center[0]], "cy": [center[1]]})
        cross = alt.Chart(inline(context)).mark_point(shape="cross", size=60, color=BLACK, filled=True)
        layers.append(cross.encode(x=alt.X("cx:Q", scale=across), y=alt.Y("cy:Q", scale=up)))
    return panel(layers, title, SIZE, SIZE)
