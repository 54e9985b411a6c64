"""Compiled loop: which keys of a row have the largest logits."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnscope._compiling import loop
from attnscope._selection import empty_keys, order_keys, top_level


@loop
def mark_top(rows: Any, counts: Any, marks: Any, start: int, stop: int) -> None:
    """Mark the `counts` largest logits of each row, or all of a row with NaN; hidden keys (-inf) are never marked."""
    keys = empty_keys(rows)
    for r in range(start, stop):
        row, marked = rows[r], marks[r]
        broken = False
        for j in range(row.size):
            broken |= row[j] != row[j]
        for j in range(row.size):
            marked[j] = row[j] != -np.inf
        if broken:
            continue
        order_keys(row, keys)
        level, ties = top_level(keys, counts[r])
        for j in range(row.size):
            marked[j] &= keys[j] > level or (keys[j] == level and ties > 0)
            ties -= keys[j] == level
