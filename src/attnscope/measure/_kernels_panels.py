"""Compiled loops: a group's vectors in the layout that products want.

Vectors are packed in panels of `PANEL` keys, one line of keys for each dimension.

Where it is enough to know that products are not above a cut, vectors of length 1 are rounded to 16-bit integers, which
multiply at twice the speed.
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
    """An operation: a line of words (the last) from the lines of two dimensions; all are addresses."""

    @intrinsic
    def join(context: Any, low: Any, high: Any, out: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            start = ir.Constant(ir.IntType(64), 0)
            halves = []
            for line in arguments[:2]:
                value = _LINE.load(builder, builder.inttoptr(line, _LINE.number.as_pointer()), start)
                value = builder.fmul(value, ir.Constant(_LINE.vector, [float(INTEGER_ONE)] * PANEL))
                value = builder.fadd(value, ir.Constant(_LINE.vector, [_MIDDLE + 0.5] * PANEL))
                halves.append(builder.fptosi(value, _INTEGERS.vector))
            low, high = halves
            both = builder.or_(low, builder.shl(high, ir.Constant(_INTEGERS.vector, [16] * PANEL)))
            # Takes the middle from both halves, as the highest bit of each stands for it.
            both = builder.xor(both, ir.Constant(_INTEGERS.vector, [(_MIDDLE << 16) + _MIDDLE] * PANEL))
            out = builder.inttoptr(arguments[2], _INTEGERS.number.as_pointer())
            builder.store(both, _INTEGERS.at(builder, out, start), align=4)
            return context.get_dummy_value()

        return types.void(types.uintp, types.uintp, types.uintp), generate

    return join


_join = _joining()


@helper
def panels_to_integers(panels: Any, out: Any) -> None:
    """Panels of vectors at most 1 long in 16-bit integers, two dimensions to a word."""
    zeros = np.zeros(PANEL, np.float32)
    dims = panels.shape[1] // PANEL
    for p in range(panels.shape[0]):
        source, target = panels[p].ctypes.data, out[p].ctypes.data
        for k in range(0, dims, 2):
            low = source + k * PANEL * 4
            high = low + PANEL * 4 if k + 1 < dims else zeros.ctypes.data
            _join(low, high, target + k // 2 * PANEL * 4)


@helper
def to_integers(vector: Any, out: Any) -> None:
    """The same for one vector."""
    one, middle = np.float32(INTEGER_ONE), np.float32(_MIDDLE + 0.5)
    integers = out.view(np.int16)
    integers[-1] = 0
    for k in range(vector.size):
        integers[k] = np.int32(vector[k] * one + middle) - _MIDDLE


@helper
def integer_error(dims: int) -> float:
    """How far a product of two such vectors can be off.

    Rounding moves each by half a step in every dimension, and the arithmetic before it by less than a hundredth.
    """
    moved = 0.51 * np.sqrt(dims)
    return 2 * INTEGER_ONE * moved + moved * moved
