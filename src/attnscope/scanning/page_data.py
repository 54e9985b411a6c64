"""The data of the page: everything it shows of a run, as columns of rounded numbers.

A page must stay under 5 MB for any model, so what grows with the number of heads has a budget: shorter lengths lose
their curves, heads keep fewer rows and weights. The page says so where it happens. The numbers of a column run
over the heads in the order of `heads`, and for each head over groups of lengths, sizes of the top set, rows or keys.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from attnscope.diagnosis.result import state_looks, state_rules, withdrawn_states
from attnscope.intervals import evenly_spaced
from attnscope.scanning import overview
from attnscope.scanning.overview import HEAD_MEASURES, Overview, explained, explained_evidence
from attnscope.scanning.view import notable_numbers
from attnscope.show.page import scan_page
from attnscope.store.tables import OWN, TokenWeights

if TYPE_CHECKING:
    from numpy.typing import NDArray

DATA_VERSION = 2

# Numbers that a page can hold of each kind; a number takes about three bytes of the file.
_CURVE_NUMBERS, _WEIGHT_NUMBERS, _WHAT_IF_NUMBERS = 500_000, 200_000, 150_000
_MOST_WEIGHTS, _LEAST_WEIGHTS = 64, 16
_MANY_WINDOWS = 20  # from which on 5% of them are more than one

_WHAT_IF_COLUMNS = ("separability", "top_mass", "participation", "max_weight", "support", "jacobian_norm")

Columns = dict[str, list[Any]]


def render(
    view: Overview,
    findings: dict[str, Any] | None = None,
    token_weights: TokenWeights | None = None,
    claims: dict[str, Any] | None = None,
    joined: Mapping[str, Any] | None = None,
) -> str:
    """The report of a run as one HTML document, with the data of what studies found in its folder, by their kind."""
    return scan_page(page_data(view, findings, token_weights, claims) | dict(joined or {}))


def page_data(
    view: Overview,
    findings: dict[str, Any] | None = None,
    token_weights: TokenWeights | None = None,
    claims: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """All data of the page for one run; of a run with empty tables, only how it was run."""
    run = view.run
    data: dict[str, Any] = {"version": DATA_VERSION, "run": run, "findings": findings, "claims": claims, "heads": None}
    if view.is_empty:
        return data
    n, heads = view.n, view.heads
    order = heads.select("layer", "head")
    labels = view.groups()
    limits = (findings or {}).get("thresholds") or {}
    return data | {
        "heads": rounded_columns(heads),
        "ranges": _ranges(view, order),
        "measures": explained(n),
        "evidence": explained_evidence(limits, n) if findings else {},
        "states": state_looks(limits, withdrawn_states(findings or {})),
        "rules": state_rules(limits),
        "notes": notable_numbers(heads, run, n) if findings is None else [],
        "usual_n": n,
        "groups": labels,
        "sources": {"scan": view.sources(), "diagnosis": overview.diagnosis_source(findings)},
        "by_group": _by_group(view, order, len(labels)),
        "curves": _curves(view, order, len(labels)),
        "rows": _rows(view, order),
        "what_if": _what_if(view, order),
        "text": _text(token_weights, order),
        "patterns": page_patterns(token_weights.patterns if token_weights else None, order),
        "by_length": rounded_columns(view.median_by_length()),
        "by_n": rounded_columns(view.median_by_n()),
    }


def _ranges(view: Overview, order: pl.DataFrame) -> dict[str, Any] | None:
    """The 5% and 95% quantiles over windows of every measure of every head at the longest length, if there are many."""
    if view.windows < _MANY_WINDOWS:
        return None
    longest = view.ranges.filter((pl.col("group") == 0) & (pl.col("n").is_null() | (pl.col("n") == view.n)))
    found = {}
    for name in HEAD_MEASURES:
        lines = longest.filter(measure=name).select("layer", "head", "q05", "q95")
        found[name] = rounded_columns(_filled(order, lines).select("q05", "q95"))
    return found


def _grid(*axes: pl.DataFrame) -> pl.DataFrame:
    """Every combination of the lines of some tables; those of the last one run fastest."""
    return reduce(lambda grid, axis: grid.join(axis, how="cross", maintain_order="left_right"), axes)


def _filled(grid: pl.DataFrame, table: pl.DataFrame) -> pl.DataFrame:
    """The columns of a table at the places of a grid, null where it has no line."""
    return grid.join(table, on=grid.columns, how="left", maintain_order="left")


def _groups(count: int) -> pl.DataFrame:
    return pl.DataFrame({"group": range(count)}, schema={"group": pl.Int32})


def _by_group(view: Overview, order: pl.DataFrame, groups: int) -> dict[str, list[Any]]:
    """Every measure of every head in every group of lengths."""
    return rounded_columns(_filled(_grid(order, _groups(groups)), view.head_groups()).select(HEAD_MEASURES))


def _curves(view: Overview, order: pl.DataFrame, groups: int) -> dict[str, Any]:
    """What is drawn against N, for as many groups of lengths as there is room for: the longest first."""
    sizes = view.topn["n"].unique().sort()
    count = min(groups, max(1, _CURVE_NUMBERS // (order.height * len(sizes) * len(overview.CURVES))))
    table = _filled(_grid(order, _groups(count), sizes.to_frame()), view.topn.filter(normalizer=OWN))
    return {"n": sizes.to_list(), "groups": count, "columns": rounded_columns(table.select(overview.CURVES))}


def _rows(view: Overview, order: pl.DataFrame) -> dict[str, Any]:
    """The rows themselves: all of them, or as many as there is room for, spread evenly."""
    keys = ["window", "position"]
    chosen = view.shown.select(keys).unique().sort(keys)
    table = _filled(_grid(order, chosen), view.shown)
    return {
        "of": view.row_count,
        "window": chosen["window"].to_list(),
        "position": chosen["position"].to_list(),
        "columns": rounded_columns(table.select("length", *overview.ROW_COLUMNS)),
    }


def _what_if(view: Overview, order: pl.DataFrame) -> dict[str, Any] | None:
    """The measures of every head under every normalizer that was tried on its logits."""
    labels = view.normalizers
    if len(labels) < 2:
        return None
    room = max(2, _WHAT_IF_NUMBERS // (order.height * len(_WHAT_IF_COLUMNS)))
    tables = [view.head_groups(label).filter(group=0).with_columns(label=pl.lit(label)) for label in labels[:room]]
    table = _filled(_grid(order, pl.DataFrame({"label": labels[:room]})), pl.concat(tables))
    return {"of": len(labels), "labels": labels[:room], "columns": rounded_columns(table.select(_WHAT_IF_COLUMNS))}


def _text(token_weights: TokenWeights | None, order: pl.DataFrame) -> dict[str, Any] | None:
    """The window's text, token by token, and the largest weights of every head on it."""
    if token_weights is None or token_weights.weights.is_empty():
        return None
    room = _WEIGHT_NUMBERS // (2 * order.height)
    count = max(_LEAST_WEIGHTS, min(_MOST_WEIGHTS, room))
    keys = ["layer", "head"]
    lists = (
        token_weights.weights.filter(pl.col("key") < len(token_weights.texts))  # other inputs' keys have no token
        .sort(*keys, "weight", descending=[False, False, True], maintain_order=True)
        .group_by(keys, maintain_order=True)
        .agg(pl.col("key").head(count), pl.col("weight").round_sig_figs(3).head(count), pl.col("position").first())
    )
    table = _filled(order, lists)
    return {
        "count": count,
        "texts": token_weights.texts,
        "position": table["position"].to_list(),
        "keys": table["key"].to_list(),
        "weights": table["weight"].to_list(),
    }


