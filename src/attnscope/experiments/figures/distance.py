"""Figures 2a and 2b: distance, expectation and bounds against L and against N."""

from __future__ import annotations

import polars as pl

from attnscope.columns import label
from attnscope.experiments.figures.statistics import over_windows
from attnscope.show.figures import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    Channel,
    Figure,
    Mark,
    Panel,
    log_axis,
    log_range,
)
from attnscope.studies.paper.evidence import Evidence
from attnscope.studies.paper.settings import FIXED_N

PRINTED, CORRECTED = "as printed", "corrected"
SPREAD = "bands: range over windows"
# The distance may coincide with its printed expectation: its line is wider, its points are larger, and drawn first.
DISTANCE = Mark(label("distance"), GREEN, line=3, point="circle", size=44, band=0.18)
EXPECTED = Mark(label("expected_printed"), BLUE, dash=(6, 2), point="square", band=0.18)
BOUND = Mark(label("distance_bound_printed"), RED, dash=(2, 2), point="triangle-up", size=24, band=0.18)
DRAWN = Mark("Drawn mean", PURPLE, point="diamond", size=24, band=0.18)
E1 = Mark(f"{label('expected_lower')} to upper (E1)", SKY, line=0, band=0.45, edge=1.2)
B3 = Mark(f"{label('distance_upper')} (B3), gap", RED, point="triangle-down", size=24, band=0.18)
B4 = Mark(f"{label('distance_lower')} (B4), gap", ORANGE, point="triangle-up", size=24, band=0.18)
AS_PRINTED = {"distance": DISTANCE, "expected_printed": EXPECTED, "distance_bound_printed": BOUND}
GAPS = {"gap_upper": B3, "gap_lower": B4}
LEAST_GAP = 1e-16  # smaller ones are rounding


def data(e: Evidence, at: pl.Expr, by: str) -> pl.DataFrame:
    """Medians over heads by L or N, with their range over windows; gaps are relative to the distance of the row."""
    topn = e.table("topn").filter(at)
    distance = pl.col("distance")
    columns = {name: pl.median(name) for name in (*AS_PRINTED, "expected_lower", "expected_upper")} | {
        "gap_upper": (pl.col("distance_upper") / distance - 1).clip(lower_bound=LEAST_GAP).median(),
        "gap_lower": (1 - pl.col("distance_lower") / distance).clip(lower_bound=LEAST_GAP).median(),
    }
    drawn = over_windows(e.table("drawn").filter(at), [by], {"drawn_mean": pl.median("drawn_mean")})
    return pl.concat([over_windows(topn, [by], columns), drawn])


def against_length(e: Evidence) -> Figure:
    """Figure 2a: distance, expectation and bounds against L at a fixed N."""
    medians = data(e, pl.col("n") == FIXED_N, "prefix")
    return _figure(medians, log_axis("prefix", "L, tokens", medians["prefix"]), "length", f"N = {FIXED_N}")


def against_n(e: Evidence) -> Figure:
    """Figure 2b: distance, expectation and bounds against N at the longest length."""
    longest = int(e.table("topn")["prefix"].to_numpy().max())
    medians = data(e, pl.col("prefix") == longest, "n")
    return _figure(medians, log_axis("n", "N, size of the top set", medians["n"]), "N", f"L = {longest:,}")


def _figure(medians: pl.DataFrame, x: Channel, against: str, fixed: str) -> Figure:
    gaps = pl.col("series").is_in(list(GAPS))
    y = distance_axis(medians.filter(~gaps))
    gap = _range("relative gap to the distance", medians.filter(gaps))
    corrected = [
        (E1, expected_range(medians)),
        (DISTANCE, medians.filter(series="distance")),
        (DRAWN, medians.filter(series="drawn_mean")),
    ]
    panels = [
        Panel(PRINTED, x, y, series(medians, AS_PRINTED)),
        Panel(CORRECTED, x, y, corrected),
        Panel("proved bounds", x, gap, series(medians, GAPS)),
    ]
    letter = "a" if against == "length" else "b"
    notes = [
        f"{fixed}; median over heads, {SPREAD}; drawn mean: of random sets of N tokens",
        "proved bounds: how far B3 lies above the distance of a row and B4 below it, as a share of it",
    ]
    return Figure(f"Figure 2{letter}. Distance against {against}", notes, [panels], medians)


def series(medians: pl.DataFrame, marks: dict[str, Mark]) -> list[tuple[Mark, pl.DataFrame]]:
    """The marks with their lines of the table."""
    return [(mark, medians.filter(series=name)) for name, mark in marks.items()]


def expected_range(medians: pl.DataFrame) -> pl.DataFrame:
    """The medians of both ends of E1 as `low` and `high`."""
    by = next(name for name in ("prefix", "n") if name in medians.columns)
    ends = {"expected_lower": "low", "expected_upper": "high"}
    edges = medians.filter(pl.col("series").is_in(list(ends))).pivot(on="series", index=by, values="value")
    return edges.rename(ends).sort(by)


def distance_axis(medians: pl.DataFrame) -> Channel:
    """The axis of distances and expectations, wide enough for all of them."""
    return _range(label("distance"), medians)


def _range(title: str, table: pl.DataFrame) -> Channel:
    positive = table.filter(pl.col("low") > 0)
    return log_range("value", title, float(positive["low"].to_numpy().min()), float(positive["high"].to_numpy().max()))
