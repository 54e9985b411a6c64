"""Compiled loops: a group's vectors in the layout that products want.

Vectors are packed in panels of `PANEL` keys, one line of keys for each dimension.

Where it is enough to know that products are not above a cut, vectors are rounded to 16-bit integers, which multiply
faster. Half the squared distance of two vectors is such a product too: of (-x, 1, |x|^2 / 2) and (y, |y|^2 / 2, 1).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from attnscope._kernels_tiles import PANEL, Lanes
from attnscope._kernels_turning import EIGHT, turn_moved
from attnscope.normalizers._kernels import helper

INTEGER_ONE = 32767  # what stands for 1 in 16 bits
_MIDDLE = 32768  # makes all integers positive: truncation then rounds them all down
_LINE, _INTEGERS = Lanes(ir.FloatType(), PANEL), Lanes(ir.IntType(32), PANEL)


def panels_shape(keys: int, dims: int) -> tuple[int, int]:
    """The shape of the packed vectors of a group."""
    return -(-keys // PANEL), dims * PANEL


def words(dims: int) -> int:
    """How many 32-bit words a vector of 16-bit integers takes."""
    return -(-dims // 2)


def distance_words(dims: int) -> int:
    """The same for a vector that tells distances."""
    return words(dims + 2)


@helper
def pack(vectors: Any, shifts: Any, factors: Any, panels: Any) -> None:
    """Put (vector - shifts) factor of all vectors, in float64, into panels of float32; zero behind the last."""
    keys, dims = vectors.shape
    whole = dims - dims % EIGHT
    panels[-1] = 0
    for first in range(0, keys - keys % EIGHT, EIGHT):
        target = panels[first // PANEL].ctypes.data + first % PANEL * 4
        source, factor = vectors[first].ctypes.data, factors.ctypes.data + first * 8
        for k in range(0, whole, EIGHT):
            turn_moved(source + k * 8, dims, shifts.ctypes.data + k * 8, factor, target + k * PANEL * 4, PANEL)
    for j in range(keys):
        panel, place = panels[j // PANEL], j % PANEL
        for k in range(whole if j < keys - keys % EIGHT else 0, dims):
            panel[k * PANEL + place] = (vectors[j, k] - shifts[k]) * factors[j]


def _joining() -> Any:
    """An operation: (two lines of numbers, what they are multiplied by, a line of words); lines are addresses."""

    @intrinsic
    def join(context: Any, low: Any, high: Any, by: Any, out: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            start = ir.Constant(ir.IntType(64), 0)
            halves = []
            low, high, by, out = arguments
            steps = builder.fmul(by, ir.Constant(_LINE.number, float(INTEGER_ONE)))
            for line in (low, high):
                value = _LINE.load(builder, builder.inttoptr(line, _LINE.number.as_pointer()), start)
                value = builder.fmul(value, _LINE.everywhere(builder, steps))
                value = builder.fadd(value, ir.Constant(_LINE.vector, [_MIDDLE + 0.5] * PANEL))
                halves.append(builder.fptosi(value, _INTEGERS.vector))
            low, high = halves
            both = builder.or_(low, builder.shl(high, ir.Constant(_INTEGERS.vector, [16] * PANEL)))
            # Takes the middle from both halves, as the highest bit of each stands for it.
            both = builder.xor(both, ir.Constant(_INTEGERS.vector, [(_MIDDLE << 16) + _MIDDLE] * PANEL))
            out = builder.inttoptr(out, _INTEGERS.number.as_pointer())
            builder.store(both, _INTEGERS.at(builder, out, start), align=4)
            return context.get_dummy_value()

        return types.void(types.uintp, types.uintp, types.float32, types.uintp), generate

    return join


_join = _joining()


@helper
def panels_to_integers(panels: Any, by: Any, out: Any) -> None:
    """Panels of vectors that are at most 1 / by long in 16-bit integers, two dimensions to a word."""
    zeros = np.zeros(PANEL, np.float32)
    dims = panels.shape[1] // PANEL
    for p in range(panels.shape[0]):
        source, target = panels[p].ctypes.data, out[p].ctypes.data
        for k in range(0, dims, 2):
            low = source + k * PANEL * 4
            high = low + PANEL * 4 if k + 1 < dims else zeros.ctypes.data
            _join(low, high, by, target + k // 2 * PANEL * 4)


@helper
def panels_to_distances(panels: Any, squares: Any, by: Any, out: Any) -> None:
    """The same of (z, |z|^2 / 2, 1) with z = by y; squares: |y|^2."""
    one = np.float32(1)
    dims = panels.shape[1] // PANEL
    lines = np.zeros((4, PANEL), np.float32)
    odd = dims % 2
    lines[odd + 1] = 1
    panels_to_integers(panels[:, : (dims - odd) * PANEL], by, out)
    for p in range(panels.shape[0]):
        if odd:
            for j in range(PANEL):
                lines[0, j] = panels[p, (dims - 1) * PANEL + j] * by
        own = squares[p * PANEL : (p + 1) * PANEL]
        lines[odd] = 0
        for j in range(own.size):
            lines[odd, j] = _half_square(own[j], by)
        target = out[p].ctypes.data + (dims - odd) // 2 * PANEL * 4
        _join(lines[0].ctypes.data, lines[1].ctypes.data, one, target)
        if odd:
            _join(lines[2].ctypes.data, lines[3].ctypes.data, one, target + PANEL * 4)


@helper
def _half_square(square: Any, by: Any) -> Any:
    return by * square * by / np.float32(2)


@helper
def to_integers(vector: Any, by: Any, out: Any) -> None:
    """One vector, as `panels_to_integers`."""
    integers = out.view(np.int16)
    integers[-1] = 0
    for k in range(vector.size):
        integers[k] = _to_integer(vector[k] * by)


@helper
def to_distances(vector: Any, square: Any, by: Any, out: Any) -> None:
    """(z, 1, |z|^2 / 2) with z = by x, to be multiplied with such panels; square: |x|^2."""
    to_integers(vector, by, out)
    integers = out.view(np.int16)
    integers[vector.size], integers[vector.size + 1] = INTEGER_ONE, _to_integer(_half_square(square, by))


@helper
def _to_integer(value: Any) -> Any:
    return np.int32(value * np.float32(INTEGER_ONE) + np.float32(_MIDDLE + 0.5)) - _MIDDLE


@helper
def integer_error(dims: int, length: float) -> float:
    """How far a product of two vectors of integers can be off that are at most so long.

    Rounding moves each by half a step in every dimension, and the arithmetic before it by less than a fiftieth.
    """
    moved = 0.52 * np.sqrt(dims)
    return 2 * INTEGER_ONE * length * moved + moved * moved
