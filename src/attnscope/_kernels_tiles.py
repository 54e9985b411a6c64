"""Sums of products of a few rows with some columns, held in registers: the innermost loop of measuring.

A compiler that is given the loop over columns keeps its sums in memory and reaches half of what a core can do. Here
the sums of up to six rows with sixteen columns (eight in float64) are variables of the intermediate code, half of the
columns wide, so that every number that is read serves several multiplications. The columns are in general the keys of a
panel.

Numbers are float32, float64, or pairs of 16-bit integers in one 32-bit word, whose sums are 32-bit integers: two
products for the time of one, where a bounded error is enough to pass over most of the columns. x86 has an instruction
for these pairs that the compiler does not find by itself; the rest of the code names no instruction of any one
processor.

What becomes of the sums: `store` writes them, `most` keeps each key's largest, and `above` only says whether any is
above a cut. They begin with nothing, or with a number of each row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

PANEL = 16  # keys of a panel
WIDE = 8  # columns of a tile in float64
_PARTS = 2
_INT16, _INT32 = ir.IntType(16), ir.IntType(32)
_FUSED = ("contract",)
_Sums = list[list[Any]]
_Begin = Callable[..., Any]


@dataclass(frozen=True)
class Lanes:
    """Vectors of one type of number."""

    number: Any
    count: int

    @property
    def vector(self) -> Any:
        return ir.VectorType(self.number, self.count)

    def at(self, builder: Any, pointer: Any, place: Any) -> Any:
        """The address of a vector within an array of numbers."""
        return builder.bitcast(builder.gep(pointer, [place]), self.vector.as_pointer())

    def load(self, builder: Any, pointer: Any, place: Any) -> Any:
        return builder.load(self.at(builder, pointer, place), align=4)

    def everywhere(self, builder: Any, value: Any) -> Any:
        """One number in all lanes."""
        undefined = ir.Constant(self.vector, ir.Undefined)
        first = builder.insert_element(undefined, value, ir.Constant(_INT32, 0))
        return builder.shuffle_vector(
            first, undefined, ir.Constant(ir.VectorType(_INT32, self.count), [0] * self.count)
        )

    def add_product(self, context: Any, builder: Any, total: Any, entry: Any, column: Any) -> Any:
        product = builder.fmul(entry, column, flags=_FUSED)
        return builder.fadd(total, product, flags=_FUSED)

    def above(self, builder: Any, value: Any, other: Any) -> Any:
        return builder.fcmp_ordered(">", value, other)


class _Pairs(Lanes):
    """Vectors of pairs of 16-bit integers; of 32-bit integers once they are multiplied."""

    def add_product(self, context: Any, builder: Any, total: Any, entry: Any, column: Any) -> Any:
        halves = ir.VectorType(_INT16, 2 * self.count)
        entry, column = builder.bitcast(entry, halves), builder.bitcast(column, halves)
        if self.count == 8 and "+avx2" in context.codegen().magic_tuple()[-1]:
            kind = ir.FunctionType(self.vector, [halves, halves])
            instruction = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx2.pmadd.wd")
            return builder.add(total, builder.call(instruction, [entry, column]))
        for half in range(2):
            places = ir.Constant(ir.VectorType(_INT32, self.count), list(range(half, 2 * self.count, 2)))
            factors = (
                builder.sext(builder.shuffle_vector(pairs, ir.Constant(halves, ir.Undefined), places), self.vector)
                for pairs in (entry, column)
            )
            total = builder.add(total, builder.mul(*factors))
        return total

    def above(self, builder: Any, value: Any, other: Any) -> Any:
        return builder.icmp_signed(">", value, other)


_SINGLE = Lanes(ir.FloatType(), PANEL // _PARTS)
_DOUBLE = Lanes(ir.DoubleType(), WIDE // _PARTS)
_PAIRED = _Pairs(_INT32, PANEL // _PARTS)


def _nothing(builder: Any, lanes: Lanes, start: Any, row: Any, part: Any) -> Any:
    return ir.Constant(lanes.vector, None)


def _of_rows(builder: Any, lanes: Lanes, start: Any, row: Any, part: Any) -> Any:
    return lanes.everywhere(builder, builder.load(builder.gep(start, [row])))


def _multiplied(
    context: Any, builder: Any, lanes: Lanes, rows: int, begin: _Begin, few: Any, stride: Any, lines: Any,
    line_stride: Any, count: Any, start: Any,
) -> _Sums:  # fmt: skip
    """Sums over `count` lines of the rows' entries times the line's columns, on top of what they begin with."""
    index = count.type
    parts = [ir.Constant(index, part * lanes.count) for part in range(_PARTS)]
    sums = [[cgutils.alloca_once(builder, lanes.vector) for _ in parts] for _ in range(rows)]
    for row, of_row in enumerate(sums):
        for place, part in zip(of_row, parts, strict=True):
            builder.store(begin(builder, lanes, start, ir.Constant(index, row), part), place)
    vectors = [builder.gep(few, [builder.mul(stride, ir.Constant(index, row))]) for row in range(rows)]
    with cgutils.for_range(builder, count) as loop:
        line = builder.gep(lines, [builder.mul(loop.index, line_stride)])
        columns = [lanes.load(builder, line, part) for part in parts]
        for of_row, vector in zip(sums, vectors, strict=True):
            entry = lanes.everywhere(builder, builder.load(builder.gep(vector, [loop.index])))
            for place, column in zip(of_row, columns, strict=True):
                builder.store(lanes.add_product(context, builder, builder.load(place), entry, column), place)
    return [[builder.load(place) for place in of_row] for of_row in sums]


def _write(builder: Any, lanes: Lanes, sums: _Sums, out: Any, stride: Any) -> Any:
    """out[row, column] = sum."""
    for row, of_row in enumerate(sums):
        line = builder.gep(out, [builder.mul(stride, ir.Constant(stride.type, row))])
        for part, value in enumerate(of_row):
            builder.store(value, lanes.at(builder, line, ir.Constant(stride.type, part * lanes.count)), align=4)
    return ir.Constant(_INT32, 0)


def _any_above(builder: Any, lanes: Lanes, sums: _Sums, cut: Any, stride: Any) -> Any:
    """Not zero if any sum is above the cut, one for all: a cut for each row would take longer."""
    values = [value for of_row in sums for value in of_row]
    while len(values) > 1:
        values.append(_larger(builder, lanes, values.pop(0), values.pop(0)))
    above = lanes.above(builder, values[0], lanes.everywhere(builder, builder.load(cut)))
    return builder.zext(builder.bitcast(above, ir.IntType(lanes.count)), _INT32)


def _maximum(builder: Any, lanes: Lanes, sums: _Sums, best: Any, stride: Any) -> Any:
    """best[column] = the largest of itself and the sums."""
    for part in range(_PARTS):
        place = lanes.at(builder, best, ir.Constant(stride.type, part * lanes.count))
        highest = builder.load(place, align=4)
        for of_row in sums:
            highest = _larger(builder, lanes, of_row[part], highest)
        builder.store(highest, place, align=4)
    return ir.Constant(_INT32, 0)


def _larger(builder: Any, lanes: Lanes, value: Any, other: Any) -> Any:
    return builder.select(lanes.above(builder, value, other), value, other)


def _tile(lanes: Lanes, rows: int, begin: _Begin, finish: Callable[..., Any]) -> Any:
    """An operation: (few, its stride, lines, their stride, their count, start, target, its stride) -> int32.

    Arrays are given by address, strides in numbers.
    """

    @intrinsic
    def tile(
        context: Any, few: Any, few_stride: Any, lines: Any, line_stride: Any, count: Any, start: Any, target: Any,
        target_stride: Any,
    ) -> Any:  # fmt: skip
        address, whole = types.uintp, types.intp
        signature = types.int32(address, whole, address, whole, whole, address, address, whole)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            few, few_stride, lines, line_stride, count, start, target, target_stride = arguments
            few, lines, start, target = (
                builder.inttoptr(place, lanes.number.as_pointer()) for place in (few, lines, start, target)
            )
            sums = _multiplied(context, builder, lanes, rows, begin, few, few_stride, lines, line_stride, count, start)
            return finish(builder, lanes, sums, target, target_stride)

        return signature, generate

    return tile


store_4, store_5, store_6 = (_tile(_SINGLE, rows, _nothing, _write) for rows in (4, 5, 6))
most_4, most_5, most_6 = (_tile(_SINGLE, rows, _of_rows, _maximum) for rows in (4, 5, 6))
above_6 = _tile(_PAIRED, 6, _nothing, _any_above)
store_wide = _tile(_DOUBLE, 6, _nothing, _write)
