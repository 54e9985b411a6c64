"""Compiled loop: products of queries and keys in float64, from keys as the model has them.

A matrix product wants all keys of a group in float64 first, wherever they lie. Here all groups go through the keys
together, as in most models the heads of a key lie side by side, and only a few keys at a time are put in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnscope._kernels_tiles import WIDE, store_wide
from attnscope._kernels_turning import EIGHT, turn_wide
from attnscope.normalizers._kernels import compiled, helper

ROWS = 6  # that a tile has; there must be as many queries
_TILES = 4  # side by side, so that rows are written in longer pieces


@compiled
def multiply(queries: Any, keys: Any, begin: int, out: Any) -> None:
    """out[g, i, begin + j] = queries[g, i] . keys[g, j].

    queries (groups, at least `ROWS`, dims) and out (groups, as many, all keys) are in float64, keys of any layout.
    """
    groups, count, dims = queries.shape
    width = out.shape[2]
    few, products = np.zeros((_TILES, dims, WIDE)), np.empty((ROWS, WIDE))
    for first in range(0, keys.shape[1], _TILES * WIDE):
        some = min(_TILES * WIDE, keys.shape[1] - first)
        for g in range(groups):
            _pack(keys[g, first : first + some], few)
            for i in range(0, count, ROWS):
                row = min(i, count - ROWS)  # the last ones may overlap
                for tile in range(-(-some // WIDE)):
                    columns = min(WIDE, some - tile * WIDE)
                    start = begin + first + tile * WIDE
                    found = out[g, row : row + ROWS, start : start + columns]
                    # A slice of all, so that both are of one type.
                    target, stride = (found, width) if columns == WIDE else (products[:, :], WIDE)
                    store_wide(
                        queries[g, row].ctypes.data, dims, few[tile].ctypes.data, WIDE, dims, few.ctypes.data,
                        target.ctypes.data, stride,
                    )  # fmt: skip
                    if columns < WIDE:
                        found[:] = products[:, :columns]


@helper
def _pack(keys: Any, few: Any) -> None:
    """few[t, k, j] = keys[WIDE t + j, k]: in registers where float32 lies in order, `WIDE` being eight."""
    count, dims = keys.shape
    turned = count - count % EIGHT if keys.itemsize == 4 and keys.strides[1] == 4 else 0
    whole = dims - dims % EIGHT
    for j in range(0, turned, EIGHT):
        source, lines = keys[j].ctypes.data, few[j // WIDE]
        for k in range(0, whole, EIGHT):
            turn_wide(source + k * 4, keys.strides[0] // 4, source, source, lines[k].ctypes.data, WIDE)
    for j in range(count):
        lines, place = few[j // WIDE], j % WIDE
        for k in range(whole if j < turned else 0, dims):
            lines[k, place] = keys[j, k]
