"""The chart of `attnscope compare`: separability against perplexity, a point for each normalizer."""

from __future__ import annotations

import polars as pl

from attnscope.columns import label
from attnscope.show.figures import BLACK, BLUE, GREEN, RED, Figure, Mark, Panel, linear_range, log_range
from attnscope.store.tables import comparable, named

# Outlines of different shapes and sizes, so that all are visible if several normalizers give the same numbers.
OWN = Mark("the model itself", BLACK, line=0, point="M-1,0L1,0M0,-1L0,1", size=160)
MARKS = {
    "none": Mark("as given", BLUE, line=0, point="circle", size=80, fill="transparent"),
    "global": Mark("calibrated, one value for all heads", RED, line=0, point="square", size=44, fill="transparent"),
    "head": Mark("calibrated, one value per head", GREEN, line=0, point="diamond", size=30, fill="transparent"),
}


def figure(table: pl.DataFrame) -> Figure:
    """Separability against perplexity at the longest length, a point for each normalizer that can be compared."""
    longest = int(table["length"].to_numpy().max())
    points = (
        comparable(named(table))
        .filter(pl.col("separability").is_not_null(), pl.col("perplexity").is_finite(), mode="swapped", length=longest)
        .select("name", "normalizer", "calibration", "perplexity", "separability", "kl", "jacobian_norm")
    )
    is_own = pl.col("normalizer") == "own"
    placed = points.select("normalizer", "calibration", text="name", x="perplexity", value="separability")
    series = [
        *((mark, placed.filter(~is_own, calibration=kind)) for kind, mark in MARKS.items()),
        (OWN, placed.filter(is_own)),
    ]
    present = [one for one in series if not one[1].is_empty()] or series
    low, high = _ends(points["separability"])
    room = max(0.0, 0.02 - (high - low) / 2)
    panel = Panel(
        "",
        log_range("x", f"{label('perplexity')} (log scale)", *_ends(points["perplexity"])),
        linear_range("value", f"{label('separability')}, mean over heads", low - room, high + room),
        present,
        names=placed,
    )
    notes = [f"normalizer swapped in every layer, {longest:,} tokens"]
    return Figure("Separability against perplexity", notes, [[panel]], points)


def _ends(values: pl.Series) -> tuple[float, float]:
    """The smallest and largest value; 1 and 2 if there are none."""
    numbers = values.to_numpy()
    return (float(numbers.min()), float(numbers.max())) if len(numbers) else (1.0, 2.0)
