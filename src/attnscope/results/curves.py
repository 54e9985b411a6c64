"""Columns of a scan against the size N of the top set and against the length, for one head or over all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from attnscope.scanning.result import ScanResult

Place = tuple[int, int]
"""Layer and head."""

BOUNDS = {name: (f"{name}_lower", f"{name}_upper") for name in ("separability", "distance")}
"""Proved bounds on a column."""

_KEYS = ["layer", "head"]


def against_n(result: ScanResult, measure: str, place: Place | None) -> pl.DataFrame:
    """`n` and `value`: of one head with its bounds, or the median over heads with `low` and `high` (5% and 95%).

    A head's value is its mean over the rows that represent it, at the longest length.
    """
    heads = result.overview.by_n().select(*_KEYS, "n", measure, *BOUNDS.get(measure, ()))
    return _over_heads(heads, "n", measure, place)


def against_length(result: ScanResult, measure: str, place: Place | None) -> pl.DataFrame:
    """The same with `length`, in tokens: the lengths that were measured, or for many rows the next power of two."""
    heads = result.overview.lengths.select(*_KEYS, "length", measure)
    return _over_heads(heads, "length", measure, place)


def _over_heads(heads: pl.DataFrame, by: str, measure: str, place: Place | None) -> pl.DataFrame:
    if place is not None:
        layer, head = place
        return heads.filter(layer=layer, head=head).drop(_KEYS).rename({measure: "value"}).sort(by)
    value = pl.col(measure)
    spread = {"value": value.median(), "low": value.quantile(0.05, "linear"), "high": value.quantile(0.95, "linear")}
    return heads.group_by(by).agg(**spread).sort(by)
