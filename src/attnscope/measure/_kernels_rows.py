"""Compiled loop: the columns of `rows.parquet`. `measure.rows.row_columns` is its specification."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnscope._arithmetic import largest, log
from attnscope._compiling import helper, loop

_STEPS = 60
_CONVERGED = 2e-15
_NEARLY_CONVERGED = 1e-9  # the steps converge quadratically: the error after this one is below rounding
_ROUNDING = 1e-12  # a row sums to one up to rounding; only a real remainder (a sink) counts


@helper
def _weighted_logs(weights: Any) -> float:
    """Sum of alpha ln alpha; NaN if a weight is negative."""
    total = 0.0
    for j in range(weights.size):
        term = weights[j] * log(weights[j])
        term = term if weights[j] > 0 else 0.0
        total += term if weights[j] >= 0 else np.nan
    return total


@helper
def _secular_sums(eigenvalue: float, others: Any) -> tuple[float, float]:
    """Sums of alpha / (lam - alpha) and alpha / (lam - alpha)^2."""
    value = slope = 0.0
    for j in range(others.size):
        inverse = 1 / (eigenvalue - others[j])
        term = others[j] * inverse
        term = term if others[j] > 0 else 0.0
        value += term
        slope += term * inverse
    return value, slope


@helper
def _largest_eigenvalue(first: float, second: float, rest: float, left_over: float, others: Any) -> float:
    """The Jacobian norm: the steps of `attnscope._secular.largest_eigenvalue`, for one row."""
    if second == first:
        return first
    low = max(second, first * rest)
    high = max(min(first, 2 * first * rest), low)
    eigenvalue = (low + high) / 2
    for _ in range(_STEPS):
        terms, slopes = _secular_sums(eigenvalue, others)
        gap = first - eigenvalue
        value = first / gap - terms - left_over / eigenvalue
        slope = first / (gap * gap) + slopes + left_over / (eigenvalue * eigenvalue)
        if value > 0:
            high = eigenvalue
        else:
            low = eigenvalue
        step = 1 / (slope / value - 1 / gap + 1 / (eigenvalue - second))
        newton = eigenvalue - step
        by_newton = low < newton < high or abs(step) <= _CONVERGED * eigenvalue
        following = newton if by_newton else (low + high) / 2
        change = abs(following - eigenvalue)
        eigenvalue = following
        if by_newton and not change > _NEARLY_CONVERGED * min(first - eigenvalue, eigenvalue - second):
            break
        if not change > _CONVERGED * eigenvalue:
            break
    return eigenvalue


@loop
def row_columns(rows: Any, weights: Any, logits: Any, spans: Any, out: Any) -> None:
    """Fill the entries of some rows in `out`, the `columns.RowArrays` of all rows; rows without numbers are unchanged.

    weights, logits: (all rows, keys); spans: (all rows, 2) the first visible key and the end.
    """
    work = np.empty(weights.shape[1])
    for r in rows:
        first_key, end = spans[r, 0], spans[r, 1]
        length = end - first_key
        others, row_logits = work[:length], logits[r, first_key:end]
        for j in range(length):
            others[j] = weights[r, first_key + j]
        first = largest(others)
        if not first > -np.inf:  # nothing visible, or NaN
            continue
        lowest = -np.inf
        for j in range(length):
            lowest = -row_logits[j] if -row_logits[j] > lowest else lowest
        top = 0
        while others[top] != first:
            top += 1
        others[top] = 0.0
        second = largest(others)
        support = np.int64(first > 0)
        for j in range(length):
            support += np.int64(others[j] > 0)
        rest = squares = 0.0
        for j in range(length):
            rest += others[j]
            squares += others[j] * others[j]
        total = rest + first
        left_over = 1 - total if 1 - total > _ROUNDING else 0.0
        rest += left_over
        log_first = np.log1p(-rest) if first > 0.5 and total <= 1 + _ROUNDING else np.log(first)
        entropy = 0.0 - (_weighted_logs(others) + (first * log_first if first > 0 else 0.0))  # no -0
        out.entropy[r] = entropy
        out.entropy_ratio[r] = entropy / np.log(length) if length > 1 else np.nan
        out.max_weight[r] = first
        out.sink_weight[r] = weights[r, first_key]
        out.participation[r] = 1 / (squares + first * first)
        out.support[r] = support
        out.weight_sum[r] = total
        out.logit_range[r] = largest(row_logits) + lowest
        out.jacobian_norm[r] = _largest_eigenvalue(first, second, rest, left_over, others)
        out.jacobian_bound[r] = first if first <= 0.5 else 2 * first * rest
