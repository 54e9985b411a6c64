"""Statistics over windows that are merged chunk by chunk: no more than one chunk of the tables is in memory.

Chunks are whole windows. The mean and spread of a quantity are those of its means in each window, merged as counts,
means and sums of squared deviations. Quantiles are those of the values at `FIGURES` significant figures, whose counts
are merged: rounding keeps the order of values, so these are the quantiles of all values, to as many figures.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

FIGURES = 2
QUANTILES = {"q05": 0.05, "q50": 0.5, "q95": 0.95}
_PENDING = 50_000  # lines that are held before they are merged


class Merged:
    """Lines with keys, of which those with equal keys are merged by some expressions."""

    def __init__(self, keys: Sequence[str], merge: Sequence[pl.Expr]) -> None:
        self._keys, self._merge = list(keys), list(merge)
        self._pending: list[pl.DataFrame] = []
        self._lines = 0

    def add(self, table: pl.DataFrame) -> None:
        """Add lines, whose keys may have lines already."""
        self._pending.append(table)
        self._lines += table.height
        if self._lines > max(_PENDING, 2 * self._pending[0].height):
            self._pending = [self.table()]
            self._lines = self._pending[0].height

    def table(self) -> pl.DataFrame:
        """All lines, merged and sorted by their keys."""
        return pl.concat(self._pending).group_by(self._keys).agg(self._merge).sort(self._keys)


class Moments:
    """Number, mean and standard deviation over windows of some columns, for each combination of keys."""

    def __init__(self, keys: Sequence[str], columns: Sequence[str]) -> None:
        self.keys, self.columns = list(keys), list(columns)
        self._merged = Merged(keys, [each for name in columns for each in _merged_moments(name)])

    def add(self, by_window: pl.DataFrame) -> None:
        """Add the lines of some windows, one for each window and combination of keys."""
        each = [expression for name in self.columns for expression in _moments(name)]
        self._merged.add(by_window.group_by(self.keys).agg(each))

    def table(self) -> pl.DataFrame:
        """The keys, each column's mean, and its standard deviation in `<column>_spread`."""
        spreads = [
            (pl.col(f"{name}|squares") / (pl.col(f"{name}|count") - 1)).sqrt().alias(f"{name}_spread")
            for name in self.columns
        ]
        several = [
            pl.when(pl.col(f"{name}|count") > 1).then(spread)
            for name, spread in zip(self.columns, spreads, strict=True)
        ]
        means = [pl.col(f"{name}|mean").alias(name) for name in self.columns]
        return self._merged.table().select(*self.keys, *means, *several)


def _moments(name: str) -> list[pl.Expr]:
    value = pl.col(name)
    squares = (value.var(ddof=0) * value.count()).fill_null(0.0)
    return [
        value.count().cast(pl.Float64).alias(f"{name}|count"),
        value.mean().alias(f"{name}|mean"),
        squares.alias(f"{name}|squares"),
    ]


def _merged_moments(name: str) -> list[pl.Expr]:
    """Chan, Golub, LeVeque: the deviations within the parts, and those of their means."""
    count, mean, squares = (pl.col(f"{name}|{part}") for part in ("count", "mean", "squares"))
    total = count.sum()
    middle = (count * mean).sum() / pl.when(total > 0).then(total)
    between = (count * (mean - middle).pow(2)).sum()
    return [count.sum(), middle.alias(f"{name}|mean"), (squares.sum() + between).alias(f"{name}|squares")]


class Ranges:
    """Quantiles over windows of the column `value`, to `FIGURES` significant figures, for each combination of keys."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = list(keys)
        self._merged = Merged([*keys, "value"], [pl.col("count").sum()])

    def add(self, by_window: pl.DataFrame) -> None:
        """Add the lines of some windows, one for each window and combination of keys."""
        rounded = by_window.drop_nulls("value").with_columns(pl.col("value").round_sig_figs(FIGURES))
        self._merged.add(rounded.group_by(*self.keys, "value").agg(count=pl.len()))

    def table(self) -> pl.DataFrame:
        """The keys, the number of windows, and for each quantile the smallest value with at least that share below."""
        value, up_to = pl.col("value"), pl.col("count").cum_sum()
        total = pl.col("count").sum()
        quantiles = {name: value.filter(up_to >= share * total).first() for name, share in QUANTILES.items()}
        return self._merged.table().group_by(self.keys, maintain_order=True).agg(windows=total, **quantiles)
