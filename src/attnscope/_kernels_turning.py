"""Eight numbers of each of eight vectors, turned in registers into eight lines with a number of each vector.

Products of many vectors want such lines. Turning number by number, by scattered reads or writes, takes longer than
computing the numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from attnscope._kernels_tiles import Lanes

EIGHT = 8
_SINGLES, _DOUBLES = Lanes(ir.FloatType(), EIGHT), Lanes(ir.DoubleType(), EIGHT)
_PLACES = ir.VectorType(ir.IntType(32), EIGHT)


def _turned(builder: Any, rows: list[Any]) -> list[Any]:
    """The columns of eight rows: ever smaller squares off the diagonal change places."""
    side = EIGHT // 2
    while side:
        left = [place if place // side % 2 == 0 else place - side + EIGHT for place in range(EIGHT)]
        right = [place + side if place // side % 2 == 0 else place + EIGHT for place in range(EIGHT)]
        for first in (place for place in range(EIGHT) if place // side % 2 == 0):
            pair = rows[first], rows[first + side]
            rows[first] = builder.shuffle_vector(*pair, ir.Constant(_PLACES, left))
            rows[first + side] = builder.shuffle_vector(*pair, ir.Constant(_PLACES, right))
        side //= 2
    return rows


def _operation(source: Lanes, target: Lanes, row: Callable[..., Any]) -> Any:
    """An operation: (vectors, their stride, shifts, factors, lines, their stride); addresses, and strides in numbers.

    `row` makes a vector of float32 of what one row holds; `target` is what becomes of the lines.
    """

    @intrinsic
    def turn(context: Any, vectors: Any, stride: Any, shifts: Any, factors: Any, lines: Any, line_stride: Any) -> Any:
        address, whole = types.uintp, types.intp

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            vectors, stride, shifts, factors, lines, line_stride = arguments
            places = (vectors, source), (shifts, _DOUBLES), (factors, _DOUBLES), (lines, target)
            vectors, shifts, factors, lines = (
                builder.inttoptr(place, lanes.number.as_pointer()) for place, lanes in places
            )
            at = [ir.Constant(stride.type, place) for place in range(EIGHT)]
            rows = [
                row(builder, source.load(builder, vectors, builder.mul(stride, j)), shifts, builder.gep(factors, [j]))
                for j in at
            ]
            for k, line in zip(at, _turned(builder, rows), strict=True):
                wide = line if target is _SINGLES else builder.fpext(line, target.vector)
                builder.store(wide, target.at(builder, lines, builder.mul(line_stride, k)), align=4)
            return context.get_dummy_value()

        return types.void(address, whole, address, address, address, whole), generate

    return turn


def _moved(builder: Any, numbers: Any, shifts: Any, factor: Any) -> Any:
    shift = _DOUBLES.load(builder, shifts, ir.Constant(ir.IntType(64), 0))
    by = _DOUBLES.everywhere(builder, builder.load(factor))
    return builder.fptrunc(builder.fmul(builder.fsub(numbers, shift), by), _SINGLES.vector)


def _same(builder: Any, numbers: Any, shifts: Any, factor: Any) -> Any:
    return numbers


# lines[k, j] = (vectors[j, k] - shifts[k]) factors[j], from float64 to float32.
turn_moved = _operation(_DOUBLES, _SINGLES, _moved)
# lines[k, j] = vectors[j, k], from float32 to float64; shifts and factors are not read.
turn_wide = _operation(_SINGLES, _DOUBLES, _same)
