"""All columns of a block of rows: with torch on any device, with matrix products and compiled loops on the CPU.

On the CPU, a task consists of the rows of some groups. It chooses their top sets, multiplies their contexts with all
unit vectors (many rows in one matrix product), and sums over keys. Tasks run on threads and share only what they read.

The loops handle rows whose visible keys are contiguous. Other rows are measured on a copy of the vectors they see; so
are rows that do not start at the first key if the paper's bounds, which need all pairs of those keys, are requested.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from attnscope._process import parallel_for
from attnscope.columns import ROW_NAMES, SET_NAMES, RowArrays, SetArrays
from attnscope.measure import _kernels as _kernels_rows
from attnscope.measure._kernels import (
    Contexts,
    Groups,
    TopSets,
    choose_top_sets,
    group_at,
    prepare_groups,
    sum_contexts,
)
from attnscope.measure._kernels_sets import set_columns
from attnscope.measure.pairs import pair_distances
from attnscope.measure.specification import Visibility, row_columns, topn_columns
from attnscope.normalizers._arguments import usable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float
    from numpy.typing import NDArray
    from torch import Tensor

    from attnscope.measure.specification import Rows

ALL_ROWS = sys.maxsize
_ROWS, _PRODUCTS = 32, 1 << 19  # of a matrix product at a time: what fits into a core's own cache
_PREPARED = 1 << 21  # numbers in the vectors that a task prepares, unless a single group has more


def columns(
    rows: Rows,
    weights: Float[Tensor, "heads rows keys"],
    top_n: Sequence[int],
    delta_max_length: int = ALL_ROWS,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The columns of `rows.parquet`, (heads, rows), and of `topn.parquet` for ascending N, (heads, rows, sets).

    The paper's bounds (`attnscope.columns.PAPER_BOUNDS`) need all pairs of keys: they are computed for rows of at most
    `delta_max_length` keys and NaN elsewhere. Entries where N is not below the row's length are meaningless; the caller
    must drop them.
    """
    if not (usable(weights, rows.logits, rows.vectors) and weights.dtype == torch.float64):
        return row_columns(rows, weights), topn_columns(rows, weights, top_n, delta_max_length)
    visibility = rows.visibility or Visibility(rows.visible)
    single = rows.vectors if rows.vectors.dtype == torch.float64 else rows.vectors.float()
    vectors = single.detach().contiguous().numpy()
    block = _Block(_flat(weights), _flat(rows.logits), vectors, visibility, np.array(top_n), delta_max_length)
    parallel_for(block.measure, block.tasks())
    shape = weights.shape[:2]
    arrays = block.row_arrays._asdict() | {"length": visibility.length.copy()}
    per_row = {name: torch.from_numpy(values.reshape(shape)) for name, values in arrays.items()}
    per_row["support"] = per_row["support"].long()
    sets = block.set_arrays._asdict()
    return per_row, {name: torch.from_numpy(values.reshape(*shape, -1)) for name, values in sets.items()}


def _flat(values: Tensor) -> NDArray[np.float64]:
    """(heads, rows, keys) -> (heads * rows, keys)."""
    return values.detach().contiguous().view(-1, values.shape[-1]).numpy()


class _Task(NamedTuple):
    first: int  # of the groups
    last: int  # the end of them
    rows: NDArray[np.int64]  # of these groups, ascending
    keys: NDArray[np.int64] | None = None  # the keys that all of the rows see, if they are not contiguous


