"""Compiled loop: the columns of `rows.parquet`, one row at a time. `measure.rows.row_columns` is its specification."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from attnscope.normalizers._arithmetic import largest
from attnscope.normalizers._kernels import compiled, helper

COLUMNS = (
    "length",
    "entropy",
    "entropy_ratio",
    "max_weight",
    "sink_weight",
    "participation",
    "support",
    "weight_sum",
    "logit_range",
    "jacobian_norm",
    "jacobian_bound",
)
_STEPS = 60
_CONVERGED = 2e-15
_NEAR = 1e-9
_ROUNDING = 1e-12  # a row sums to one up to rounding; only a real remainder (a sink) counts
_LN2 = 0.6931471805599453
_SQRT_HALF_BITS = np.int64(0x3FE6A09E667F3BCD)
_MANTISSA_BITS = np.int64(0x000FFFFFFFFFFFFF)
_SMALL = 1e-290
_LIFT = 2.0**80
# An integer below 2^52 put into these bits is that integer plus 2^52, as a float64.
_TWO_52_BITS = np.int64(0x4330000000000000)
_BIAS = 4503599627370496.0 + 2048.0


@njit(fastmath={"contract"}, error_model="numpy")
def _log(y: Any) -> Any:
    """ln(y) for y > 0, written so that it vectorizes: y = 2^k m, m within sqrt 2 of 1, ln m = 2 artanh((m-1)/(m+1))."""
    lifted = y * _LIFT if y < _SMALL else y
    bits = np.float64(lifted).view(np.int64) - _SQRT_HALF_BITS
    exponent = np.int64(((bits >> np.int64(52)) + np.int64(2048)) | _TWO_52_BITS).view(np.float64) - _BIAS
    exponent = exponent - 80.0 if y < _SMALL else exponent
    f = np.int64((bits & _MANTISSA_BITS) + _SQRT_HALF_BITS).view(np.float64) - 1.0
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
    return exponent * _LN2 + (s + s) * (series * s2 + 1.0)


@helper
def _weighted_logs(others: Any) -> float:
    """Sum of a ln a."""
    total = 0.0
    for j in range(others.size):
        value = others[j]
        term = value * _log(value)
        total += term if value > 0 else 0.0
    return total


@helper
def _secular(lam: float, others: Any) -> tuple[float, float]:
    """Sums of a / (lam - a) and a / (lam - a)^2."""
    value = slope = 0.0
    for j in range(others.size):
        inverse = 1 / (lam - others[j])
        term = others[j] * inverse
        term = term if others[j] > 0 else 0.0
        value += term
        slope += term * inverse
    return value, slope


@helper
def _largest_eigenvalue(first: float, second: float, rest: float, left_over: float, others: Any) -> float:
    """The steps of `_secular.largest_eigenvalue`, for one row."""
    low = max(second, first * rest)
    high = max(min(first, 2 * first * rest), low)
    if second == first:
        return first
    lam = (low + high) / 2
    for _ in range(_STEPS):
        terms, slopes = _secular(lam, others)
        gap = first - lam
        value = first / gap - terms - left_over / lam
        slope = first / (gap * gap) + slopes + left_over / (lam * lam)
        if value > 0:
            high = lam
        else:
            low = lam
        step = 1 / (slope / value - 1 / gap + 1 / (lam - second))
        newton = lam - step
        following = newton if low < newton < high or abs(step) <= _CONVERGED * lam else (low + high) / 2
        change = abs(following - lam)
        lam = following
        # Steps converge quadratically: what is left after this one is below rounding.
        if not change > _NEAR * min(first - lam, lam - second):
            break
        if not change > _CONVERGED * lam:
            break
    return lam


@compiled
def spread(rows: Any, weights: Any, logits: Any, masks: Any, mask_of: Any, spans: Any, out: Any) -> None:
    """Fill `out` (columns, all rows) for some rows; spans: of each mask the first key, the end, how many."""
    others, own_logits = np.empty(weights.shape[1]), np.empty(weights.shape[1])
    for r in rows:
        first_seen, last_seen, length = spans[mask_of[r]]
        row, logit = others[:length], logits[r, first_seen:last_seen]
        if last_seen - first_seen == length:
            row[:] = weights[r, first_seen:last_seen]
        else:
            seen = masks[mask_of[r]]
            logit = own_logits[:length]
            place = 0
            for j in range(first_seen, last_seen):
                if seen[j]:
                    row[place], logit[place] = weights[r, j], logits[r, j]
                    place += 1
        first = largest(row)
        result = out[:, r]
        if not first > -np.inf:  # nothing visible, or no numbers
            result[:] = np.nan
            result[0] = length
            continue
        highest, lowest = largest(logit), -np.inf
        for j in range(length):
            lowest = -logit[j] if -logit[j] > lowest else lowest
        place = 0
        while row[place] != first:
            place += 1
        row[place] = 0.0
        rest = squares = 0.0
        second = largest(row)
        support = np.int64(first > 0)
        for j in range(length):
            support += np.int64(row[j] > 0)
        for j in range(length):
            rest += row[j]
            squares += row[j] * row[j]
        total = rest + first
        left_over = 1 - total
        left_over = left_over if left_over > _ROUNDING else 0.0
        remaining = rest + left_over
        own = np.log1p(-remaining) if first > 0.5 and total <= 1 + _ROUNDING else np.log(first)
        entropy = 0.0 - (_weighted_logs(row) + (first * own if first > 0 else 0.0))  # no -0
        result[0] = length
        result[1] = entropy
        result[2] = entropy / np.log(length) if length > 1 else np.nan
        result[3] = first
        result[4] = weights[r, first_seen]
        result[5] = 1 / (squares + first * first)
        result[6] = support
        result[7] = total
        result[8] = highest + lowest
        result[9] = _largest_eigenvalue(first, second, remaining, left_over, row)
        result[10] = first if first <= 0.5 else 2 * first * remaining
