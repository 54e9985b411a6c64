"""Compiled loops: the nested top sets of rows and their contexts.

Only membership matters, so no row is sorted: one selection gives the largest set, a selection within it the next
smaller one, and so on. Ties go to the earlier key, as in `theory.configuration.top_sets`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from attnscope._compiling import helper, loop
from attnscope._selection import order_keys, top_level
from attnscope.measure._kernels_vectors import Groups, group_at

_LARGEST_EXPONENT = 1000  # of a row's scale, so that its inverse is a normal number too


class TopSets(NamedTuple):
    """The top sets of some rows, smallest first."""

    members: Any  # (rows, largest N) keys; the members of a smaller set come first
    counts: Any  # (rows, sets) N, or the row's length if that is smaller; 0 for a row without sets
    scales: Any  # (rows,) a power of two that brings the row's largest weight near 1


class Contexts(NamedTuple):
    """The weighted sums of some rows."""

    plain: Any  # (rows, sets, dims) sum of alpha x over each set
    unit: Any  # (rows, sets, dims) the same for unit vectors, times the row's scale
    mean: Any  # (rows, dims) sum of alpha x over all keys: xbar


@loop
def choose_top_sets(rows: Any, weights: Any, spans: Any, top_n: Any, sets: TopSets) -> None:
    """Fill `sets` for some rows; rows with a negative weight or fewer than two keys have none."""
    width = weights.shape[1]
    keys, positions, dropped = np.empty(width, np.int64), np.empty(width, np.int64), np.empty(width, np.int64)
    values = np.empty(width)
    for r in rows:
        first, last = spans[r, 0], spans[r, 1]
        length = last - first
        largest, defined = 0.0, length > 1
        for j in range(length):
            weight = weights[r, first + j]
            defined &= 0 <= weight < np.inf
            largest = max(largest, weight)
            values[j], positions[j] = abs(weight), first + j  # no -0
        sets.counts[r] = 0
        if not defined:
            continue
        exponent = min(_LARGEST_EXPONENT, -math.frexp(largest)[1]) if largest > 0 else 0
        sets.scales[r] = math.ldexp(1.0, exponent)
        order_keys(values[:length], keys[:length])
        members, size = sets.members[r], length
        for s in range(top_n.size - 1, -1, -1):
            count = sets.counts[r, s] = min(top_n[s], length)
            if count < size:
                _move_largest_first(keys[:size], positions[:size], count, dropped)
                if s < top_n.size - 1:
                    for c in range(count, size):
                        members[c] = dropped[c - count]
            size = count
        for c in range(size):
            members[c] = positions[c]


@helper
def _move_largest_first(keys: Any, positions: Any, count: int, dropped: Any) -> None:
    """Move the `count` largest keys and their positions to the front; the positions of the others go to `dropped`."""
    level, ties = top_level(keys, count)
    chosen = left = 0
    for j in range(keys.size):
        key, position = keys[j], positions[j]
        taken = key > level
        if key == level and ties > 0:
            taken = True
            ties -= 1
        keys[chosen], positions[chosen] = key, position
        chosen += taken
        if not taken:
            dropped[left] = position
            left += 1


@loop
def sum_contexts(
    rows: Any, group_of: Any, weights: Any, sets: TopSets, groups: Groups, contexts: Contexts, stacked: Any
) -> None:
    """Fill the contexts of some rows from their sets and the vectors of their groups; `contexts.mean` is already set.

    stacked: (rows, 2 sets + 1, dims), in the type of the matrix products that follow: contexts, mean and unit contexts,
    each multiplied by the row's scale.
    """
    dims, count = groups.vectors.shape[2], sets.counts.shape[1]
    plain, unit = np.empty(dims), np.empty(dims)  # the sums so far
    for i in range(rows.size):
        r, group = rows[i], group_at(groups, group_of[i])
        scale = sets.scales[r]
        stacked[i] = 0
        if sets.counts[r, 0] == 0:
            continue
        plain[:] = 0
        unit[:] = 0
        done = 0
        for s in range(count):
            for c in range(done, sets.counts[r, s]):
                key = sets.members[r, c]
                weight, x = weights[r, key], group.vectors[key]
                unit_weight = weight * group.inverses[key]
                for k in range(dims):
                    plain[k] += weight * x[k]
                for k in range(dims):
                    unit[k] += unit_weight * x[k]
            done = sets.counts[r, s]
            for k in range(dims):
                contexts.plain[i, s, k], contexts.unit[i, s, k] = plain[k], unit[k] * scale
                stacked[i, s, k] = plain[k] * scale
                stacked[i, count + 1 + s, k] = unit[k] * scale
        for k in range(dims):
            stacked[i, count, k] = contexts.mean[i, k] * scale
