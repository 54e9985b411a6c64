"""Compiled loops: how numba compiles them, and the functions that it vectorizes inside them.

`loop` compiles a function that Python calls, `helper` one that only loops call. Both relax the order of additions, so
that sums vectorize, but keep NaN and infinity, which stand for masked keys and broken rows. `rounded` keeps every
rounding, and `ordered` the order of operations too. What only loops call is inlined into them. Otherwise a process that
compiles a loop would run the functions as they were compiled on their own, and one that reads the loop from the cache
as they were compiled within it: other roundings.

Calls into the C library stop a loop from being vectorized. The exponential and the logarithm are therefore written
out: argument reduction through the exponent bits, then a truncated series whose remainder lies below the type's
rounding. None of these may be compiled with the "reassociate" flag: the reductions rely on the order of operations. NaN
passes through; an exponential below exp(-87) in float32, exp(-744) in float64, is 0.

The largest numbers of a row: floats are compared through integers in the same order. Halving the range of these
integers and counting finds the `count`-th largest in a few passes, which vectorize because no branch depends on the
numbers.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit, types
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.extending import overload

Function = TypeVar("Function", bound=Callable[..., Any])

_RELAXED = {"contract", "reassoc", "nsz", "arcp"}
_PACKAGE = Path(__file__).parent


def loop(function: Function) -> Function:
    """Compile on first use, without the interpreter lock, and cache the result on disk if possible."""
    compiled: Any = njit(fastmath=_RELAXED, error_model="numpy", nogil=True)(function)
    with suppress(RuntimeError):  # no folder for a cache: compile in every process
        compiled._cache = _SourceCache(function)
    return cast(Function, compiled)


def helper(function: Function) -> Function:
    """Compile a function that only loops call."""
    return cast(Function, njit(fastmath=_RELAXED, error_model="numpy", forceinline=True)(function))


def rounded(function: Function) -> Function:
    """The same with every product rounded before it is added: a b - a b is zero."""
    return cast(Function, njit(fastmath=_RELAXED - {"contract"}, error_model="numpy", forceinline=True)(function))


def ordered(function: Function) -> Function:
    """The same with operations in the order in which they are written."""
    return cast(Function, njit(fastmath={"contract"}, error_model="numpy", forceinline=True)(function))


class _SourceCache(FunctionCache):
    """numba's cache on disk, in files named by a digest of all source that a loop is compiled from.

    numba's own cache only checks the time and size of the loop's file, and keeps its file names when that changes: a
    constant from another file would go stale, as would everything if a process ended between writing index and data.
    Nor do its keys include the field names of named tuples, whose order determines the compiled code.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        digest = source_digest(Path(function.__code__.co_filename))
        self._cache_file = IndexDataCacheFile(self._cache_path, f"{self._impl.filename_base}-{digest[:16]}", digest)

    def save_overload(self, signature: Any, data: Any) -> None:
        """Write compiled code; if the disk is full, the next process compiles again."""
        with suppress(OSError):
            super().save_overload(signature, data)  # type: ignore[no-untyped-call]

    def _index_key(self, signature: Any, codegen: Any) -> Any:
        key = super()._index_key(signature, codegen)  # type: ignore[no-untyped-call]
        return key, _field_names(signature)


def _field_names(types: Any) -> tuple[Any, ...]:
    """The names of fields in the types of arguments, at any depth."""
    return tuple((getattr(one, "fields", None), _field_names(getattr(one, "types", ()))) for one in types)


@cache
def source_digest(file: Path) -> str:
    """SHA-256 of a file and of every file of the package that it imports, directly or through others."""
    found: set[Path] = set()
    waiting = [file]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += imported_files(path)
    digest = hashlib.sha256()
    for path in sorted(found):
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()


@cache
def imported_files(file: Path) -> list[Path]:
    """The files of the package that a file imports."""
    return [path for name in _imported_names(file) if (path := _file_of(name)) is not None]


