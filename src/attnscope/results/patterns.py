"""The cells of an attention pattern, as a chart or a picture needs them (`scanning/patterns.py` captures them)."""

from __future__ import annotations

import polars as pl


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
