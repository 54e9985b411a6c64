"""ColumnBlock of the tables, kept as the arrays they were measured in until a window is done.

A table is then built in one go: a window of many small tables takes longer to put together than to measure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from attnscope._threads import share_out

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

_TYPES: dict[pl.DataType, DTypeLike] = {pl.Int32(): np.int32, pl.Float64(): np.float64}
_SMALL = 1 << 15  # lines up to which a second thread costs more than it saves


@dataclass(frozen=True)
class ColumnBlock:
    """Some rows of all heads of one layer under one normalizer."""

    layer: int
    label: str
    positions: tuple[int, ...]
    columns: dict[str, NDArray[Any]]  # of the shape of `kept`, or of one that broadcasts to it
    kept: NDArray[np.bool_]  # (heads, rows) or (heads, rows, several): which of them become lines

    def named(self, label: str) -> ColumnBlock:
        """The same numbers under another name."""
        return replace(self, label=label)


def table(parts: Sequence[ColumnBlock], schema: pl.Schema, order: Sequence[str]) -> pl.DataFrame:
    """All lines, NaN as missing values, in the order of some columns: layer, head and position first."""
    if not parts:
        return pl.DataFrame(schema=schema)
    in_layers = sorted(parts, key=lambda part: part.layer)
    runs = [list(run) for _, run in groupby(in_layers, lambda part: (part.layer, part.label))]
    places = _places(runs)
    size = places[-1].end
    kept = np.empty(size, np.bool_)
    for place in places:
        place.within(kept)[...] = place.part.kept
    chosen = None if kept.all() else kept.nonzero()[0]
    data: dict[str, pl.Series] = {}

    def fill(name: str) -> None:
        kind = schema[name]
        if name == "normalizer":
            labels = [
                pl.repeat(label, sum(int(part.kept.sum()) for run in same for part in run), dtype=kind, eager=True)
                for label, same in groupby(runs, lambda run: run[0].label)
            ]
            data[name] = pl.concat(labels)
            return
        number = _TYPES[kind]
        values = np.empty(size, number)
        for place in places:
            place.within(values)[...] = place.part.columns[name]
        if chosen is not None:
            values = values[chosen]
        data[name] = pl.Series(name, values, nan_to_null=True)

    if size > _SMALL:
        share_out(fill, schema)
    else:
        for name in schema:
            fill(name)
    found = pl.DataFrame({name: data[name] for name in schema})
    return found if _in_order(runs) else found.sort(order, maintain_order=True)


class _Place(NamedTuple):
    """Where a part's lines are in a column: among those of its run, the rows of each head one after another."""

    part: ColumnBlock
    begin: int  # of the run
    end: int
    shape: tuple[int, ...]
    rows: slice

    def within(self, column: NDArray[Any]) -> NDArray[Any]:
        return column[self.begin : self.end].reshape(self.shape)[:, self.rows]


def _places(runs: Sequence[Sequence[ColumnBlock]]) -> list[_Place]:
    found = []
    end = 0
    for run in runs:
        heads, _, *several = run[0].kept.shape
        begin, end = end, end + sum(part.kept.size for part in run)
        shape = (heads, sum(part.kept.shape[1] for part in run), *several)
        row = 0
        for part in run:
            rows = slice(row, row + part.kept.shape[1])
            found.append(_Place(part, begin, end, shape, rows))
            row = rows.stop
    return found


def _in_order(runs: Sequence[Sequence[ColumnBlock]]) -> bool:
    """Whether lines are as they should be already: one normalizer, later layers and positions behind."""
    layers = [run[0].layer for run in runs]
    positions = [[position for part in run for position in part.positions] for run in runs]
    return all(a < b for line in (layers, *positions) for a, b in pairwise(line))