def rounded_columns(table: pl.DataFrame) -> Columns:
    """Columns as lists: four significant figures, and nothing where a number is missing or infinite."""
    floats = pl.selectors.float()
    finite = pl.when(floats.is_finite()).then(floats.round_sig_figs(4)).otherwise(None)
    return {
        column.name: [_short(value) for value in column] if column.dtype.is_float() else column.to_list()
        for column in table.with_columns(finite.name.keep())
    }


def _short(value: float | None) -> float | int | None:
    """Whole numbers without their decimal point."""
    if value is None or not math.isfinite(value):
        return None
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


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


def pattern_cells(pattern: pl.DataFrame, hide_first: bool) -> pl.DataFrame:
    """One line for each visible cell of one head's pattern.

    `position` is the row, `above` the pattern's row before it (-1 before the first); `first` and `end` are the keys
    of the cell (`end` is not included); `weight` is the row's weight on them. With `hide_first` the first key's weight
    is taken out, and `weight` is a share of what is left: null where nothing is.
    """
    left = pl.col("total") - pl.col("first_key_weight")
    cells = (
        pattern.sort("position")
        .with_columns(above=pl.col("position").shift(1).fill_null(-1), total=pl.col("weights").list.sum())
        .with_columns(cell=pl.int_ranges(0, pl.col("weights").list.len()))
        .explode("weights", "cell")
        .filter(pl.col("weights").is_not_null())
        .with_columns(first=pl.col("first_key") + pl.col("cell") * pl.col("keys_per_cell"))
        .with_columns(end=pl.col("first") + pl.col("keys_per_cell"))
    )
    weight = pl.col("weights")
    if hide_first:
        rest = pl.when(pl.col("cell") == 0).then(weight - pl.col("first_key_weight")).otherwise(weight)
        weight = pl.when(left > 1e-6 * pl.col("total").abs()).then(rest.clip(lower_bound=0) / left)
    return cells.select("position", "above", "first", "end", weight=weight)
