"""What the rows of a layer share: its vectors, their unit vectors, and the pairs of them that matter.

A `LayerVectors` is built once for a layer and handed to `measure.columns` with each block of rows. What takes memory, a
group's vectors in the forms that the loops want, stays with the thread that works on the group; what takes time, the
pairs, is found once for each group and kept with the layer.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from attnscope._kernels_tiles import PANEL
from attnscope.measure import _kernels_pairs as kernels
from attnscope.measure._kernels_panels import distance_words, panels_shape, words
from attnscope.measure._kernels_products import AT_ONCE
from attnscope.measure._memory import held, scratch

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from numpy.typing import NDArray
    from torch import Tensor

_SHORTEST_LIST = 64
_LISTING = 2  # what a pair costs in listing, when one in products is 1
_LISTED = 2048
_SAMPLE = 4096
FLOAT32 = 2.0**-24
_PLAIN = (torch.float32, torch.float64)  # what the loops read


class Group(NamedTuple):
    """The vectors of one group, brought near size 1 by a power of two; one group for heads that share them."""

    scale: float  # what lengths have to be multiplied by in the end
    unit_error: np.float32  # how far a squared gap of unit vectors from float32 products can be off
    centred_error: np.float32  # the same for the centred vectors
    spread: float  # the largest of their squares
    vectors: NDArray[np.float64]
    mean: NDArray[np.float64]
    norms2: NDArray[np.float64]
    norms32: NDArray[np.float32]  # the same
    inverses: NDArray[np.float64]  # of the norms, for unit vectors; zero stays zero
    unit_squares: NDArray[np.float32]  # 1, or 0 for zero
    unit_panels: NDArray[np.float32]  # for products, see `_kernels_products`
    centred_squares: NDArray[np.float32]
    centred_panels: NDArray[np.float32]  # about the mean: the same differences, fewer digits to cancel
    distance_panels: NDArray[np.int32]  # the same in integers that tell distances, see `_kernels_panels`


@dataclass(frozen=True)
class FarPairs:
    """The pairs of vectors that are farthest apart, none left out, for prefixes of the keys.

    In the list of a prefix each key has the partners it forms such pairs with, in descending order of their distance.
    """

    prefixes: NDArray[np.int64]  # (lists,) the number of keys
    starts: NDArray[np.int64]  # (lists, keys + 1) where the partners of a key begin
    longest: NDArray[np.float64]  # (lists, keys) the distance to the first of them, -1 for none
    partners: NDArray[np.int32]
    gaps: NDArray[np.float64]


NO_PAIRS = FarPairs(
    np.empty(0, np.int64), np.empty((0, 1), np.int64), np.empty((0, 0)), np.empty(0, np.int32), np.empty(0)
)


class LayerVectors:
    """The vectors of one layer, and what follows from them alone."""

    def __init__(self, vectors: Float[Tensor, "groups keys dims"], rows: int = 0) -> None:
        """`rows`: how many rows of a group will be measured in all, if more than come at once."""
        self.vectors = vectors.detach()
        self.rows = rows
        self._token = object()
        self._error = np.float32(4 * (vectors.shape[-1] + 8) * FLOAT32)
        self._locks = [threading.Lock() for _ in range(len(vectors))]
        self._finite: dict[int, bool] = {}
        self._gaps: dict[int, NDArray[np.float64]] = {}
        self._far: dict[int, FarPairs] = {}

    def group(self, index: int) -> Group:
        """One group, in the memory of this thread until it asks for another."""
        return held("group", (self._token, index), lambda: self._prepared(index))

    @cached_property
    def numbers(self) -> NDArray[np.floating]:
        """The vectors as the loops read them.

        A group's vectors lie far apart in a model's state: reading them in order once is faster than group by group.
        """
        plain = self.vectors if self.vectors.dtype in _PLAIN else self.vectors.float()
        return plain.contiguous().numpy()

    def _prepared(self, index: int) -> Group:
        source = self.numbers[index]
        parts = held("parts", source.shape, lambda: _parts(*source.shape))
        scale, spread, sound = kernels.prepare(source, *parts)
        self._finite[index] = sound or bool(np.isfinite(source).all())
        return Group(scale, self._error, np.float32(self._error * spread), spread, *parts)

    def finite(self) -> NDArray[np.bool_]:
        """Whether all vectors of a group are finite; known already where they have been measured on the CPU."""
        if len(self._finite) < len(self.vectors):
            return np.array(all_finite(self.vectors).tolist())
        return np.array([self._finite[index] for index in range(len(self.vectors))])

    def prefix_gaps(self, index: int, most: int) -> NDArray[np.float64]:
        """delta of the first 1, 2, ... and at most `most` keys of a group: the smallest distance between two of them.

        It is infinity for one key. The time grows with the square of `most`.
        """
        with self._locks[index]:
            if index not in self._gaps or len(self._gaps[index]) < min(most, self.vectors.shape[1]):
                group = self.group(index)
                panels = group.unit_panels[: -(-most // PANEL)]
                self._gaps[index] = _gaps(
                    group, group.vectors[:most], group.inverses[:most], group.unit_squares[:most], panels
                )
            return self._gaps[index]

    def listing_pays(self, rows: int, largest: int) -> bool:
        """Whether d1 of so many rows of a group is found faster by a list of far pairs than by products with members.

        A list looks at half of all pairs once, products at `largest` members and half of all keys for each row.
        """
        return max(rows, self.rows) * largest > _LISTING * self.vectors.shape[1]

    def gap(self, index: int, keys: NDArray[np.int64]) -> float:
        """delta of any keys of a group."""
        group = self.group(index)
        vectors, inverses = group.vectors[keys], group.inverses[keys]
        panels = scratch("chosen panels", panels_shape(*vectors.shape), np.float32)
        kernels.pack_units(vectors, inverses, panels)
        return float(_gaps(group, vectors, inverses, group.unit_squares[keys], panels).min(initial=np.inf))

    def far_pairs(self, index: int) -> FarPairs:
        """The lists for prefixes that double in length."""
        with self._locks[index]:
            if index not in self._far:
                self._far[index] = _list_far(self.group(index))
            return self._far[index]


def all_finite(values: Float[Tensor, "some ..."]) -> Bool[Tensor, " some"]:
    """For each of the first axis, whether all values are finite: one pass, as a sum keeps what is not."""
    sums = values.flatten(1).sum(-1)
    return sums.isfinite() if sums.isfinite().all() else values.flatten(1).isfinite().all(-1)


def _parts(keys: int, dims: int) -> tuple[NDArray[Any], ...]:
    """Memory for a group's vectors in all forms."""
    single, panels = np.float32, panels_shape(keys, dims)
    return (
        scratch("vectors", (keys, dims)),
        scratch("mean", (dims,)),
        scratch("norms2", (keys,)),
        scratch("norms32", (keys,), single),
        scratch("inverses", (keys,)),
        scratch("unit squares", (keys,), single),
        scratch("unit panels", panels, single),
        scratch("centred squares", (keys,), single),
        scratch("centred panels", panels, single),
        scratch("distance panels", panels_shape(keys, distance_words(dims)), np.int32),
    )


