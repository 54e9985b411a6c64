"""The vectors of one layer, prepared group by group for the compiled loops."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from attnscope.measure._kernels_pairs import Farthest, farthest_distances, take_in
from attnscope.measure._kernels_vectors import Group, Groups, prepare
from attnscope.measure._scratch import scratch

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from numpy.typing import NDArray
    from torch import Tensor

    from attnscope.measure._kernels_top import TopSets

_GRAM_ROWS = 256  # formed at a time


class LayerVectors:
    """The vectors of one layer, (groups, keys, dims), for all blocks of its rows; heads of a group share theirs."""

    def __init__(self, vectors: Float[Tensor, "groups keys dims"], rows_of_group: int = 0) -> None:
        """`rows_of_group`: how many rows of a group are measured in all, where they come in several blocks."""
        self.vectors, self.rows_of_group = vectors.detach(), rows_of_group
        self._pairs: dict[int, Pairs] = {}

    @cached_property
    def arrays(self) -> NDArray[np.floating]:
        """The vectors as an array; copying all in order is faster than group by group where they are strided."""
        plain = self.vectors if self.vectors.dtype in (torch.float32, torch.float64) else self.vectors.float()
        return plain.contiguous().numpy()

    @cached_property
    def finite(self) -> NDArray[np.bool_]:
        """Whether all vectors of a group are finite, (groups,)."""
        return all_finite(self.vectors).cpu().numpy()

    def pairs(self, index: int) -> Pairs:
        """What is known of all pairs of a group's keys."""
        return self._pairs.setdefault(index, Pairs(self.vectors.shape[1]))


def all_finite(values: Float[Tensor, "some ..."]) -> Bool[Tensor, " some"]:
    """Whether all values are finite, for each index of the first axis: one pass, as sums carry what is not."""
    sums = values.flatten(1).sum(-1)
    return sums.isfinite() if sums.isfinite().all() else values.flatten(1).isfinite().all(-1)


def prepare_groups(source: NDArray[np.floating]) -> tuple[Groups, NDArray[np.float32]]:
    """The vectors (groups, keys, dims) and their float32 unit vectors, in scratch memory."""
    count, keys, _ = source.shape
    norms, inverses = scratch("norms", (2, count, keys))
    sizes = np.maximum(source.max((1, 2)), -source.min((1, 2))).astype(np.float64)
    exponents = np.where((sizes > 0) & (sizes < np.inf), np.frexp(sizes)[1], 0)
    groups = Groups(scratch("vectors", source.shape), norms, inverses, np.ldexp(1.0, exponents))
    units = scratch("units", source.shape, np.float32)
    prepare(source, groups, units)
    return groups, units


def double_units(vectors: NDArray[np.float64], inverses: NDArray[np.float64]) -> NDArray[np.float64]:
    """Unit vectors in float64, in scratch memory; zero stays zero."""
    return np.multiply(vectors, inverses[:, None], out=scratch("double units", vectors.shape))


class Pairs:
    """delta and farthest partners of the first keys of a group, as far as rows have asked for them."""

    def __init__(self, keys: int) -> None:
        self._reached = self._count = 0
        self._delta2, self._farthest2 = np.full(keys, np.inf), np.full(keys, -1.0)
        self._farthest = Farthest(np.full(keys, -1), *(np.empty(0, kind) for kind in (int, int, float, int)))

    def measure(
        self,
        group: Group,
        units: NDArray[np.float32],
        rows: NDArray[np.int64],
        ends: NDArray[np.int64],
        sets: TopSets,
        d1: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """delta of some rows that see the first `ends[r]` keys, and their d1 into `d1` (all rows, sets)."""
        self._take_in(group, torch.from_numpy(units), int(ends[rows].max(initial=0)))
        farthest_distances(rows, ends, group, sets, self._farthest, d1)
        delta: NDArray[np.float64] = np.sqrt(self._delta2[ends[rows] - 1])
        return delta

    def _take_in(self, group: Group, units: Tensor, end: int) -> None:
        buffer = torch.from_numpy(scratch("gram", (_GRAM_ROWS * end,), np.float32))
        for begin in range(self._reached, end, _GRAM_ROWS):
            stop = min(end, begin + _GRAM_ROWS)
            gram = buffer[: (stop - begin) * stop].view(-1, stop)
            torch.mm(units[begin:stop], units[:stop].T, out=gram)
            self._make_room(self._count + (stop - begin) * stop)
            self._count = take_in(
                group, gram.numpy(), begin, stop, self._delta2, self._farthest2, self._farthest, self._count
            )
        self._reached = max(self._reached, end)

    def _make_room(self, records: int) -> None:
        """Space for so many records; what is not written takes no memory."""
        newest, *fields = self._farthest
        if len(fields[0]) < records:
            larger = [np.empty(2 * records, field.dtype) for field in fields]
            for field, old in zip(larger, fields, strict=True):
                field[: self._count] = old[: self._count]
            self._farthest = Farthest(newest, *larger)
