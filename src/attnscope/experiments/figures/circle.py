"""Figure 1: the tokens of one row on the circle, scaled by their weights, and the ball around the context."""

from __future__ import annotations

import math

import altair as alt
import numpy as np
import polars as pl

from attnscope.columns import head_name
from attnscope.show.figures import BLACK, GRAY, PURPLE, SKY, STAR, Figure, Mark, Panel, Series

SELECTED = Mark("in the top set", PURPLE, line=0, point=STAR, size=60)
LEFT_OUT = Mark("left out", BLACK, line=0, point="circle", size=10, fill="white")
CONTEXT = Mark("context", BLACK, line=0, point="cross", size=40)
BALL = Mark("ball around the context", SKY, line=1.6)
UNIT = Mark("unit circle", GRAY, line=1)


def figure(circle: pl.DataFrame) -> Figure:
    """Three panels: tokens on the circle, tokens scaled by their weights with the ball, and the tokens enlarged."""
    tokens = circle.with_columns(scaled_x=pl.col("x") * pl.col("weight"), scaled_y=pl.col("y") * pl.col("weight"))
    one = circle.row(0, named=True)
    radius, (cx, cy) = one["radius"], (one["context_x"], one["context_y"])
    scaled = tokens.select("selected", x="scaled_x", value="scaled_y")
    across, up = scaled["x"].to_numpy(), scaled["value"].to_numpy()
    center = (float(across.min() + across.max()) / 2, float(up.min() + up.max()) / 2)
    half = 0.58 * max(float(np.ptp(across)), float(np.ptp(up)), 1e-6)
    ball = (BALL, _ring(cx, cy, radius))
    middle = pl.DataFrame({"x": [cx], "value": [cy]})
    near = max(abs(cx - center[0]), abs(cy - center[1])) < half
    reach = max(1.12, *(abs(at) + radius for at in (cx, cy)))
    unit = (UNIT, _ring(0, 0, 1))
    on_circle = tokens.select("selected", x="x", value="y")
    panels = [
        _panel("tokens on the circle", [unit, *_tokens(on_circle)], (0, 0), 1.12),
        _panel(
            "scaled by their weights",
            [unit, ball, *_tokens(scaled), (CONTEXT, middle)],
            (0, 0),
            reach,
        ),
        _panel(
            "the same, enlarged", [ball, *_tokens(scaled), (CONTEXT, middle if near else middle.clear())], center, half
        ),
    ]
    count, inside = int(circle["selected"].sum()), int(circle["inside"].sum())
    notes = [
        f"{head_name(one['layer'], one['head'])}, last row of {len(circle)} tokens, N = {count}: real weights, "
        f"{one['vectors']} vectors in the plane where they spread most",
        f"{inside} of {count} lie in the ball here; in all dimensions {one['separability']:.2f} of the top set do",
    ]
    return Figure("Figure 1. What it takes to tell tokens apart", notes, [panels], circle)


def _tokens(table: pl.DataFrame) -> list[Series]:
    return [(LEFT_OUT, table.filter(~pl.col("selected"))), (SELECTED, table.filter("selected"))]


def _ring(x: float, y: float, radius: float) -> pl.DataFrame:
    angles = [2 * math.pi * k / 240 for k in range(241)]
    return pl.DataFrame(
        {
            "x": [x + radius * math.cos(angle) for angle in angles],
            "value": [y + radius * math.sin(angle) for angle in angles],
            "order": range(len(angles)),
        }
    )


def _panel(heading: str, series: list[Series], center: tuple[float, float], half: float) -> Panel:
    """A square panel around a center; rings are cut off at its edges."""
    x, y = (
        {
            "shorthand": f"{name}:Q",
            "title": None,
            "scale": alt.Scale(domain=[middle - half, middle + half], nice=False, zero=False),
            "axis": alt.Axis(tickCount=3, grid=False, format="~g"),
        }
        for name, middle in zip(("x", "value"), center, strict=True)
    )
    return Panel(heading, x, y, series, square=True)
