"""Products of a few vectors with the sixteen of a panel, held in registers: the innermost loop of measuring.

A compiler that is given the loop over keys keeps its sums in memory and reaches half of what a core can do. Here the
sums of up to six vectors with sixteen keys are variables of the intermediate code, eight keys wide, so that every
number that is read serves several multiplications. The code names no instruction of any one processor.

What becomes of the sums: `store` writes them, `most` keeps each key's largest, and `above` only says whether any is
above its row's cut. They begin with nothing, with a number of each row, or with a number of each key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

PANEL = 16  # keys of a panel
_LANES = 8
_FLOAT, _INT32 = ir.FloatType(), ir.IntType(32)
_VECTOR = ir.VectorType(_FLOAT, _LANES)
_FUSED = ("contract",)
_Sums = list[list[Any]]
_Begin = Callable[..., Any]


def _at(builder: Any, pointer: Any, place: Any) -> Any:
    """The address of a vector within an array of float32."""
    return builder.bitcast(builder.gep(pointer, [place]), _VECTOR.as_pointer())


def _everywhere(builder: Any, value: Any) -> Any:
    """One number in all lanes."""
    undefined = ir.Constant(_VECTOR, ir.Undefined)
    first = builder.insert_element(undefined, value, ir.Constant(_INT32, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(_INT32, _LANES), [0] * _LANES))


def _nothing(builder: Any, start: Any, row: Any, part: Any) -> Any:
    return ir.Constant(_VECTOR, [0.0] * _LANES)


def _of_keys(builder: Any, start: Any, row: Any, part: Any) -> Any:
    return builder.load(_at(builder, start, part), align=4)


def _of_rows(builder: Any, start: Any, row: Any, part: Any) -> Any:
    return _everywhere(builder, builder.load(builder.gep(start, [row])))


def _multiplied(
    builder: Any, rows: int, begin: _Begin, few: Any, stride: Any, panel: Any, dims: Any, start: Any
) -> _Sums:
    """The sums of each row with the panel's keys, on top of what they begin with."""
    index = dims.type
    parts = [ir.Constant(index, lane) for lane in range(0, PANEL, _LANES)]
    sums = [[cgutils.alloca_once(builder, _VECTOR) for _ in parts] for _ in range(rows)]
    for row, of_row in enumerate(sums):
        for place, part in zip(of_row, parts, strict=True):
            builder.store(begin(builder, start, ir.Constant(index, row), part), place)
    vectors = [builder.gep(few, [builder.mul(stride, ir.Constant(index, row))]) for row in range(rows)]
    with cgutils.for_range(builder, dims) as loop:
        line = builder.gep(panel, [builder.mul(loop.index, ir.Constant(index, PANEL))])
        keys = [builder.load(_at(builder, line, part), align=4) for part in parts]
        for of_row, vector in zip(sums, vectors, strict=True):
            entry = _everywhere(builder, builder.load(builder.gep(vector, [loop.index])))
            for place, key in zip(of_row, keys, strict=True):
                product = builder.fmul(entry, key, flags=_FUSED)
                builder.store(builder.fadd(builder.load(place), product, flags=_FUSED), place)
    return [[builder.load(place) for place in of_row] for of_row in sums]


def _write(builder: Any, sums: _Sums, out: Any, stride: Any) -> Any:
    """out[row, key] = sum."""
    for row, of_row in enumerate(sums):
        line = builder.gep(out, [builder.mul(stride, ir.Constant(stride.type, row))])
        for part, value in enumerate(of_row):
            builder.store(value, _at(builder, line, ir.Constant(stride.type, part * _LANES)), align=4)
    return ir.Constant(_INT32, 0)


def _any_above(builder: Any, sums: _Sums, cuts: Any, stride: Any) -> Any:
    """Not zero if any sum is above its row's cut."""
    found = None
    for row, of_row in enumerate(sums):
        cut = _everywhere(builder, builder.load(builder.gep(cuts, [ir.Constant(stride.type, row)])))
        for value in of_row:
            above = builder.fcmp_ordered(">", value, cut)
            found = above if found is None else builder.or_(found, above)
    return builder.zext(builder.bitcast(found, ir.IntType(_LANES)), _INT32)


def _maximum(builder: Any, sums: _Sums, best: Any, stride: Any) -> Any:
    """best[key] = the largest of itself and the sums."""
    for part in range(PANEL // _LANES):
        place = _at(builder, best, ir.Constant(stride.type, part * _LANES))
        highest = builder.load(place, align=4)
        for of_row in sums:
            highest = builder.select(builder.fcmp_ordered(">", of_row[part], highest), of_row[part], highest)
        builder.store(highest, place, align=4)
    return ir.Constant(_INT32, 0)


def _tile(rows: int, begin: _Begin, finish: Callable[..., Any]) -> Any:
    """An operation on addresses: (few, stride of few, panel, dims, start, target, stride of target) -> int32."""

    @intrinsic
    def tile(
        context: Any, few: Any, few_stride: Any, panel: Any, dims: Any, start: Any, target: Any, target_stride: Any
    ) -> Any:
        address, count = types.uintp, types.intp
        signature = types.int32(address, count, address, count, address, address, count)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            few, few_stride, panel, dims, start, target, target_stride = arguments
            few, panel, start, target = (
                builder.inttoptr(place, _FLOAT.as_pointer()) for place in (few, panel, start, target)
            )
            sums = _multiplied(builder, rows, begin, few, few_stride, panel, dims, start)
            return finish(builder, sums, target, target_stride)

        return signature, generate

    return tile


store_4, store_5, store_6 = (_tile(rows, _nothing, _write) for rows in (4, 5, 6))
most_4, most_5, most_6 = (_tile(rows, _of_rows, _maximum) for rows in (4, 5, 6))
above_6 = _tile(6, _of_keys, _any_above)
