"""Compiled loops: the largest numbers of a row, without sorting it.

Floats are compared through integers in the same order. Halving the range of these integers and counting finds the
`count`-th largest in a few passes, which vectorize because no branch depends on the numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba.extending import overload

from attnscope._compiling import helper


def empty_keys(rows: Any) -> Any:
    """Memory for the keys of one row: integers of the size of its numbers."""
    return np.empty(rows.shape[-1], np.int32 if rows.itemsize == 4 else np.int64)


@overload(empty_keys, strict=False)  # strict also compares annotations, which a lambda does not have
def _empty_keys(rows: Any) -> Callable[[Any], Any]:
    integer = np.int32 if rows.dtype.bitwidth == 32 else np.int64
    return lambda rows: np.empty(rows.shape[-1], integer)


@helper
def order_keys(values: Any, out: Any) -> None:
    """Fill `out` with integers of the same size in the same order; -0 equals 0, and NaN has no order."""
    integer = out.dtype.type  # without it, numba computes in 64 bits
    bits, sign = values.view(out.dtype), integer(8 * out.itemsize - 1)
    below_sign = integer(~(integer(1) << sign))
    for j in range(bits.size):
        key = integer(bits[j] ^ integer(integer(bits[j] >> sign) & below_sign))
        out[j] = key if key != -1 else integer(0)


@helper
def count_from(keys: Any, least: Any) -> Any:
    """The number of keys that are at least `least`."""
    integer = keys.dtype.type
    count = integer(0)  # of the size of the keys, so that it fits their lanes
    for j in range(keys.size):
        count = integer(count + integer(keys[j] >= least))
    return np.int64(count)


@helper
def top_level(keys: Any, count: int) -> tuple[Any, Any]:
    """(level, ties): the `count` largest keys are those above `level` and the first `ties` of those equal to it."""
    integer = keys.dtype.type
    high = keys[0]
    for j in range(keys.size):
        high = keys[j] if keys[j] > high else high
    low = keys[0]
    for j in range(keys.size):
        low = keys[j] if keys[j] < low else low
    reached = np.int64(keys.size)  # how many are at least `low`: never fewer than `count`; fewer are above `high`
    while reached != count and low < high:
        middle = integer((low | high) - ((low ^ high) >> integer(1)))  # rounded up, without overflow
        enough = count_from(keys, middle)
        if enough >= count:
            low, reached = middle, enough
        else:
            high = integer(middle - integer(1))
    equal = np.int64(0)
    for j in range(keys.size):
        equal += np.int64(keys[j] == low)
    return low, count - (reached - equal)
