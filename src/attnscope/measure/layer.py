"""What the rows of a layer share: its vectors, their unit vectors, and the pairs of them that matter.

Built once for a layer and handed to `measure.columns` with each block of rows; every part is computed on first use.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from attnscope.measure import _kernels_pairs as kernels
from attnscope.measure._workers import product, share_out

if TYPE_CHECKING:
    from jaxtyping import Float
    from numpy.typing import NDArray
    from torch import Tensor

_BLOCK = 128
_SHORTEST_LIST = 64
_LISTED = 8192
_SAMPLE = 8192
FLOAT32 = 2.0**-24


@dataclass(frozen=True)
class FarPairs:
    """The pairs of the first `keys` vectors that are farthest apart, in descending order.

    Every pair of them with a gap of at least `complete_above` is listed.
    """

    keys: int
    low: NDArray[np.int64]
    high: NDArray[np.int64]
    gaps: NDArray[np.float64]
    complete_above: float


class Layer:
    """The vectors of one layer, one group for heads that share them, and what follows from them alone.

    | attribute | |
    |---|---|
    | `vectors`, `norms2` | x and its squared length |
    | `units` | x on the unit sphere; zero stays zero |
    | `units32`, `unit_squares32` | the same for looking at pairs, with squared lengths 1 or 0 |
    | `centred32`, `centred_squares32` | x about the mean: the same differences, fewer digits to cancel |
    """

    def __init__(self, vectors: Float[Tensor, "groups keys dims"]) -> None:
        self.vectors = vectors.detach().double().contiguous()
        self._lock = threading.RLock()
        self._prepared: tuple[Tensor, ...] | None = None
        self._far: dict[int, list[FarPairs]] = {}

    def _part(self, index: int) -> Tensor:
        with self._lock:
            if self._prepared is None:
                shape = self.vectors.shape
                double, single = torch.float64, torch.float32
                parts = (
                    torch.empty(shape, dtype=double),
                    torch.empty(shape[:2], dtype=double),
                    torch.empty(shape, dtype=single),
                    torch.empty(shape[:2], dtype=single),
                    torch.empty(shape, dtype=single),
                    torch.empty(shape[:2], dtype=single),
                )
                arrays = [part.numpy() for part in (self.vectors, *parts)]
                share_out(lambda group: kernels.prepare(*(part[group] for part in arrays)), range(shape[0]))
                self._prepared = parts
            return self._prepared[index]

    @property
    def units(self) -> Float[Tensor, "groups keys dims"]:  # noqa: D102
        return self._part(0)

    @property
    def norms2(self) -> Float[Tensor, "groups keys"]:  # noqa: D102
        return self._part(1)

    @property
    def units32(self) -> Float[Tensor, "groups keys dims"]:  # noqa: D102
        return self._part(2)

    @property
    def unit_squares32(self) -> Float[Tensor, "groups keys"]:  # noqa: D102
        return self._part(3)

    @property
    def centred32(self) -> Float[Tensor, "groups keys dims"]:  # noqa: D102
        return self._part(4)

    @property
    def centred_squares32(self) -> Float[Tensor, "groups keys"]:  # noqa: D102
        return self._part(5)

    @cached_property
    def centred_error(self) -> list[float]:
        """For each group, how far a squared gap from float32 products can be off."""
        size = self.centred32.shape[-1] + 8
        return [4 * size * FLOAT32 * float(largest) for largest in self.centred_squares32.numpy().max(-1)]

    @cached_property
    def prefix_gaps(self) -> Float[Tensor, "groups keys"]:
        """delta of the first 1, 2, ... keys: the smallest distance between two of them, infinity for one."""
        groups, keys, dims = self.units.shape
        gaps = np.empty((groups, keys))
        error = np.float32(4 * (dims + 8) * FLOAT32)
        units, units32 = self.units.numpy(), self.units32
        squares = self.unit_squares32.numpy()

        def search(piece: tuple[int, int]) -> None:
            group, first = piece
            last = min(keys, first + _BLOCK)
            products = product(units32[group, first:last], units32[group, :last])
            kernels.nearest_before(
                products.numpy(), units[group], squares[group], first, error, gaps[group, first:last]
            )

        # The long blocks first, so that the threads end together.
        share_out(search, [(g, i) for i in reversed(range(0, keys, _BLOCK)) for g in range(groups)])
        return torch.from_numpy(np.sqrt(np.minimum.accumulate(gaps, -1)))

    def gap(self, group: int, keys: NDArray[np.int64]) -> float:
        """delta of any keys."""
        units, units32 = self.units[group].numpy()[keys], self.units32[group][torch.from_numpy(keys)]
        squares = self.unit_squares32[group].numpy()[keys]
        error = np.float32(4 * (units.shape[-1] + 8) * FLOAT32)
        gaps = np.empty(len(keys))
        for first in range(0, len(keys), _BLOCK):
            last = min(len(keys), first + _BLOCK)
            products = units32[first:last] @ units32[:last].mT
            kernels.nearest_before(products.numpy(), units, squares, first, error, gaps[first:last])
        return float(np.sqrt(gaps.min(initial=np.inf)))

    def far_pairs(self, group: int, keys: int) -> FarPairs:
        """The list of the shortest prefix that holds the first `keys` keys."""
        with self._lock:
            if group not in self._far:
                self._far[group] = self._list_far(group)
            return next(pairs for pairs in self._far[group] if pairs.keys >= keys)

    def _list_far(self, group: int) -> list[FarPairs]:
        """Lists for prefixes that double in length, from one pass over all pairs."""
        vectors, squares = self.vectors[group].numpy(), self.centred_squares32[group].numpy()
        keys = len(vectors)
        prefixes = [keys]
        while prefixes[-1] > _SHORTEST_LIST:
            prefixes.append(-(-prefixes[-1] // 2))
        prefixes.reverse()
        cuts = np.full(keys, -np.inf, dtype=np.float32)
        cut_of = {}
        before = 0
        for prefix in prefixes:
            pairs = prefix * (prefix - 1) // 2
            if pairs > 2 * _LISTED:
                sample = np.empty(_SAMPLE)
                kernels.sample_gaps(vectors, prefix, sample)
                cut_of[prefix] = float(np.quantile(sample, 1 - _LISTED / pairs))
                cuts[before:prefix] = cut_of[prefix]
            before = prefix
        # A pair of a short prefix is wanted by the longer ones too, whose cut may be lower.
        cuts = np.minimum.accumulate(cuts[::-1])[::-1].copy()
        found = [self._collect(group, first, squares, cuts) for first in range(0, keys, _BLOCK)]
        low, high, values = (np.concatenate(parts) for parts in zip(*found, strict=True))
        lists = []
        for prefix in prefixes:
            cut = cut_of.get(prefix, -np.inf)
            chosen = (high < prefix) & (values > cut)
            a, b = low[chosen], high[chosen]
            gaps = np.empty(len(a))
            kernels.pair_gaps(vectors, a, b, gaps)
            order = np.argsort(-gaps, kind="stable")
            complete_above = float(np.sqrt(max(cut, 0.0) + self.centred_error[group])) if cut > -np.inf else 0.0
            lists.append(FarPairs(prefix, a[order], b[order], gaps[order], complete_above))
        return lists

    def _collect(
        self, group: int, first: int, squares: NDArray[np.float32], cuts: NDArray[np.float32]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
        block = self.centred32[group, first : first + _BLOCK]
        products = (block @ self.centred32[group, : first + len(block)].mT).numpy()
        limit = _LISTED
        while True:
            low, high = np.empty(limit, np.int64), np.empty(limit, np.int64)
            values = np.empty(limit, np.float32)
            count = kernels.collect_far(products, squares, first, cuts, low, high, values, limit)
            if count <= limit:
                return low[:count], high[:count], values[:count]
            limit = count
