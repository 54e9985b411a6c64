"""Compiled loops: what needs all pairs of keys, for the paper's printed bounds.

delta is the smallest distance between two unit vectors of a row, d1 of a top set the largest distance between a member
and a key outside. Both come from one pass over the keys, along rows of their Gram matrix: it notes the smallest
distance up to each key, and for every key how its farthest partner changes as keys are added.

Products only find candidates: a pair that may be nearest, or farthest, is measured in float64 by its difference.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from attnscope._arithmetic import largest
from attnscope._compiling import helper, loop
from attnscope.measure._kernels_top import TopSets
from attnscope.measure._kernels_vectors import Group, dot, squared_distance, squared_distance_of_units

_EPSILON = 2.0**-52
_RANKED = 1e-11  # products rank distances if their error is below this share of the squared distance
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
    gram: Any,  # (keys of the block, at least `end`): products of their unit vectors with those of all keys
    begin: int,
    end: int,
    delta2: Any,  # (keys,) the smallest squared distance between unit vectors among the keys up to each
    farthest2: Any,  # (keys,) the squared distance of each key to its farthest partner so far
    farthest: Farthest,
    count: int,  # of records
) -> int:
    """Take in the keys from `begin` to `end`; returns how many records there are."""
    error = (group.vectors.shape[1] + 8) * _EPSILON
    nearest2 = delta2[begin - 1] if begin else np.inf
    work = np.empty(end)
    zero = 0  # the first zero vector, at distance 1 from all unit vectors: its products do not show it
    while zero < end and group.inverses[zero] > 0:
        zero += 1
    for t in range(begin, end):
        products, distances2, best2 = gram[t - begin, :t], work[:t], farthest2[:t]
        norms, norm = group.norms[:t], group.norms[t]
        cut = 1 - nearest2 / 2 - error if group.inverses[t] > 0 else -1.0
        for j in range(t):
            distances2[j] = norm * norm + norms[j] * (norms[j] - 2 * norm * products[j])
        near = farther = np.int64(0)
        for j in range(t):
            near += np.int64(products[j] >= cut)
        for j in range(t):
            farther += np.int64(distances2[j] > best2[j])
        if near and nearest2 > 0:
            for j in range(t):
                if products[j] >= cut:
                    nearest2 = min(nearest2, squared_distance_of_units(group, t, j))
        if zero < t:
            nearest2 = min(nearest2, squared_distance_of_units(group, t, zero))
        delta2[t] = nearest2
        if farther:
            count = _update_partners(t, distances2, best2, farthest, count)
        if t:
            farthest2[t] = largest(distances2)
            partner = 0
            while partner < t - 1 and distances2[partner] != farthest2[t]:
                partner += 1
            count = _append(farthest, count, t, t, partner, farthest2[t])
    return count


@helper
def _update_partners(t: int, distances2: Any, best2: Any, farthest: Farthest, count: int) -> int:
    """Make key t the partner of every earlier key that is farther from it than from all others so far."""
    for first in range(0, t, _CHECKED_TOGETHER):
        part, best = distances2[first : first + _CHECKED_TOGETHER], best2[first : first + _CHECKED_TOGETHER]
        farther = np.int64(0)
        for j in range(part.size):
            farther += np.int64(part[j] > best[j])
        if farther:
            for j in range(part.size):
                if part[j] > best[j]:
                    best[j] = part[j]
                    count = _append(farthest, count, first + j, t, t, part[j])
    return count


@loop
def farthest_distances(rows: Any, ends: Any, group: Group, sets: TopSets, farthest: Farthest, d1: Any) -> None:
    """Fill d1 (all rows, sets) of some rows that see the first `ends[r]` keys: NaN where a set has no key outside."""
    error = (group.vectors.shape[1] + 8) * _EPSILON
    longest = 0.0
    for j in range(group.norms.size):
        longest = max(longest, group.norms[j])
    slack = 4 * error * longest * longest
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
                d1[r, s] = _farthest_apart(group, members[:count], bounds, partners, outside[:end], slack)


@helper
def _farthest_apart(group: Group, members: Any, bounds: Any, partners: Any, outside: Any, slack: float) -> float:
    """The largest distance of a member to a key outside the set.

    A member's distance to its farthest partner bounds its distance to the keys outside. Members are asked in the order
    of these bounds, until none can be larger. slack: how far a bound can be off.
    """
    largest2, bound, asked = -1.0, np.inf, -1
    while True:
        following, next_bound = -1, -1.0
        for c in range(members.size):  # the next lower bound; of equal ones the next member
            value = bounds[c]
            if next_bound < value and (value < bound or (value == bound and c > asked)):
                following, next_bound = c, value
        if following < 0 or next_bound + slack < largest2:
            return np.sqrt(largest2)
        asked, bound = following, next_bound
        member, partner = members[asked], partners[asked]
        if not outside[partner] or slack > _RANKED * bound:
            partner = _farthest_outside(group, member, outside, slack)
        largest2 = max(largest2, squared_distance(group.vectors[member], group.vectors[partner]))


@helper
def _farthest_outside(group: Group, member: int, outside: Any, slack: float) -> int:
    """The key outside the set that is farthest from a member."""
    x, norm = group.vectors[member], group.norms[member]
    best2, farthest = -1.0, 0
    for j in range(outside.size):
        if outside[j]:
            distance2 = norm * norm + group.norms[j] * group.norms[j] - 2 * dot(x, group.vectors[j])
            if not distance2 > slack / _RANKED:  # the terms cancel
                distance2 = squared_distance(x, group.vectors[j])
            if distance2 > best2:
                best2, farthest = distance2, j
    return farthest