def _gaps(
    group: Group,
    vectors: NDArray[np.float64],
    inverses: NDArray[np.float64],
    squares: NDArray[np.float32],
    panels: NDArray[np.float32],
) -> NDArray[np.float64]:
    gaps = np.empty(len(vectors))
    keys, dims = vectors.shape
    integer_panels = scratch("integer panels", panels_shape(keys, words(dims)), np.int32)
    kernels.nearest_before(
        vectors, inverses, squares, panels, group.unit_error, *_six(dims, words(dims)), integer_panels, gaps
    )
    return gaps


def _six(dims: int, size: int) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int32]]:
    """Scratch for six vectors, for their products with a panel, and for the six in integers of so many words."""
    return (
        scratch("six", (AT_ONCE, dims), np.float32),
        scratch("six products", (AT_ONCE, PANEL), np.float32),
        scratch("integers", (AT_ONCE, size), np.int32),
    )


def _list_far(group: Group) -> FarPairs:
    keys = len(group.vectors)
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
            kernels.sample_gaps(group.vectors, prefix, sample)
            place = max(0, _SAMPLE - 1 - _SAMPLE * _LISTED // pairs)
            cut_of[prefix] = float(np.partition(sample, place)[place])
            cuts[before:prefix] = cut_of[prefix]
        before = prefix
    # A pair of a short prefix is wanted by the longer ones too, whose cut may be lower.
    cuts = np.minimum.accumulate(cuts[::-1])[::-1].copy()
    low, high, values = _collect(group, cuts)
    lists = []
    for prefix in prefixes:
        cut = cut_of.get(prefix, -np.inf)
        chosen = (high < prefix) & (values > cut)
        a, b = low[chosen], high[chosen]
        gaps = np.empty(len(a))
        kernels.pair_gaps(group.vectors, a, b, gaps)
        order = np.argsort(-gaps)
        if cut > -np.inf:  # from here on a pair may be missing
            complete = np.sqrt(max(cut, 0.0) + group.centred_error)
            order = order[: np.count_nonzero(gaps >= complete)]
        lists.append((a[order], b[order], gaps[order]))
    size = 2 * sum(len(gaps) for *_, gaps in lists)
    found = FarPairs(
        np.array(prefixes),
        np.empty((len(lists), keys + 1), np.int64),
        np.empty((len(lists), keys)),
        np.empty(size, np.int32),
        np.empty(size),
    )
    offset = 0
    for (a, b, gaps), starts, longest in zip(lists, found.starts, found.longest, strict=True):
        kernels.by_key(a, b, gaps, starts, longest, found.partners, found.gaps, offset)
        offset += 2 * len(gaps)
    return found


def _collect(
    group: Group, cuts: NDArray[np.float32]
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]:
    room = 8 * _LISTED
    dims = group.vectors.shape[1]
    while True:
        low, high = scratch("low", (room,), np.int32), scratch("high", (room,), np.int32)
        values = scratch("far values", (room,), np.float32)
        count = kernels.collect_far(
            group.vectors, group.mean, group.centred_squares, group.centred_panels, group.spread,
            group.distance_panels, cuts, *_six(dims, distance_words(dims)), low, high, values,
        )  # fmt: skip
        if count <= room:
            return low[:count], high[:count], values[:count]
        room = count
