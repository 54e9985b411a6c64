"""Compiled loops: the top sets of many rows and their contexts.

The sets are nested and only membership counts, so no row is sorted: a selection gives the largest set, another
inside it the next smaller one, and so on. Ties go to the earlier key, as `theory.configuration.top_sets` says.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnscope.normalizers._kernels import compiled, helper

_SHORT = 16


@helper
def _nth_largest(values: Any, size: int, nth: int) -> float:
    """The nth largest (from 1) of the first `size` values, which end up in another order."""
    low, high = 0, size
    while high - low > _SHORT:
        a, b, c = values[low], values[(low + high) // 2], values[high - 1]
        pivot = max(min(a, b), min(max(a, b), c))
        place = low
        for j in range(low, high):  # no branch depends on a value, so nothing is mispredicted
            value = values[j]
            values[j] = values[place]
            values[place] = value
            place += value > pivot
        if nth <= place - low:
            high = place
            continue
        nth -= place - low
        low = place
        for j in range(low, high):
            value = values[j]
            values[j] = values[place]
            values[place] = value
            place += value == pivot
        if nth <= place - low:
            return pivot
        nth -= place - low
        low = place
    for j in range(low + 1, high):
        value = values[j]
        i = j
        while i > low and values[i - 1] < value:
            values[i] = values[i - 1]
            i -= 1
        values[i] = value
    return values[low + nth - 1]


@compiled
def mark_top(rows: Any, counts: Any, marks: Any, start: int, stop: int) -> None:
    """Mark the `counts` largest of each row, hidden keys -inf; a row with NaN, which has no order, is marked whole."""
    work = np.empty(rows.shape[1], rows.dtype)
    for r in range(start, stop):
        row, kept = rows[r], marks[r]
        broken = False
        for j in range(work.size):
            work[j] = row[j]
            broken |= row[j] != row[j]
        least = -np.inf if broken else _nth_largest(work, work.size, counts[r])
        ties = counts[r]
        for j in range(work.size):
            kept[j] = not row[j] <= least
            ties -= kept[j]
        if ties and least > -np.inf:
            for j in range(work.size):
                if row[j] == least and ties > 0:
                    kept[j] = True
                    ties -= 1


@helper
def _keep_top(values: Any, keys: Any, size: int, count: int, work: Any, dropped: Any) -> None:
    """Move the `count` largest of `size` to the front, in their order; the keys of the others go to `dropped`."""
    for j in range(size):
        work[j] = values[j]
    least = _nth_largest(work, size, count)
    ties = count
    for j in range(size):
        ties -= values[j] > least
    kept = left = 0
    for j in range(size):
        value = values[j]
        tied = value == least and ties > 0
        ties -= tied
        if value > least or tied:
            values[kept] = value
            keys[kept] = keys[j]
            kept += 1
        elif left < dropped.size:
            dropped[left] = keys[j]
            left += 1


@compiled
def choose(
    rows: Any,  # (block,) which rows of `weights`
    weights: Any,  # (all rows, keys)
    masks: Any,  # (masks, keys), visible keys
    mask_of: Any,  # (all rows,)
    vectors: Any,  # (keys, dims) of this group
    units: Any,  # (keys, dims)
    counts: Any,  # (sets,) N, ascending
    members: Any,  # (block, largest N): keys, those of a smaller set first
    sizes: Any,  # (block, sets): N, or the row's length where that is less
    contexts: Any,  # (block, sets, dims)
    unit_contexts: Any,  # (block, sets, dims)
    start: int,
    stop: int,
) -> None:
    """Fill the last four for rows `start` to `stop` of a block."""
    sets, dims = contexts.shape[1:]
    values = np.empty(weights.shape[1])
    keys = np.empty(weights.shape[1], np.int64)
    work = np.empty(weights.shape[1])
    nothing = np.empty(0, np.int64)
    total = np.empty(dims)
    unit_total = np.empty(dims)
    for r in range(start, stop):
        row = rows[r]
        seen = masks[mask_of[row]]
        length = 0
        broken = False
        for j in range(seen.size):
            if seen[j]:
                values[length] = weights[row, j]
                keys[length] = j
                broken |= values[length] != values[length]
                length += 1
        for s in range(sets):
            sizes[r, s] = 0 if broken else min(counts[s], length)
        left = length
        for s in range(sets - 1, -1, -1):
            count = sizes[r, s]
            if 0 < count < left:
                dropped = nothing if s == sets - 1 else members[r, count : sizes[r, s + 1]]
                _keep_top(values, keys, left, count, work, dropped)
            left = count
        for c in range(left):
            members[r, c] = keys[c]
        for k in range(dims):
            total[k] = 0
            unit_total[k] = 0
        done = 0
        for s in range(sets):
            for c in range(done, sizes[r, s]):
                key = members[r, c]
                weight = weights[row, key]
                x, u = vectors[key], units[key]
                for k in range(dims):
                    total[k] += weight * x[k]
                    unit_total[k] += weight * u[k]
            done = sizes[r, s]
            for k in range(dims):
                contexts[r, s, k] = total[k]
                unit_contexts[r, s, k] = unit_total[k]
