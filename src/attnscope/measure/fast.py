"""The columns of a block of rows on the CPU: matrix products by torch, compiled loops for the rest.

A task is some rows of one group. It chooses their top sets, multiplies their contexts with all unit vectors in one
matrix product for `_ROWS` rows, and sums over keys. Tasks only share what they read, and run on threads.

The loops take rows whose visible keys are a run. Other rows are measured on the vectors that they see alone, as are
rows that do not begin with the first key if the paper's bounds are asked for, which need the pairs of those keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from attnscope._threads import share_out
from attnscope.columns import ROW_NAMES, SET_NAMES, RowArrays, SetArrays
from attnscope.measure import _kernels_rows
from attnscope.measure._kernels_sets import set_columns
from attnscope.measure._kernels_top import Contexts, TopSets, choose_top_sets, sum_contexts
from attnscope.measure._scratch import scratch
from attnscope.measure.layer import LayerVectors, double_units, prepare_group
from attnscope.measure.visibility import Visibility

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from attnscope.measure._kernels_vectors import Group
    from attnscope.measure.rows import Rows

_ROWS = 32  # whose contexts are multiplied together, at most
_PRODUCTS = 1 << 19  # formed at a time: what a core's own cache holds
_SHORT = 128  # rows up to this length have terms in float64: errors of few terms would not cancel out


def columns(
    rows: Rows, weights: Tensor, top_n: Sequence[int], delta_max_length: int
) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """The same columns as `measure.rows.row_columns` and `measure.topn.topn_columns`.

    delta_max_length: the longest rows with the paper's bounds; 0 for no such bounds at all.
    """
    visibility = rows.visibility or Visibility(rows.visible)
    layer = rows.layer_vectors or LayerVectors(rows.vectors)
    block = _Block(_flat(weights), _flat(rows.logits), visibility, np.array(top_n), layer, delta_max_length)
    share_out(block.measure, block.tasks())
    shape = weights.shape[:2]
    per_row = {name: values.reshape(shape) for name, values in block.row_arrays._asdict().items()}
    per_row["length"] = visibility.length.copy()
    per_set = {name: values.reshape(*shape, -1) for name, values in block.set_arrays._asdict().items()}
    with np.errstate(invalid="ignore"):  # a row with NaN has no support
        return per_row | {"support": per_row["support"].astype(np.int64)}, per_set


def _flat(values: Tensor) -> NDArray[np.float64]:
    """(heads, rows, keys) -> (heads * rows, keys)."""
    return values.detach().contiguous().view(-1, values.shape[-1]).numpy()


class _Task(NamedTuple):
    group: int
    rows: NDArray[np.int64]
    keys: NDArray[np.int64] | None = None  # the keys that all of the rows see, where those are not a run


class _Block:
    """The rows of all groups, and the arrays that their columns go to."""

    def __init__(
        self,
        weights: NDArray[np.float64],
        logits: NDArray[np.float64],
        visibility: Visibility,
        top_n: NDArray[np.int64],
        layer: LayerVectors,
        delta_max_length: int,
    ) -> None:
        self.weights, self.logits, self.top_n, self.layer = weights, logits, top_n, layer
        self.visibility, self.delta_max_length = visibility, delta_max_length
        self.spans = np.ascontiguousarray(visibility.spans[visibility.mask_of, :2])
        self.vectors = layer.arrays  # made here, before threads ask for it
        count, sets = len(weights), len(top_n)
        self.row_arrays = RowArrays(*(np.empty(count) for _ in ROW_NAMES))
        self.set_arrays = SetArrays(*(np.empty((count, sets)) for _ in SET_NAMES))
        # As many sets as the longest row has room for: a set of all keys has no line in the table.
        self.sets = TopSets(
            np.zeros((count, min(int(top_n[-1]), weights.shape[1])), np.int64),
            np.zeros((count, sets), np.int64),
            np.ones(count),
        )

    @property
    def paper_bounds(self) -> bool:
        return self.delta_max_length > 0

    def tasks(self) -> list[_Task]:
        """All rows, by group; several tasks per group where there are fewer groups than threads could use."""
        first, end, length = self.visibility.spans[self.visibility.mask_of].T
        together = (end - first == length) & ((first == 0) | (not self.paper_bounds))
        rows_of_groups = np.arange(len(self.weights)).reshape(len(self.vectors), -1)
        # The pairs of a group's keys are looked through once, by one task.
        pieces = 1 if self.paper_bounds else max(1, -(-4 * torch.get_num_threads() // len(self.vectors)))
        found = []
        for group, rows in enumerate(rows_of_groups):
            runs = rows[together[rows]]
            found += [_Task(group, part) for part in np.array_split(runs, pieces) if len(part)]
            found += self._scattered(group, rows[~together[rows]])
        return found

    def _scattered(self, group: int, rows: NDArray[np.int64]) -> list[_Task]:
        """A task for each set of visible keys."""
        if not len(rows):
            return []
        masks, which = np.unique(self.visibility.masks[self.visibility.mask_of[rows]], axis=0, return_inverse=True)
        return [_Task(group, rows[which.reshape(-1) == i], mask.nonzero()[0]) for i, mask in enumerate(masks)]

    def measure(self, task: _Task) -> None:
        """Fill the columns of some rows of a group."""
        if task.keys is not None:
            self._measure_on(task)
            return
        rows = task.rows
        _kernels_rows.row_columns(rows, self.weights, self.logits, self.spans, self.row_arrays)
        choose_top_sets(rows, self.weights, self.spans, self.top_n, self.sets)
        group, units = prepare_group(self.vectors[task.group])
        ends, lengths = self.spans[:, 1], self.spans[rows, 1] - self.spans[rows, 0]
        delta, d1 = np.full(len(ends), np.nan), np.full((len(ends) * self.paper_bounds, len(self.top_n)), np.nan)
        if self.paper_bounds:
            near = rows[ends[rows] <= self.delta_max_length]
            delta[near] = self.layer.pairs(task.group).measure(group, near, ends, self.sets, d1)
        for part, double in ((rows[lengths <= _SHORT], True), (rows[lengths > _SHORT], False)):
            self._measure_sets(part, group, double, units, delta, d1)

    def _measure_on(self, task: _Task) -> None:
        """Fill the columns of rows that see these keys, as rows that see all keys of a block of their own."""
        rows, keys = task.rows, task.keys
        assert keys is not None
        visible = torch.ones(1, 1, len(keys), dtype=torch.bool).expand(len(rows), 1, -1)
        layer = LayerVectors(torch.from_numpy(self.vectors[task.group][keys][None]))
        block = _Block(
            self.weights[np.ix_(rows, keys)], self.logits[np.ix_(rows, keys)], Visibility(visible), self.top_n, layer,
            self.delta_max_length,
        )  # fmt: skip
        block.measure(_Task(0, np.arange(len(rows))))
        for arrays, results in ((self.row_arrays, block.row_arrays), (self.set_arrays, block.set_arrays)):
            for name, values in results._asdict().items():
                getattr(arrays, name)[rows] = values

    def _measure_sets(
        self,
        rows: NDArray[np.int64],
        group: Group,
        double: bool,
        units32: NDArray[np.float32],
        delta: NDArray[np.float64],
        d1: NDArray[np.float64],
    ) -> None:
        """Fill the columns of `topn.parquet`, with products in float64 or float32."""
        if not len(rows):
            return
        begin, end = int(self.spans[rows, 0].min()), max(1, int(self.spans[rows, 1].max()))
        units = torch.from_numpy(double_units(group, slice(begin, end)) if double else units32[begin:end])
        weights, vectors = torch.from_numpy(self.weights), torch.from_numpy(group.vectors[begin:end])
        sets, dims = len(self.top_n), group.vectors.shape[1]
        products_of_row = 2 * sets + 1
        step = max(1, min(_ROWS, len(rows), _PRODUCTS // (products_of_row * (end - begin))))
        kind = np.float64 if double else np.float32
        stacked = scratch("stacked contexts", (step, products_of_row, dims), kind)
        products = scratch("products", (step, products_of_row, end - begin), kind)
        plain, unit = scratch("contexts", (2, step, sets, dims))
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            mean = weights[part, begin:end] @ vectors
            contexts = Contexts(plain, unit, mean.numpy())
            sum_contexts(part, self.weights, self.sets, group, contexts, stacked)
            flat = (torch.from_numpy(array[: len(part)]).flatten(0, 1) for array in (stacked, products))
            torch.mm(next(flat), units.T, out=next(flat))
            set_columns(
                part, self.weights, self.spans, group, self.sets, contexts, products, begin, delta, d1,
                self.paper_bounds, self.set_arrays,
            )  # fmt: skip
