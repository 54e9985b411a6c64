"""Compiled loops: what needs all pairs of keys, for the paper's printed bounds.

delta is the smallest distance between two unit vectors of a row, d1 of a top set the largest distance between a member
and a key outside. Both come from one pass over the keys, along rows of their Gram matrix: it notes the smallest
distance up to each key, and for every key how its farthest partner changes as keys are added.

Products in float32 only find candidates: every pair that may be nearest, or farthest, is measured in float64.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from attnscope._arithmetic import largest
from attnscope._compiling import helper, loop
from attnscope.measure._kernels_top import TopSets
from attnscope.measure._kernels_vectors import Group, squared_distance, squared_distance_of_units

_EPSILON = 2.0**-24
_CHECKED_TOGETHER = 64


class Farthest(NamedTuple):
    """The farthest partner of every key among the keys before t, for every t: chains of records, the newest first."""

    newest: Any  # (keys,) a key's last record, -1 for none
    since: Any  # (records,) the key whose arrival made the record
    partner: Any  # (records,)
    distance2: Any  # (records,) squared distance to the partner
    previous: Any  # (records,) the key's record before, -1 for none


@helper
def _append(farthest: Farthest, count: int, key: int, since: int, partner: int, distance2: float) -> int:
    farthest.since[count], farthest.partner[count], farthest.distance2[count] = since, partner, distance2
    farthest.previous[count] = farthest.newest[key]
    farthest.newest[key] = count
    return count + 1


@helper
def _record_of(farthest: Farthest, key: int, end: int) -> Any:
    """The record of a key's farthest partner among the first `end` keys."""
    record = farthest.newest[key]
    while record >= 0 and farthest.since[record] >= end:
        record = farthest.previous[record]
    return record


@loop
def take_in(
    group: Group,
    gram: Any,  # (keys of the block, `end`) float32: products of their unit vectors with those of all keys
    begin: int,
    end: int,
    delta2: Any,  # (keys,) the smallest squared distance between unit vectors among the keys up to each
    farthest2: Any,  # (keys,) the squared distance of each key to its farthest partner so far
    farthest: Farthest,
    count: int,  # of records
) -> int:
    """Take in the keys from `begin` to `end`; returns how many records there are."""
    single = np.float32
    error = (group.vectors.shape[1] + 12) * _EPSILON  # of a product
    nearest2 = delta2[begin - 1] if begin else np.inf
    all_norms, upper, longest = np.empty(end, single), np.empty(end, single), 0.0
    for j in range(end):
        all_norms[j] = group.norms[j]
    for j in range(begin):
        longest = max(longest, group.norms[j])
    for t in range(begin, end):
        products, distances2, norms, norm = gram[t - begin, :t], upper[:t], all_norms[:t], all_norms[t]
        cut = single(1 - nearest2 / 2 - error if group.inverses[t] > 0 else -1.0)
        near = np.int32(0)
        for j in range(t):
            near = np.int32(near + np.int32(products[j] >= cut))
        if near and nearest2 > 0:
            for j in range(t):
                if products[j] >= cut:
                    nearest2 = min(nearest2, squared_distance_of_units(group, t, j))
        delta2[t] = nearest2
        slack, two = single(2 * error), single(2)
        for j in range(t):  # upper bounds of the squared distances
            both = norm + norms[j]
            distances2[j] = norm * norm + norms[j] * (norms[j] - two * norm * products[j]) + slack * both * both
        count = _update_partners(group, t, distances2, farthest2, farthest, count)
        if t:
            lower = single(largest(distances2) - 4 * error * (norm + longest) ** 2)
            farthest2[t], partner = _exact_farthest(group, t, distances2, lower)
            count = _append(farthest, count, t, t, partner, farthest2[t])
        longest = max(longest, group.norms[t])
    return count


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
def _update_partners(group: Group, t: int, upper: Any, farthest2: Any, farthest: Farthest, count: int) -> int:
    """Make key t the partner of every earlier key that is farther from it than from all others so far."""
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
                        best[j] = distance2
                        count = _append(farthest, count, first + j, t, t, distance2)
    return count


@loop
def farthest_distances(rows: Any, ends: Any, group: Group, sets: TopSets, farthest: Farthest, d1: Any) -> None:
    """Fill d1 (all rows, sets) of some rows that see the first `ends[r]` keys: NaN where a set has no key outside."""
    outside = np.empty(group.norms.size, np.bool_)
    largest_set = sets.members.shape[1]
    bounds, partners = np.empty(largest_set), np.empty(largest_set, np.int64)
    for r in rows:
        end, members, total = ends[r], sets.members[r], sets.counts[r, sets.counts.shape[1] - 1]
        outside[:end] = True
        for c in range(total):
            record = _record_of(farthest, members[c], end)
            bounds[c], partners[c] = -1.0, 0  # no record: no distance is a number
            if record >= 0:
                bounds[c], partners[c] = farthest.distance2[record], farthest.partner[record]
        done = 0
        for s in range(sets.counts.shape[1]):
            count = sets.counts[r, s]
            for c in range(done, count):
                outside[members[c]] = False
            done = count
            d1[r, s] = np.nan
            if 0 < count < end:
                d1[r, s] = _farthest_apart(group, members[:count], bounds, partners, outside[:end])


@helper
def _farthest_apart(group: Group, members: Any, bounds: Any, partners: Any, outside: Any) -> float:
    """The largest distance of a member to a key outside the set.

    A member's distance to its farthest partner bounds its distance to the keys outside. Members are asked in the order
    of these bounds, until none can be larger.
    """
    largest2, bound, asked = -1.0, np.inf, -1
    while True:
        following, next_bound = -1, -1.0
        for c in range(members.size):  # the next lower bound; of equal ones the next member
            value = bounds[c]
            if next_bound < value and (value < bound or (value == bound and c > asked)):
                following, next_bound = c, value
        if following < 0 or next_bound <= largest2:
            return np.sqrt(largest2)
        asked, bound = following, next_bound
        if outside[partners[asked]]:
            return np.sqrt(max(largest2, bound))
        x = group.vectors[members[asked]]
        for j in range(outside.size):
            if outside[j]:
                largest2 = max(largest2, squared_distance(x, group.vectors[j]))
