"""Quantities that need all pairs of keys, for the paper's printed bounds.

delta is the smallest distance between two unit vectors of a row; d1 of a top set is the largest distance between a
member and a key outside it. Keys are added one at a time, along the rows of their Gram matrix, keeping track of the
smallest distance so far and of every key's farthest partner so far. A row is measured once its last key was added.

Products in float32 only find candidates: every pair that may be the nearest or the farthest is measured in float64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attnscope._numerics import helper, largest, loop
from attnscope.measure._kernels import Group, TopSets, squared_distance, squared_distance_of_units

if TYPE_CHECKING:
    from numpy.typing import NDArray

_EPSILON = 2.0**-24
_UNDERFLOW = 1e-37  # more than float32 squares lose near the smallest numbers
_CHECKED_TOGETHER = 64
_GRAM_ROWS = 256  # computed at a time


def pair_distances(
    group: Group,
    rows: NDArray[np.int64],
    ends: NDArray[np.int64],  # (all rows,)
    sets: TopSets,
    delta: NDArray[np.float64],  # (all rows,)
    d1: NDArray[np.float64],  # (all rows, sets)
) -> None:
    """Fill delta and d1 for rows that see the first `ends[r]` keys; d1 is NaN if there is no key outside the set."""
    rows = rows[np.argsort(ends[rows], kind="stable")]
    keys = int(ends[rows].max(initial=0))
    units = torch.from_numpy(group.units[:keys]).float()
    nearest2, farthest2, partners = np.full(1, np.inf), np.full(keys, -1.0), np.zeros(keys, np.int64)
    for begin in range(0, keys, _GRAM_ROWS):
        end = min(keys, begin + _GRAM_ROWS)
        gram = units[begin:end] @ units[:end].T
        first, last = np.searchsorted(ends[rows], (begin, end), side="right")
        _take_in(group, gram.numpy(), begin, nearest2, farthest2, partners, rows[first:last], ends, sets, delta, d1)


@loop
def _take_in(
    group: Group,
    gram: Any,  # (keys of the block, keys so far) float32: products of unit vectors
    begin: int,  # the first key of the block
    nearest2: Any,  # (1,) the smallest squared distance between unit vectors so far
    farthest2: Any,  # (keys,) the squared distance of each key to its farthest partner so far
    partners: Any,  # (keys,)
    rows: Any,  # rows that end with a key of the block, in order
    ends: Any,
    sets: TopSets,
    delta: Any,
    d1: Any,
) -> None:
    """Add a block of keys and measure the rows that end with one of them."""
    single, end = np.float32, begin + gram.shape[0]
    error = (group.vectors.shape[1] + 12) * _EPSILON  # of a product
    all_norms, upper, outside = np.empty(end, single), np.empty(end, single), np.empty(end, np.bool_)
    longest, measured = 0.0, 0
    for j in range(end):
        all_norms[j] = group.norms[j]
    for j in range(begin):
        longest = max(longest, group.norms[j])
    for t in range(begin, end):
        products, distances2, norms, norm = gram[t - begin, :t], upper[:t], all_norms[:t], all_norms[t]
        cut = single(1 - nearest2[0] / 2 - error if group.inverses[t] > 0 else -1.0)
        near = np.int32(0)
        for j in range(t):
            near = np.int32(near + np.int32(products[j] >= cut))
        if near and nearest2[0] > 0:
            for j in range(t):
                if products[j] >= cut:
                    nearest2[0] = min(nearest2[0], squared_distance_of_units(group, t, j))
        slack, two, least = single(2 * error), single(2), single(_UNDERFLOW)
        for j in range(t):  # upper bounds of the squared distances
            both = norm + norms[j]
            distances2[j] = norm * norm + norms[j] * (norms[j] - two * norm * products[j]) + slack * both * both + least
        _update_partners(group, t, distances2, farthest2, partners)
        if t:
            lower = single(largest(distances2) - 4 * error * (norm + longest) ** 2 - 2 * _UNDERFLOW)
            farthest2[t], partners[t] = _exact_farthest(group, t, distances2, lower)
        longest = max(longest, group.norms[t])
        while measured < rows.size and ends[rows[measured]] == t + 1:
            r = rows[measured]
            delta[r] = np.sqrt(nearest2[0])
            _farthest_apart(group, sets.members[r], sets.counts[r], farthest2, partners, outside[: t + 1], d1[r])
            measured += 1


@helper
def _update_partners(group: Group, t: int, upper: Any, farthest2: Any, partners: Any) -> None:
    """Make key t the partner of every earlier key whose distance to t is the largest so far."""
    for first in range(0, t, _CHECKED_TOGETHER):
        part, best = upper[first : first + _CHECKED_TOGETHER], farthest2[first : first + _CHECKED_TOGETHER]
        farther = np.int32(0)
        for j in range(part.size):
            farther = np.int32(farther + np.int32(part[j] > np.float32(best[j])))
        if farther:
            for j in range(part.size):
                if part[j] > np.float32(best[j]):
                    distance2 = squared_distance(group.vectors[t], group.vectors[first + j])
                    if distance2 > best[j]:
                        best[j], partners[first + j] = distance2, t


@helper
def _exact_farthest(group: Group, t: int, upper: Any, lower: Any) -> tuple[float, int]:
    """The largest squared distance of key t to an earlier key whose upper bound reaches `lower`, and that key."""
    best, partner = -1.0, 0
    for first in range(0, t, _CHECKED_TOGETHER):
        part = upper[first : first + _CHECKED_TOGETHER]
        possible = np.int32(0)
        for j in range(part.size):
            possible = np.int32(possible + np.int32(part[j] >= lower))
        if possible:
            for j in range(part.size):
                if part[j] >= lower:
                    distance2 = squared_distance(group.vectors[t], group.vectors[first + j])
                    if distance2 > best:
                        best, partner = distance2, first + j
    return best, partner


@helper
def _farthest_apart(
    group: Group, members: Any, counts: Any, farthest2: Any, partners: Any, outside: Any, d1: Any
) -> None:
    """Fill d1 of a row's sets: the largest distance of a member to a key outside.

    A member's distance to its farthest partner bounds its distance to the keys outside. Members are visited in the
    order of these bounds until no other can be larger.
    """
    outside[:] = True
    done = 0
    for s in range(counts.size):
        for c in range(done, counts[s]):
            outside[members[c]] = False
        done = counts[s]
        d1[s] = np.nan
        if not 0 < done < outside.size:
            continue
        largest2, bound, asked = -1.0, np.inf, -1
        while True:
            following, next_bound = -1, -1.0
            for c in range(done):  # the next lower bound; of equal ones the next member
                value = farthest2[members[c]]
                if next_bound < value and (value < bound or (value == bound and c > asked)):
                    following, next_bound = c, value
            if following < 0 or next_bound <= largest2:
                break
            asked, bound = following, next_bound
            if outside[partners[members[asked]]]:
                largest2 = max(largest2, bound)
                break
            x = group.vectors[members[asked]]
            for j in range(outside.size):
                if outside[j]:
                    largest2 = max(largest2, squared_distance(x, group.vectors[j]))
        d1[s] = np.sqrt(largest2)
