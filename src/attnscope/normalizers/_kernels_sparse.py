"""The CPU loops of the maps with exact zeros: sparsemax, 1.5-entmax and entmax.

All three search the threshold tau above which a key has weight, and hardly touch what lies below it:

1. a row is folded sixteenfold to the maxima of its lanes, the keys l, l + W, l + 2 W, ... with W = n // 16;
2. the threshold of the lanes' maxima alone is a lower bound of tau, as leaving keys out only lowers it;
3. the keys above that bound, the candidates, are gathered from the few lanes that have one;
4. tau is found over the candidates, the row is set to zero, and their weights are put in place.

Steps 1 and 4 run at the speed of memory, and 2 and 3 see a few dozen numbers. Newton's method on
the q-norm of what exceeds tau, q = 1/(alpha-1), climbs to tau without overshooting because that norm is
convex and falls with tau.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnscope._numerics import exp, helper, largest, log_one_minus, loop
from attnscope.normalizers._kernels import BLOCK, center, exponentials, multiply, seen_row

_FOLDS = 16
_NEWTON_STEPS = 64
# How far below the lanes' threshold candidates begin: more than the rounding error of the sums it is computed from.
_SLACK = 1e-5
# Thousands of candidates have weights so small that float32 cannot place tau among them: float64 does.
_MANY = 4096


@helper
def _maxima_of_quarters(row: Any, size: Any, target: Any) -> Any:
    """target[j] = the largest of row[j], row[j + size], row[j + 2 size], row[j + 3 size]; returns their sum."""
    a, b, c, d = row[:size], row[size : 2 * size], row[2 * size : 3 * size], row[3 * size : 4 * size]
    target = target[:size]
    total = row.dtype.type(0)
    for j in range(target.size):
        low, high = a[j], b[j]
        first = low if low > high else high
        total += low + high
        low, high = c[j], d[j]
        second = low if low > high else high
        total += low + high
        target[j] = first if first > second else second
    return total


@helper
def _fold(row: Any, quarters: Any, lanes: Any) -> Any:
    """Fill `lanes` with the maxima of the lanes, then the keys that fill none; returns the sum of the row.

    A comparison passes NaN over, but the sum does not.
    """
    width = row.size // _FOLDS
    total = _maxima_of_quarters(row, 4 * width, quarters)
    _maxima_of_quarters(quarters, width, lanes)
    for j in range(_FOLDS * width, row.size):
        lanes[j - (_FOLDS - 1) * width] = row[j]
        total += row[j]
    return total


@helper
def _open_row(source: Any, seen: Any, scale: Any, row: Any, quarters: Any, lanes: Any) -> Any:
    """The row to work on, its top and its scale, with its lanes filled; a top of -inf if it is finished already.

    An ordinary row is worked on where it is; one with masked keys, a scale that turns it around, or a
    number that is not finite is centered in the result first.
    """
    if seen.size == 0 and scale > 0:
        total = _fold(source, quarters, lanes)
        top = largest(lanes)
        if total == total and -np.inf < top < np.inf:
            return source, top, scale
    if not center(source, seen, scale, row)[0]:
        return row, row.dtype.type(-np.inf), scale
    _fold(row, quarters, lanes)
    return row, row.dtype.type(0), row.dtype.type(1)


@helper
def _shift(values: Any, top: Any, scale: Any) -> None:
    for j in range(values.size):
        values[j] = (values[j] - top) * scale


@helper
def _gather(row: Any, lanes: Any, top: Any, scale: Any, level: Any, hits: Any, places: Any, values: Any) -> Any:
    """Write x = scale (z - top) of the keys above `level`, and where they are; returns how many.

    `lanes` has been shifted and scaled already.
    """
    width = row.size // _FOLDS
    gathered = 0
    for lane in range(width):
        hits[gathered] = lane
        gathered += lanes[lane] > level
    count = 0
    for hit in range(gathered):
        for j in range(hits[hit], _FOLDS * width, width):
            value = (row[j] - top) * scale
            places[count] = j
            values[count] = value
            count += value > level
    for j in range(_FOLDS * width, row.size):
        value = (row[j] - top) * scale
        places[count] = j
        values[count] = value
        count += value > level
    return count


@helper
def _place(weights: Any, places: Any, row: Any) -> None:
    zero = row.dtype.type(0)
    for j in range(row.size):
        row[j] = zero
    for j in range(weights.size):
        row[places[j]] = weights[j]


@helper
def _sparsemax_threshold(values: Any, tau: Any) -> Any:
    """tau with sum max(x - tau, 0) = 1, from a lower bound: exact once the support stays."""
    solved = 0
    while True:  # ends: the support only shrinks
        total = 0.0
        remaining = 0
        for j in range(values.size):
            value = float(values[j])
            inside = value > tau
            remaining += inside
            total += value if inside else 0.0
        if remaining == solved or remaining == 0:
            return tau
        tau = (total - 1.0) / remaining
        solved = remaining


@loop
def sparsemax(z: Any, visible: Any, index: Any, scale: Any, out: Any, start: int, stop: int) -> None:
    """w = max(c z - tau, 0), tau by Newton's method from c max z - 1."""
    size = out.shape[1]
    quarters, lanes = np.empty(size, out.dtype), np.empty(size // _FOLDS + size % _FOLDS, out.dtype)
    hits, places, values = np.empty(size + 1, np.int64), np.empty(size + 1, np.int64), np.empty(size + 1, out.dtype)
    for r in range(start, stop):
        row, top, factor = _open_row(z[r], seen_row(visible, index, r), scale[r], out[r], quarters, lanes)
        if top == -np.inf:
            continue
        _shift(lanes, top, factor)
        level = _sparsemax_threshold(lanes, -1.0) - _SLACK
        count = _gather(row, lanes, top, factor, out.dtype.type(level), hits, places, values)
        tau = _sparsemax_threshold(values[:count], level)
        for j in range(count):
            value = float(values[j]) - tau
            values[j] = value if value > 0.0 else 0.0
        _place(values[:count], places, out[r])


@helper
def _entmax15_threshold(values: Any, tau: Any, tolerance: Any) -> Any:
    """tau with sum max(x - tau, 0)^2 = 1, by Newton's method on the 2-norm."""
    for _ in range(_NEWTON_STEPS):
        squares = 0.0
        total = 0.0
        for j in range(values.size):
            above = float(values[j]) - tau
            above = above if above > 0.0 else 0.0
            total += above
            squares += above * above
        if total == 0.0:
            return tau
        tau += (squares - np.sqrt(squares)) / total
        if abs(squares - 1.0) < tolerance:
            break
    return tau


@loop
def entmax15(z: Any, visible: Any, index: Any, scale: Any, out: Any, start: int, stop: int) -> None:
    """w = max(c z / 2 - tau, 0)^2."""
    size = out.shape[1]
    half = out.dtype.type(0.5)
    tolerance = 1e-5 if out.itemsize == 4 else 1e-9
    quarters, lanes = np.empty(size, out.dtype), np.empty(size // _FOLDS + size % _FOLDS, out.dtype)
    hits, places, values = np.empty(size + 1, np.int64), np.empty(size + 1, np.int64), np.empty(size + 1, out.dtype)
    for r in range(start, stop):
        row, top, factor = _open_row(z[r], seen_row(visible, index, r), scale[r], out[r], quarters, lanes)
        if top == -np.inf:
            continue
        factor *= half
        _shift(lanes, top, factor)
        level = _entmax15_threshold(lanes, -1.0, 1e-2) - _SLACK
        count = _gather(row, lanes, top, factor, out.dtype.type(level), hits, places, values)
        tau = _entmax15_threshold(values[:count], level, tolerance)
        for j in range(count):
            value = float(values[j]) - tau
            values[j] = value * value if value > 0.0 else 0.0
        _place(values[:count], places, out[r])


@helper
def _power_sums(values: Any, step: Any, exponent: Any) -> Any:
    """Sums of y^q and y^(q-1), y = 1 + x - step on the entries where that is positive."""
    one = values.dtype.type(1)
    zero = values.dtype.type(0)
    totals = 0.0
    slopes = 0.0
    for first in range(0, values.size, BLOCK):
        block = values[first : min(first + BLOCK, values.size)]
        total = zero
        slope = zero
        for j in range(block.size):
            delta = step - block[j]
            inside = delta < one
            safe = delta if inside else zero
            power = exp((exponent - one) * log_one_minus(safe))
            power = power if inside else zero
            slope += power
            total += power * (one - safe)
        totals += total
        slopes += slope
    return totals, slopes


@helper
def _entmax_step(values: Any, step: Any, beta: Any, exponent: Any, tolerance: Any) -> Any:
    """step = tau + 1 with sum max(x - tau, 0)^q = 1, by Newton's method on the q-norm."""
    for _ in range(_NEWTON_STEPS):
        total, slope = _power_sums(values, values.dtype.type(step), exponent)
        if slope == 0.0:
            return step
        step += (total - total ** (1.0 - float(beta))) / slope
        if abs(total - 1.0) < tolerance:
            break
    return step


@helper
def _powers(values: Any, step: Any, exponent: Any) -> Any:
    """Replace x by y^q and return the sum."""
    one = values.dtype.type(1)
    zero = values.dtype.type(0)
    totals = 0.0
    for first in range(0, values.size, BLOCK):
        block = values[first : min(first + BLOCK, values.size)]
        total = zero
        for j in range(block.size):
            delta = step - block[j]
            inside = delta < one
            power = exp(exponent * log_one_minus(delta if inside else zero))
            power = power if inside else zero
            block[j] = power
            total += power
        totals += total
    return totals


@loop
def entmax(z: Any, visible: Any, index: Any, scale: Any, alpha: Any, out: Any, start: int, stop: int) -> None:
    """w = max((alpha-1) c z - tau, 0)^q, q = 1/(alpha-1).

    Works with delta = 1 - ((alpha-1) c z - tau): ln w = q ln(1 - delta) keeps its digits however
    close alpha is to 1. At alpha = 1 it is softmax.
    """
    size = out.shape[1]
    one = out.dtype.type(1)
    zero = out.dtype.type(0)
    tolerance = 1e-4 if out.itemsize == 4 else 1e-9
    quarters, lanes = np.empty(size, out.dtype), np.empty(size // _FOLDS + size % _FOLDS, out.dtype)
    hits, places, values = np.empty(size + 1, np.int64), np.empty(size + 1, np.int64), np.empty(size + 1, out.dtype)
    for r in range(start, stop):
        seen = seen_row(visible, index, r)
        beta = alpha[r] - one
        if beta <= zero:
            if center(z[r], seen, scale[r], out[r])[0]:
                multiply(out[r], out.dtype.type(1.0 / exponentials(out[r], zero)))
            continue
        row, top, factor = _open_row(z[r], seen, scale[r], out[r], quarters, lanes)
        if top == -np.inf:
            continue
        factor *= beta
        exponent = one / beta
        _shift(lanes, top, factor)
        step = max(_entmax_step(lanes, 0.0, beta, exponent, 1e-2) - _SLACK, 0.0)
        count = _gather(row, lanes, top, factor, out.dtype.type(step - 1.0), hits, places, values)
        if count > _MANY:
            exact = np.empty(count, np.float64)
            for j in range(count):
                exact[j] = (float(row[places[j]]) - float(top)) * float(factor)
            step = _entmax_step(exact, step, float(beta), 1.0 / float(beta), 1e-9)
            total = _powers(exact, step, 1.0 / float(beta))
            for j in range(count):
                values[j] = exact[j] / total
            _place(values[:count], places, out[r])
            continue
        candidates = values[:count]
        step = _entmax_step(candidates, step, beta, exponent, tolerance)
        total = _powers(candidates, out.dtype.type(step), exponent)
        multiply(candidates, out.dtype.type(1.0 / total))
        _place(candidates, places, out[r])
