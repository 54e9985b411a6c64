"""Figure 3: box plots of separability against N, with the printed and the proved bounds."""

from __future__ import annotations

import altair as alt
import polars as pl

from attnscope.columns import label
from attnscope.experiments.figures.distance import CORRECTED, PRINTED
from attnscope.show.figures import BLACK, BLUE, GRAY, GREEN, RED, Figure, Mark, Panel, linear_range
from attnscope.studies.paper.evidence import Evidence
from attnscope.studies.paper.settings import SEPARABILITY_N

BOUNDS = {
    "printed": ("separability_upper_printed", "separability_lower_printed"),
    "proved": ("separability_upper", "separability_lower"),
}
CLAIMED = (0.70, 0.85)  # where the paper says that it saturates
WHISKER = Mark("5% to 95% of heads", GREEN, line=0, bar=1)
BOX = Mark("quartiles over heads", GREEN, line=0, bar=8, bar_opacity=0.5)
MEDIAN = Mark("median over heads", GREEN, line=0, point="stroke", size=90)
WINDOWS = Mark("medians of single windows", BLACK, line=0, bar=2.2)
LARGEST = Mark("largest", GREEN, line=0, point="diamond", size=20, fill="white")
RANGE = Mark("0.70 to 0.85, as the paper states", GRAY, line=0, band=0.3)
LINES = {
    "printed": tuple(
        Mark(label(name), color, line=1.2, dash=dash)
        for name, color, dash in zip(BOUNDS["printed"], (RED, BLUE), ((6, 2), (2, 2)), strict=True)
    ),
    "proved": tuple(
        Mark(f"{label(name)} (T2a)", color, line=1.2) for name, color in zip(BOUNDS["proved"], (RED, BLUE), strict=True)
    ),
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


def figure(e: Evidence) -> Figure:
    """Two panels: box plots with the printed bounds, and with those of T2a."""
    quantiles = data(e)
    longest = int(e.table("topn")["prefix"].max())  # type: ignore[arg-type]
    panels = [
        panel(f"{PRINTED} (Theorem 2)", quantiles, "printed"),
        panel(f"{CORRECTED} (T2a)", quantiles, "proved"),
    ]
    notes = [f"L = {longest:,}; heads of all windows; bounds: median over heads, negative ones drawn at 0"]
    return Figure("Figure 3. Separability against N", notes, [panels], quantiles)


def panel(heading: str, quantiles: pl.DataFrame, form: str, each: int = 1) -> Panel:
    """Box plots over heads, with the medians of one form of the bounds; one N of `each` has a number, the last too."""
    named = quantiles["n"].to_list()[::-1][::each]
    axis = alt.Axis(labelAngle=0, labelExpr=f"indexof({named}, datum.value) < 0 ? '' : datum.label")
    x = {"shorthand": "n:O", "title": "N, size of the top set", "axis": axis}
    y = linear_range("value", label("separability"), 0, 1)
    upper, lower = LINES[form]
    window = quantiles.with_columns(  # a range of zero length is drawn as a short bar
        window_low=pl.col("window_low") - 0.01, window_high=pl.col("window_high") + 0.01
    )
    sides = quantiles.select("n").with_columns(low=pl.lit(CLAIMED[0]), high=pl.lit(CLAIMED[1]))
    return Panel(
        heading,
        x,
        y,
        [
            (RANGE, sides),
            (WHISKER, _named(quantiles, low="q05", high="q95")),
            (BOX, _named(quantiles, low="q25", high="q75")),
            (WINDOWS, _named(window, low="window_low", high="window_high")),
            (upper, _named(quantiles, value=f"upper_{form}")),
            (lower, _named(quantiles, value=f"lower_{form}")),
            (MEDIAN, _named(quantiles, value="q50")),
            (LARGEST, _named(quantiles, value="most")),
        ],
    )


def _named(quantiles: pl.DataFrame, **columns: str) -> pl.DataFrame:
    return quantiles.select("n", **{name: pl.col(column) for name, column in columns.items()})
