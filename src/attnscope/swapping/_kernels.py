"""Compiled loop: which keys of a row have the largest logits, without sorting."""

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
