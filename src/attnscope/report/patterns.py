"""Attention patterns for the page: rows x runs of keys of every head, as strings of two letters for each cell.

A weight keeps two significant figures: `m` from 10 to 99 and `e` from 0 to 9 stand for m / 10^e. A model with many
heads gets fewer rows and longer runs, so that the page stays small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from attnscope.intervals import evenly_spaced

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Cells of all heads that a page can hold, and the least number of rows and runs of keys of a head.
_CELLS, _LEAST = 1_200_000, 8
_FIRST_LETTER = ord("#")  # for m = 10; the page's script knows it too
_NOTHING, _ZERO = "  ", "!!"  # a run that the row does not see, and a weight below what two letters can say


def page_patterns(patterns: pl.DataFrame | None, order: pl.DataFrame) -> dict[str, Any] | None:
    """The patterns of the heads in `order`; `grids` name their rows and keys, `grid` the one of each head."""
    if patterns is None or patterns.is_empty():
        return None
    tables = patterns.partition_by("layer", "head", as_dict=True)
    side = _side(len(tables))
    grids: dict[tuple[Any, ...], int] = {}
    columns: dict[str, list[Any]] = {"grid": [], "first": [], "cells": []}
    for key in order.iter_rows():
        table = tables.get(key)
        if table is None:
            for column in columns.values():
                column.append(None)
            continue
        weights, width = _downsampled(table, side)
        chosen = list(evenly_spaced(table.height, side))
        rows, first = table["position"].gather(chosen), table["first_key_weight"].gather(chosen)
        grid = (tuple(rows), table["first_key"][0], width, weights.shape[1])
        columns["grid"].append(grids.setdefault(grid, len(grids)))
        columns["first"].append(_letters(first.to_numpy()))
        columns["cells"].append(_letters(weights[chosen]))
    names = ("rows", "first_key", "keys_per_cell", "cells")
    return {"grids": [dict(zip(names, grid, strict=True)) for grid in grids], **columns}


def _side(heads: int) -> int:
    """How many rows and runs of keys a head may have: a power of two."""
    side = 64
    while side > _LEAST and heads * side * side > _CELLS:
        side //= 2
    return side


def _downsampled(table: pl.DataFrame, side: int) -> tuple[NDArray[np.float64], int]:
    """The weights (rows, cells) with runs so long that there are at most `side`, and how many keys a run has."""
    weights = np.array(table["weights"].to_list(), dtype=np.float64)  # null becomes NaN
    factor = -(-weights.shape[1] // side)
    missing = -weights.shape[1] % factor
    runs = np.pad(weights, ((0, 0), (0, missing)), constant_values=np.nan).reshape(len(weights), -1, factor)
    sums = np.where(np.isnan(runs).all(-1), np.nan, np.nansum(runs, -1))
    return sums, int(table["keys_per_cell"][0]) * factor


def _letters(values: NDArray[np.float64]) -> str:
    """Two letters for each value."""
    flat = np.asarray(values, dtype=np.float64).ravel()
    sizes = np.where(np.isfinite(flat) & (flat > 0), flat.clip(max=99), 1)
    exponent = np.clip(1 - np.floor(np.log10(sizes)), 0, 9)
    mantissa = np.rint(sizes * 10**exponent)
    over = mantissa > 99  # 0.0996 is 10 / 10^2
    mantissa, exponent = np.where(over, 10, mantissa), np.where(over, exponent - 1, exponent)
    pairs = [f"{chr(_FIRST_LETTER - 10 + int(m))}{int(e)}" for m, e in zip(mantissa, exponent, strict=True)]
    known = np.where(np.isfinite(flat), np.where((flat > 0) & (mantissa >= 10), 2, 1), 0)
    return "".join((_NOTHING, _ZERO, pair)[kind] for kind, pair in zip(known, pairs, strict=True))
