"""Compiled loops: products of a few vectors with all vectors of a group, in float32.

The group is packed in panels (`_kernels_panels`); a panel stays in the nearest cache while all the few are multiplied
with it. Within a loop that runs for microseconds a call of a matrix library would
cost more than it saves, and would need the interpreter.

The few go six, five or four at a time, whichever leaves the fewest over, and the last ones may overlap: a row is then
multiplied twice, with the same result. Fewer than four are filled up by whatever stands behind them.
"""

from __future__ import annotations

from typing import Any

from attnscope import _kernels_tiles as tiles
from attnscope._kernels_tiles import PANEL, WIDE
from attnscope.normalizers._kernels import helper

FEWEST = 4  # rows that `few` and what is written for them must have room for
AT_ONCE = 6
_BYTES = 4
_WIDE_BYTES = 8


@helper
def _step(count: int) -> int:
    """How many of the few to take at a time."""
    times = -(-count // AT_ONCE)
    return max(FEWEST, -(-count // times))


@helper
def multiply(few: Any, count: int, panels: Any, begin: int, end: int, out: Any) -> None:
    """out[i, j] = few[i] . x for the first `count`, x the j-th vector from panel `begin` on, up to panel `end`."""
    dims, few_stride, out_stride = few.shape[1], few.strides[0], out.strides[0]
    step = _step(count)
    for p in range(begin, end):
        panel, target = panels[p].ctypes.data, out.ctypes.data + (p - begin) * PANEL * _BYTES
        i = 0
        while i < count:
            i = max(0, min(i, count - step))
            rows, place = few.ctypes.data + i * few_stride, target + i * out_stride
            if step == 6:
                tiles.store_6(rows, few_stride // _BYTES, panel, PANEL, dims, rows, place, out_stride // _BYTES)
            elif step == 5:
                tiles.store_5(rows, few_stride // _BYTES, panel, PANEL, dims, rows, place, out_stride // _BYTES)
            else:
                tiles.store_4(rows, few_stride // _BYTES, panel, PANEL, dims, rows, place, out_stride // _BYTES)
            i += step


@helper
def keep_most(few: Any, count: int, start: Any, panels: Any, begin: int, end: int, best: Any) -> None:
    """best[j] = the largest of itself and start[i] + few[i] . x for the first `count`, x as in `multiply`.

    `start` is minus infinity behind them, as far as `FEWEST`.
    """
    dims, stride = few.shape[1], few.strides[0]
    step = _step(count)
    for p in range(begin, end):
        panel, target = panels[p].ctypes.data, best.ctypes.data + (p - begin) * PANEL * _BYTES
        i = 0
        while i < count:
            i = max(0, min(i, count - step))
            rows, first = few.ctypes.data + i * stride, start.ctypes.data + i * _BYTES
            if step == 6:
                tiles.most_6(rows, stride // _BYTES, panel, PANEL, dims, first, target, 0)
            elif step == 5:
                tiles.most_5(rows, stride // _BYTES, panel, PANEL, dims, first, target, 0)
            else:
                tiles.most_4(rows, stride // _BYTES, panel, PANEL, dims, first, target, 0)
            i += step


@helper
def next_above(integers: Any, panels: Any, begin: int, end: int, cut: Any) -> int:
    """The first panel from `begin` on where a product of one of six rows is above cut[0], all in integers; or `end`."""
    rows, stride, words = integers.ctypes.data, integers.strides[0] // _BYTES, integers.shape[1]
    for p in range(begin, end):
        panel = panels.ctypes.data + p * panels.strides[0]
        if tiles.above_6(rows, stride, panel, PANEL, words, rows, cut.ctypes.data, 0) != 0:
            return p
    return end


@helper
def average(weights: Any, rows: Any, ends: Any, vectors: Any, few: Any, sums: Any, out: Any) -> None:
    """out[i] = the sum of weights[rows[i], j] times vector j, in float64; weights are zero from ends[i] on.

    The rows are evenly spaced. few (AT_ONCE, keys), sums (AT_ONCE, dims): scratch for fewer rows than a tile has.
    """
    dims, count = vectors.shape[1], rows.size
    source, stride, target = weights[rows[0] :], weights.shape[1], out
    if count > 1:
        stride *= rows[1] - rows[0]
    if count < AT_ONCE:
        few[:] = 0
        for i in range(count):
            few[i, : ends[i]] = weights[rows[i], : ends[i]]
        source, stride, target = few, few.shape[1], sums
    whole = dims - dims % WIDE
    for k in range(0, whole, WIDE):  # these columns of all vectors stay in a near cache
        for i in range(0, count, AT_ONCE):
            first = max(0, min(i, count - AT_ONCE))
            last = 0
            for row in range(first, min(count, first + AT_ONCE)):
                last = max(last, ends[row])
            tiles.store_wide(
                source.ctypes.data + first * stride * _WIDE_BYTES, stride, vectors.ctypes.data + k * _WIDE_BYTES, dims,
                last, source.ctypes.data, target.ctypes.data + (first * dims + k) * _WIDE_BYTES, dims,
            )  # fmt: skip
    for i in range(count):
        if count < AT_ONCE:
            out[i, :whole] = sums[i, :whole]
        for k in range(whole, dims):
            total = 0.0
            for j in range(ends[i]):
                total += weights[rows[i], j] * vectors[j, k]
            out[i, k] = total
