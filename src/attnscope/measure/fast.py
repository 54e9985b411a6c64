"""The columns of a block of rows on the CPU: matrix products by torch, compiled loops for the rest.

A task is the rows of some groups. It chooses their top sets, multiplies their contexts with all unit vectors, many rows
in one matrix product, and sums over keys. Tasks only share what they read, and run on threads.

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
from attnscope.measure._kernels_vectors import Group, Groups
from attnscope.measure._scratch import scratch
from attnscope.measure.layer import LayerVectors, double_units, prepare_groups
from attnscope.measure.pairs import pair_distances
from attnscope.measure.visibility import Visibility

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from attnscope.measure.rows import Rows

_ROWS, _PRODUCTS = 32, 1 << 19  # that products are formed of at a time: what a core's own cache holds
_PREPARED = 1 << 21  # numbers of vectors that a task holds in its own form, unless a single group has more
# Terms are float32 in many long rows, else float64: errors of few terms do not cancel out, and few rows take no time.
_SHORT, _FEW = 128, 16


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
    first: int  # of the groups
    last: int  # the end of them
    rows: NDArray[np.int64]  # of these groups, ascending
    keys: NDArray[np.int64] | None = None  # the keys that all of the rows see, where those are not a run


class _Prepared(NamedTuple):
    """What the rows of a task are measured with."""

    task: _Task
    groups: Groups
    units: NDArray[np.float32]
    delta: NDArray[np.float64]
    d1: NDArray[np.float64]


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
        self.rows_of_group = count // len(self.vectors)
        self.row_arrays = RowArrays(*np.full((len(ROW_NAMES), count), np.nan))
        self.set_arrays = SetArrays(*np.full((len(SET_NAMES), count, sets), np.nan))
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
        """All rows: those of a few groups at a time, or parts of one group if there are few groups."""
        first, end, length = self.visibility.spans[self.visibility.mask_of].T
        together = (end - first == length) & ((first == 0) | (not self.paper_bounds))
        count, keys, dims = self.vectors.shape
        wanted = 2 * torch.get_num_threads()
        step = max(1, min(count // wanted, _PREPARED // (keys * dims)))
        # The pairs of a group's keys are looked through once, by one task.
        parts = 1 if self.paper_bounds or count >= wanted else wanted
        tasks = []
        for group in range(0, count, step):
            last = min(count, group + step)
            rows = np.arange(group * self.rows_of_group, last * self.rows_of_group)
            runs = rows[together[rows]]
            tasks += [_Task(group, last, part) for part in np.array_split(runs, parts) if len(part)]
            scattered = rows[~together[rows]]
            for one in np.unique(scattered // self.rows_of_group):
                tasks += self._scattered(int(one), scattered[scattered // self.rows_of_group == one])
        return tasks

    def _scattered(self, group: int, rows: NDArray[np.int64]) -> list[_Task]:
        """A task for each set of visible keys."""
        masks, which = np.unique(self.visibility.masks[self.visibility.mask_of[rows]], axis=0, return_inverse=True)
        return [
            _Task(group, group + 1, rows[which.reshape(-1) == i], mask.nonzero()[0]) for i, mask in enumerate(masks)
        ]

    def measure(self, task: _Task) -> None:
        """Fill the columns of some rows of some groups."""
        if task.keys is not None:
            self._measure_on(task)
            return
        rows = task.rows
        _kernels_rows.row_columns(rows, self.weights, self.logits, self.spans, self.row_arrays)
        choose_top_sets(rows, self.weights, self.spans, self.top_n, self.sets)
        groups, units = prepare_groups(self.vectors[task.first : task.last])
        ends, lengths = self.spans[:, 1], self.spans[rows, 1] - self.spans[rows, 0]
        delta, d1 = np.full(len(ends), np.nan), np.full((len(ends) * self.paper_bounds, len(self.top_n)), np.nan)
        if self.paper_bounds:
            near = rows[ends[rows] <= self.delta_max_length]
            for g in range(task.first, task.last):
                of_group = near[near // self.rows_of_group == g]
                group = Group(*(field[g - task.first] for field in groups))
                pair_distances(group, units[g - task.first], of_group, ends, self.sets, delta, d1)
        doubles = (lengths <= _SHORT) | (max(self.rows_of_group, self.layer.rows_of_group) <= _FEW)
        for double in (True, False):
            part = rows[doubles == double]
            if len(part):
                self._measure_sets(_Prepared(task, groups, units, delta, d1), part, double)

    def _measure_on(self, task: _Task) -> None:
        """Fill the columns of rows that see these keys, as rows that see all keys of a block of their own."""
        rows, keys = task.rows, task.keys
        assert keys is not None
        visible = torch.ones(1, 1, len(keys), dtype=torch.bool).expand(len(rows), 1, -1)
        layer = LayerVectors(torch.from_numpy(self.vectors[task.first][keys][None]))
        block = _Block(
            self.weights[np.ix_(rows, keys)], self.logits[np.ix_(rows, keys)], Visibility(visible), self.top_n, layer,
            self.delta_max_length,
        )  # fmt: skip
        block.measure(_Task(0, 1, np.arange(len(rows))))
        for arrays, results in ((self.row_arrays, block.row_arrays), (self.set_arrays, block.set_arrays)):
            for name, values in results._asdict().items():
                getattr(arrays, name)[rows] = values

    def _measure_sets(self, prepared: _Prepared, rows: NDArray[np.int64], double: bool) -> None:
        """Fill the columns of `topn.parquet`, with products in float64 or float32."""
        task, groups, units, delta, d1 = prepared
        begin, end = int(self.spans[rows, 0].min()), int(self.spans[rows, 1].max())
        sets, dims = len(self.top_n), groups.vectors.shape[2]
        per_row, kind = 2 * sets + 1, np.float64 if double else np.float32
        step = max(1, min(len(rows), _ROWS, _PRODUCTS // (per_row * max(1, end - begin))))
        stacked = scratch("stacked contexts", (step, per_row, dims), kind)
        products = scratch("products", (step, per_row, end - begin), kind)
        plain, unit = scratch("contexts", (2, step, sets, dims))
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            group_of = part // self.rows_of_group - task.first
            contexts = Contexts(plain, unit, scratch("means", (step, dims)))
            runs = [(g, *np.searchsorted(group_of, (g, g + 1))) for g in np.unique(group_of)]
            for g, a, b in runs:
                vectors = torch.from_numpy(groups.vectors[g, begin:end])
                weights = torch.from_numpy(self.weights[part[a:b], begin:end])
                torch.mm(weights, vectors, out=torch.from_numpy(contexts.mean[a:b]))
            sum_contexts(part, group_of, self.weights, self.sets, groups, contexts, stacked)
            for g, a, b in runs:
                keys = (g, slice(begin, end))
                of_keys = double_units(groups.vectors[keys], groups.inverses[keys]) if double else units[keys]
                left, result = (torch.from_numpy(array[a:b]).flatten(0, 1) for array in (stacked, products))
                torch.mm(left, torch.from_numpy(of_keys).T, out=result)
            set_columns(
                part, group_of, self.weights, self.spans, groups, self.sets, contexts, products, begin, delta, d1,
                self.paper_bounds, self.set_arrays,
            )  # fmt: skip