class _Block:
    """The rows of all groups, and the arrays for their columns."""

    def __init__(
        self,
        weights: NDArray[np.float64],
        logits: NDArray[np.float64],
        vectors: NDArray[np.floating],
        visibility: Visibility,
        top_n: NDArray[np.int64],
        delta_max_length: int,
    ) -> None:
        self.weights, self.logits, self.vectors = weights, logits, vectors
        self.visibility, self.top_n, self.delta_max_length = visibility, top_n, delta_max_length
        self.spans = np.ascontiguousarray(visibility.spans[visibility.mask_of, :2])
        count, sets = len(weights), len(top_n)
        self.rows_of_group = count // len(self.vectors)
        self.row_arrays = RowArrays(*np.full((len(ROW_NAMES), count), np.nan))
        self.set_arrays = SetArrays(*np.full((len(SET_NAMES), count, sets), np.nan))
        # As many sets as fit into the longest row: a set of all keys has no line in the table.
        self.sets = TopSets(
            np.zeros((count, min(int(top_n[-1]), weights.shape[1])), np.int64),
            np.zeros((count, sets), np.int64),
            np.ones(count),
        )

    @property
    def paper_bounds(self) -> bool:
        return self.delta_max_length > 0

    def tasks(self) -> list[_Task]:
        """Split all rows into tasks: a few groups each, or parts of one group if there are few groups."""
        first, end, length = self.visibility.spans[self.visibility.mask_of].T
        together = (end - first == length) & ((first == 0) | (not self.paper_bounds))
        count, keys, dims = self.vectors.shape
        wanted = 2 * torch.get_num_threads()
        step = max(1, min(count // wanted, _PREPARED // (keys * dims)))
        # All pairs of a group's keys are visited once, by one task.
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
        """One task for each distinct set of visible keys."""
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
        groups = prepare_groups(self.vectors[task.first : task.last])
        ends = self.spans[:, 1]
        delta, d1 = np.full(len(ends), np.nan), np.full((len(ends) * self.paper_bounds, len(self.top_n)), np.nan)
        if self.paper_bounds:
            near = rows[ends[rows] <= self.delta_max_length]
            for g in range(task.first, task.last):
                of_group = near[near // self.rows_of_group == g]
                pair_distances(group_at(groups, g - task.first), of_group, ends, self.sets, delta, d1)
        self._measure_sets(task, groups, delta, d1)

    def _measure_on(self, task: _Task) -> None:
        """Fill the columns of rows that see these keys, by measuring them as full rows of a smaller block."""
        rows, keys = task.rows, task.keys
        assert keys is not None
        visible = torch.ones(1, 1, len(keys), dtype=torch.bool).expand(len(rows), 1, -1)
        weights, logits = self.weights[np.ix_(rows, keys)], self.logits[np.ix_(rows, keys)]
        vectors = self.vectors[task.first][None, keys]
        block = _Block(weights, logits, vectors, Visibility(visible), self.top_n, self.delta_max_length)
        block.measure(_Task(0, 1, np.arange(len(rows))))
        for arrays, results in ((self.row_arrays, block.row_arrays), (self.set_arrays, block.set_arrays)):
            for name, values in results._asdict().items():
                getattr(arrays, name)[rows] = values

    def _measure_sets(self, task: _Task, groups: Groups, delta: NDArray[np.float64], d1: NDArray[np.float64]) -> None:
        """Fill the columns of `topn.parquet`, some rows at a time."""
        begin, end = int(self.spans[task.rows, 0].min()), int(self.spans[task.rows, 1].max())
        sets, dims = len(self.top_n), groups.vectors.shape[2]
        per_row = 2 * sets + 1
        step = max(1, min(len(task.rows), _ROWS, _PRODUCTS // (per_row * max(1, end - begin))))
        plain, unit = np.empty((2, step, sets, dims))
        contexts = Contexts(plain, unit, np.empty((step, dims)))
        stacked, products = np.empty((step, per_row, dims)), np.empty((step, per_row, end - begin))
        for start in range(0, len(task.rows), step):
            rows = task.rows[start : start + step]
            group_of = rows // self.rows_of_group - task.first
            runs = [(g, *np.searchsorted(group_of, (g, g + 1))) for g in np.unique(group_of)]
            for g, a, b in runs:
                weights, vectors = self.weights[rows[a:b], begin:end], groups.vectors[g, begin:end]
                torch.mm(torch.from_numpy(weights), torch.from_numpy(vectors), out=torch.from_numpy(contexts.mean[a:b]))
            sum_contexts(rows, group_of, self.weights, self.sets, groups, contexts, stacked)
            for g, a, b in runs:
                left, result = (torch.from_numpy(array[a:b]).flatten(0, 1) for array in (stacked, products))
                torch.mm(left, torch.from_numpy(groups.units[g, begin:end]).T, out=result)
            set_columns(
                rows, group_of, self.weights, self.spans, groups, self.sets, contexts, products, begin, delta, d1,
                self.paper_bounds, self.set_arrays,
            )  # fmt: skip
