"""The CPU loops of the maps with exact zeros: sparsemax, 1.5-entmax and entmax.

All three search a threshold tau. Only keys within 1/(alpha-1) of the top can be in the support;
they are gathered once, and the search runs over them alone. Newton's method on the q-norm of
what exceeds tau, q = 1/(alpha-1), is monotone because that norm is convex in tau.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnscope.normalizers._arithmetic import exp, log_one_minus
from attnscope.normalizers._kernels import BLOCK, center, compiled, exponentials, helper, multiply, seen_row

_NEWTON_STEPS = 64


@helper
def _sum(row: Any) -> Any:
    total = 0.0
    for first in range(0, row.size, BLOCK):
        block = row[first : first + BLOCK]
        part = row.dtype.type(0)
        for j in range(block.size):
            part += block[j]
        total += part
    return total


@helper
def _candidates(row: Any, slope: Any, buffer: Any) -> Any:
    """Write slope * x of the entries above -1 to the buffer; only they can be in the support."""
    count = 0
    floor = row.dtype.type(-1)
    for j in range(row.size):
        value = row[j] * slope
        buffer[count] = value
        count += value > floor
    return count


@compiled
def sparsemax(z: Any, visible: Any, index: Any, scale: Any, out: Any, start: int, stop: int) -> None:
    """w = max(c z - tau, 0), tau by Newton's method from c max z - 1, exact when the support stays."""
    zero = out.dtype.type(0)
    buffer = np.empty(out.shape[1] + 1, out.dtype)
    for r in range(start, stop):
        row = out[r]
        if not center(z[r], seen_row(visible, index, r), scale[r], row)[0]:
            continue
        count = _candidates(row, out.dtype.type(1), buffer)
        tau = -1.0
        solved = 0
        while True:  # ends: the support only shrinks, and tau is exact once it does not
            total = 0.0
            kept = 0
            for j in range(count):
                value = buffer[j]
                buffer[kept] = value
                inside = value > tau
                kept += inside
                total += value if inside else 0.0
            if kept == solved:
                break
            tau = (total - 1.0) / kept
            solved = kept
            count = kept
        level = out.dtype.type(tau)
        for j in range(row.size):
            value = row[j] - level
            row[j] = value if value > zero else zero


@compiled
def entmax15(z: Any, visible: Any, index: Any, scale: Any, out: Any, start: int, stop: int) -> None:
    """w = max(c z / 2 - tau, 0)^2; tau by Newton's method on the 2-norm, which is convex in tau."""
    zero = out.dtype.type(0)
    half = out.dtype.type(0.5)
    tolerance = 1e-5 if out.itemsize == 4 else 1e-9
    buffer = np.empty(out.shape[1] + 1, out.dtype)
    for r in range(start, stop):
        row = out[r]
        if not center(z[r], seen_row(visible, index, r), scale[r], row)[0]:
            continue
        count = _candidates(row, half, buffer)
        tau = -1.0
        for _ in range(_NEWTON_STEPS):
            squares = 0.0
            total = 0.0
            kept = 0
            for j in range(count):
                value = buffer[j]
                buffer[kept] = value
                above = value - tau
                inside = above > 0.0
                kept += inside
                above = above if inside else 0.0
                total += above
                squares += above * above
            count = kept
            tau += (squares - np.sqrt(squares)) / total
            if abs(squares - 1.0) < tolerance:
                break
        level = out.dtype.type(tau)
        for j in range(row.size):
            value = row[j] * half - level
            value = value if value > zero else zero
            row[j] = value * value


@helper
def _power_sums(buffer: Any, count: Any, step: Any, exponent: Any) -> Any:
    """Sums of y^q and y^(q-1), y = 1 - delta - step on the entries where that is positive."""
    one = buffer.dtype.type(1)
    zero = buffer.dtype.type(0)
    totals = 0.0
    slopes = 0.0
    for first in range(0, count, BLOCK):
        block = buffer[first : min(first + BLOCK, count)]
        total = zero
        slope = zero
        for j in range(block.size):
            delta = block[j] + step
            inside = delta < one
            safe = delta if inside else zero
            power = exp((exponent - one) * log_one_minus(safe))
            power = power if inside else zero
            slope += power
            total += power * (one - safe)
        totals += total
        slopes += slope
    return totals, slopes


@compiled
def entmax(z: Any, visible: Any, index: Any, scale: Any, alpha: Any, out: Any, start: int, stop: int) -> None:
    """w = max((alpha-1) c z - tau, 0)^q, q = 1/(alpha-1), tau by Newton's method on the q-norm.

    Works with delta = 1 - ((alpha-1) c z - tau): ln w = q ln(1 - delta) keeps its digits however
    close alpha is to 1. At alpha = 1 it is softmax.
    """
    one = out.dtype.type(1)
    zero = out.dtype.type(0)
    tolerance = 1e-4 if out.itemsize == 4 else 1e-9
    buffer = np.empty(out.shape[1] + 1, out.dtype)
    for r in range(start, stop):
        row = out[r]
        if not center(z[r], seen_row(visible, index, r), scale[r], row)[0]:
            continue
        beta = alpha[r] - one
        if beta <= zero:
            multiply(row, out.dtype.type(1.0 / exponentials(row, zero)))
            continue
        exponent = one / beta
        count = _candidates(row, beta, buffer)
        for j in range(count):
            buffer[j] = -buffer[j]
        step = 0.0
        for _ in range(_NEWTON_STEPS):
            total, slope = _power_sums(buffer, count, out.dtype.type(step), exponent)
            step += (total - total ** (1.0 - float(beta))) / slope
            if abs(total - 1.0) < tolerance:
                break
        shift = out.dtype.type(step)
        for j in range(row.size):
            delta = shift - row[j] * beta
            inside = delta < one
            value = exp(exponent * log_one_minus(delta if inside else zero))
            row[j] = value if inside else zero
        multiply(row, out.dtype.type(1.0 / _sum(row)))
