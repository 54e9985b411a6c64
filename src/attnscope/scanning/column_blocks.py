"""Columns of the tables as the arrays they were measured in, until a window is finished and its tables are built.

A table is built in one go: a window of many small tables takes longer to put together than to measure.
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
    columns: dict[str, NDArray[Any]]  # of the shape of `included`, or of one that broadcasts to it
    included: NDArray[np.bool_]  # (heads, rows) or (heads, rows, sizes): which of them become lines

    def named(self, label: str) -> ColumnBlock:
        """The same numbers under another label."""
        return replace(self, label=label)


def table(blocks: Sequence[ColumnBlock], schema: pl.Schema, order: Sequence[str]) -> pl.DataFrame:
    """All lines, NaN as missing values, in the order of some columns: layer, head and position first."""
    if not blocks:
        return pl.DataFrame(schema=schema)
    in_layers = sorted(blocks, key=lambda block: block.layer)
    runs = [list(run) for _, run in groupby(in_layers, lambda block: (block.layer, block.label))]
    lines = _lines(runs)
    size = lines[-1].end
    included = np.empty(size, np.bool_)
    for each in lines:
        each.within(included)[...] = each.block.included
    chosen = None if included.all() else included.nonzero()[0]
    data: dict[str, pl.Series] = {}

    def fill(name: str) -> None:
        kind = schema[name]
        if name == "normalizer":
            labels = []
            for label, same in groupby(runs, lambda run: run[0].label):
                count = sum(int(block.included.sum()) for run in same for block in run)
                labels.append(pl.repeat(label, count, dtype=kind, eager=True))
            data[name] = pl.concat(labels)
            return
        number = _TYPES[kind]
        values = np.empty(size, number)
        for each in lines:
            each.within(values)[...] = each.block.columns[name]
        if chosen is not None:
            values = values[chosen]
        data[name] = pl.Series(name, values, nan_to_null=True)

    if size > _SMALL:
        share_out(fill, schema)
    else:
        for name in schema:
            fill(name)
    frame = pl.DataFrame({name: data[name] for name in schema})
    return frame if _in_order(runs) else frame.sort(order, maintain_order=True)


class _Lines(NamedTuple):
    """Where the lines of a block are in a column: among those of its run, the rows of each head one after another."""

    block: ColumnBlock
    begin: int  # of the run
    end: int
    shape: tuple[int, ...]
    rows: slice

    def within(self, column: NDArray[Any]) -> NDArray[Any]:
        return column[self.begin : self.end].reshape(self.shape)[:, self.rows]


def _lines(runs: Sequence[Sequence[ColumnBlock]]) -> list[_Lines]:
    lines = []
    end = 0
    for run in runs:
        heads, _, *sizes = run[0].included.shape
        begin, end = end, end + sum(block.included.size for block in run)
        shape = (heads, sum(block.included.shape[1] for block in run), *sizes)
        row = 0
        for block in run:
            rows = slice(row, row + block.included.shape[1])
            lines.append(_Lines(block, begin, end, shape, rows))
            row = rows.stop
    return lines


def _in_order(runs: Sequence[Sequence[ColumnBlock]]) -> bool:
    """Whether lines are in order already: one normalizer, layers and positions ascending."""
    layers = [run[0].layer for run in runs]
    positions = [[position for block in run for position in block.positions] for run in runs]
    return all(a < b for numbers in (layers, *positions) for a, b in pairwise(numbers))