def _imported_names(file: Path) -> Iterator[str]:
    """Names that may be modules: `from a import b` gives a and a.b."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:  # relative imports are banned by the linter
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _file_of(module: str) -> Path | None:
    """The file of a module of this package; None for anything else."""
    package, *parts = module.split(".")
    if package != __name__.partition(".")[0]:
        return None
    path = _PACKAGE.joinpath(*parts)
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


_LOG2_E = np.float32(1.4426950408889634)
# ln 2 in two parts; the first has so few bits that its product with an exponent is exact.
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)
_LN2 = np.float32(0.6931471805599453)
_SMALLEST = np.float32(-87.0)
# Adding 1.5 * 2^23 rounds a float32 to the nearest integer and leaves it in the lowest bits.
_ROUNDER = np.float32(12582912.0)
_LOG2_E_64 = 1.4426950408889634
_LN2_HIGH_64 = 6.93147180369123816490e-01
_LN2_LOW_64 = 1.90821492927058770002e-10
_SMALLEST_64 = -744.0
# Adding 1.5 * 2^52 does the same to a float64.
_ROUNDER_64 = 6755399441055744.0
_ROUNDER_BITS_64 = np.int64(0x4338000000000000 - 1023 - 64)
_EXPONENT_SHIFT_64 = np.int64(52)
_LOWERED = 2.0**-64
_SQRT_HALF_BITS = np.int32(0x3F3504F3)
_MANTISSA_BITS = np.int32(0x007FFFFF)
_EXPONENT_SHIFT = np.int32(23)
_SIGN_SHIFT = np.int32(31)
_LN2_64 = 0.6931471805599453
_SQRT_HALF_BITS_64 = np.int64(0x3FE6A09E667F3BCD)
_MANTISSA_BITS_64 = np.int64(0x000FFFFFFFFFFFFF)
_NEARLY_SUBNORMAL = 1e-290
_SCALED_UP = 2.0**80
# An integer below 2^52 put into these bits is that integer plus 2^52, as a float64.
_TWO_52_BITS = np.int64(0x4330000000000000)
_EXPONENT_BIAS_64 = 4503599627370496.0 + 2048.0
_BELOW_SIGN = np.int32(0x7FFFFFFF)
# The bits of -inf with those below the sign turned over.
_MINUS_INFINITY_ORDER = np.int32(-0x7F800001)
# The bits of _ROUNDER, less the bias of a float32's exponent.
_ROUNDER_BITS = np.int32(0x4B400000 - 127)


@ordered
def _exp32(x: Any) -> Any:
    """exp(x) for x <= 0: x = k ln 2 + r, |r| <= ln(2)/2, seven terms of the series in r."""
    clipped = _SMALLEST if x < _SMALLEST else x
    shifted = clipped * _LOG2_E + _ROUNDER
    k = shifted - _ROUNDER
    r = (clipped - k * _LN2_HIGH) - k * _LN2_LOW
    series = np.float32(1 / 5040)
    series = series * r + np.float32(1 / 720)
    series = series * r + np.float32(1 / 120)
    series = series * r + np.float32(1 / 24)
    series = series * r + np.float32(1 / 6)
    series = series * r + np.float32(0.5)
    series = series * r + np.float32(1.0)
    series = series * r + np.float32(1.0)
    exponent = np.int32(np.float32(shifted).view(np.int32) - _ROUNDER_BITS)
    power = np.int32(exponent << _EXPONENT_SHIFT).view(np.float32)
    return np.float32(0.0) if x < _SMALLEST else series * power


@ordered
def _exp64(x: Any) -> Any:
    """exp(x) for x <= 0, within a unit in the last place; subnormal results too."""
    clipped = _SMALLEST_64 if x < _SMALLEST_64 else x
    shifted = clipped * _LOG2_E_64 + _ROUNDER_64
    k = shifted - _ROUNDER_64
    r = (clipped - k * _LN2_HIGH_64) - k * _LN2_LOW_64
    series = 1 / 6227020800
    series = series * r + 1 / 479001600
    series = series * r + 1 / 39916800
    series = series * r + 1 / 3628800
    series = series * r + 1 / 362880
    series = series * r + 1 / 40320
    series = series * r + 1 / 5040
    series = series * r + 1 / 720
    series = series * r + 1 / 120
    series = series * r + 1 / 24
    series = series * r + 1 / 6
    series = series * r + 0.5
    series = series * r + 1.0
    series = series * r + 1.0
    # 2^(k + 64) is a normal number for every k that occurs.
    exponent = np.int64(np.float64(shifted).view(np.int64) - _ROUNDER_BITS_64)
    power = np.int64(exponent << _EXPONENT_SHIFT_64).view(np.float64)
    return 0.0 if x < _SMALLEST_64 else series * power * _LOWERED


@ordered
def _log32(y: Any) -> Any:
    """ln(y) for normal y > 0: y = 2^k m, m within sqrt(2) of 1, ln m = 2 artanh((m-1)/(m+1))."""
    bits = np.int32(np.float32(y).view(np.int32) - _SQRT_HALF_BITS)
    k = np.float32(np.int32(bits >> _EXPONENT_SHIFT))
    f = np.int32((bits & _MANTISSA_BITS) + _SQRT_HALF_BITS).view(np.float32) - np.float32(1.0)
    s = f / (f + np.float32(2.0))
    s2 = s * s
    series = np.float32(1 / 9)
    series = series * s2 + np.float32(1 / 7)
    series = series * s2 + np.float32(1 / 5)
    series = series * s2 + np.float32(1 / 3)
    return k * _LN2 + (s + s) * (series * s2 + np.float32(1.0))


@ordered
def _log64(y: Any) -> Any:
    """ln(y) for y > 0 in the same way; a subnormal y is scaled up first."""
    scaled = y * _SCALED_UP if y < _NEARLY_SUBNORMAL else y
    bits = np.float64(scaled).view(np.int64) - _SQRT_HALF_BITS_64
    biased = np.int64(((bits >> _EXPONENT_SHIFT_64) + np.int64(2048)) | _TWO_52_BITS)
    k = biased.view(np.float64) - _EXPONENT_BIAS_64 - (80.0 if y < _NEARLY_SUBNORMAL else 0.0)
    f = np.int64((bits & _MANTISSA_BITS_64) + _SQRT_HALF_BITS_64).view(np.float64) - 1.0
    s = f / (f + 2.0)
    s2 = s * s
    series = 1 / 23
    series = series * s2 + 1 / 21
    series = series * s2 + 1 / 19
    series = series * s2 + 1 / 17
    series = series * s2 + 1 / 15
    series = series * s2 + 1 / 13
    series = series * s2 + 1 / 11
    series = series * s2 + 1 / 9
    series = series * s2 + 1 / 7
    series = series * s2 + 1 / 5
    series = series * s2 + 1 / 3
    return k * _LN2_64 + (s + s) * (series * s2 + 1.0)


@ordered
def _log_one_minus32(delta: Any) -> Any:
    """ln(1 - delta) for 0 <= delta < 1, corrected for the rounding of 1 - delta."""
    y = np.float32(1.0) - delta
    lost = (np.float32(1.0) - y) - delta
    return _log32(y) + lost / y


@ordered
def _log_one_plus32(y: Any) -> Any:
    """ln(1 + y) for y >= 0, corrected for the rounding of 1 + y."""
    total = np.float32(1.0) + y
    return _log32(total) - ((total - np.float32(1.0)) - y) / total


@ordered
def _log_one_plus64(y: Any) -> Any:
    total = 1.0 + y
    return _log64(total) - ((total - 1.0) - y) / total


@helper
def _largest32(row: Any) -> Any:
    """The largest of a row that holds no NaN; -inf if it is empty.

    The bits of a float, those below the sign turned over if it is negative, are integers in the
    same order. A maximum of integers is vectorized; one of floats waits for each comparison.
    """
    top = _MINUS_INFINITY_ORDER
    bits = row.view(np.int32)
    for j in range(bits.size):
        order = np.int32(bits[j] ^ np.int32(np.int32(bits[j] >> _SIGN_SHIFT) & _BELOW_SIGN))
        top = order if order > top else top
    return np.int32(top ^ np.int32(np.int32(top >> _SIGN_SHIFT) & _BELOW_SIGN)).view(np.float32)


@helper
def _largest64(row: Any) -> Any:
    top = -np.inf
    for j in range(row.size):
        top = row[j] if row[j] > top else top
    return top


def exp(x: Any) -> Any:
    """exp(x) for x <= 0, at the precision of x."""
    return np.exp(x)


def log(y: Any) -> Any:
    """ln(y) for y > 0, at the precision of y."""
    return np.log(y)


def log_one_minus(delta: Any) -> Any:
    """ln(1 - delta) for 0 <= delta < 1, accurate where delta is small."""
    return np.log1p(-delta)


def log_one_plus(y: Any) -> Any:
    """ln(1 + y) for 0 <= y <= 1, accurate where y is small."""
    return np.log1p(y)


def largest(row: Any) -> Any:
    """The largest number of a row that holds no NaN."""
    return row.max(initial=-np.inf)


@overload(exp, strict=False, jit_options={"error_model": "numpy"})
def _exp(x: Any) -> Callable[[Any], Any]:
    if x == types.float32:
        return lambda x: _exp32(x)
    return lambda x: _exp64(x)


@overload(log, strict=False, jit_options={"error_model": "numpy"})
def _log(y: Any) -> Callable[[Any], Any]:
    if y == types.float32:
        return lambda y: _log32(y)
    return lambda y: _log64(y)


@overload(log_one_minus, strict=False, jit_options={"error_model": "numpy"})
def _log_one_minus(delta: Any) -> Callable[[Any], Any]:
    if delta == types.float32:
        return lambda delta: _log_one_minus32(delta)
    return lambda delta: np.log1p(-delta)


@overload(log_one_plus, strict=False, jit_options={"error_model": "numpy"})
def _log_one_plus(y: Any) -> Callable[[Any], Any]:
    if y == types.float32:
        return lambda y: _log_one_plus32(y)
    return lambda y: _log_one_plus64(y)


@overload(largest, strict=False)
def _largest(row: Any) -> Callable[[Any], Any]:
    if row.dtype == types.float32:
        return lambda row: _largest32(row)
    return lambda row: _largest64(row)


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
