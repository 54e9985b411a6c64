"""Compiled loops: distances between vectors, the nested top sets of rows, and the columns of `rows.parquet`.

Only membership matters, so no row is sorted: one selection gives the largest set, a selection within it the next
smaller one, and so on. Ties go to the earlier key, as in `theory.configuration.top_sets`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnscope._numerics import helper, largest, log, loop, order_keys, rounded, top_level

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Group(NamedTuple):
    """The vectors shared by a group of heads, scaled by a power of two to sizes near 1."""

    vectors: Any  # (keys, dims)
    units: Any  # (keys, dims) x / |x|, 0 for a zero vector
    norms: Any  # (keys,) |x|
    inverses: Any  # (keys,) 1 / |x|, 0 for a zero vector
    scale: Any  # results are multiplied by it in the end


class Groups(NamedTuple):
    """Several groups: the fields of `Group` with a first axis."""

    vectors: Any
    units: Any
    norms: Any
    inverses: Any
    scales: Any


@helper
def dot(x: Any, y: Any) -> float:
    total = 0.0
    for k in range(x.size):
        total += x[k] * y[k]
    return total


@helper
def group_at(groups: Groups, g: int) -> Group:
    return Group(groups.vectors[g], groups.units[g], groups.norms[g], groups.inverses[g], groups.scales[g])


def prepare_groups(source: NDArray[np.floating]) -> Groups:
    """The vectors (groups, keys, dims) as `Groups`."""
    sizes = np.maximum(source.max((1, 2)), -source.min((1, 2))).astype(np.float64)
    exponents = np.where((sizes > 0) & (sizes < np.inf), np.frexp(sizes)[1], 0)
    vectors, units = np.empty((2, *source.shape))
    norms, inverses = np.empty((2, *source.shape[:2]))
    groups = Groups(vectors, units, norms, inverses, np.ldexp(1.0, exponents))
    _prepare(source, groups)
    return groups


@loop
def _prepare(source: Any, groups: Groups) -> None:
    """Fill all but the scales; source: (groups, keys, dims)."""
    for g in range(source.shape[0]):
        factor = 1 / groups.scales[g]
        for j in range(source.shape[1]):
            x, unit = groups.vectors[g, j], groups.units[g, j]
            for k in range(x.size):
                x[k] = source[g, j, k] * factor
            norm = _norm(x)
            inverse = 1 / norm if norm > 1e-300 else 0.0
            groups.norms[g, j], groups.inverses[g, j] = norm, inverse
            for k in range(x.size):
                unit[k] = x[k] * inverse


@helper
def _norm(x: Any) -> float:
    square = dot(x, x)
    if square > 1e-200 or not square < np.inf:
        return np.sqrt(square)
    longest = square = 0.0  # squares have underflowed, or nearly so
    for k in range(x.size):
        longest = max(longest, abs(x[k]))
    for k in range(x.size):
        square += (x[k] / longest) * (x[k] / longest)
    return longest * np.sqrt(square) if longest > 0 else 0.0


@helper
def squared_distance(x: Any, y: Any) -> float:
    total = 0.0
    for k in range(x.size):
        total += (x[k] - y[k]) * (x[k] - y[k])
    return total


@rounded
def squared_distance_of_units(group: Group, i: int, j: int) -> float:
    """|x_i/|x_i| - x_j/|x_j||^2, exactly zero if the two unit vectors are the same."""
    x, y, by_x, by_y = group.vectors[i], group.vectors[j], group.inverses[i], group.inverses[j]
    total = 0.0
    for k in range(x.size):
        difference = by_x * x[k] - by_y * y[k]
        total += difference * difference
    return total


_LARGEST_EXPONENT = 1000  # of a row's scale, so that its inverse is a normal number too


class TopSets(NamedTuple):
    """The top sets of some rows, smallest first."""

    members: Any  # (rows, largest N) keys; the members of a smaller set come first
    counts: Any  # (rows, sets) N, or the row's length if that is smaller; 0 for a row without sets
    scales: Any  # (rows,) a power of two that brings the row's largest weight near 1


class Contexts(NamedTuple):
    """The weighted sums of some rows."""

    plain: Any  # (rows, sets, dims) sum of alpha x over each set
    unit: Any  # (rows, sets, dims) the same for unit vectors, times the row's scale
    mean: Any  # (rows, dims) sum of alpha x over all keys: xbar


@loop
def choose_top_sets(rows: Any, weights: Any, spans: Any, top_n: Any, sets: TopSets) -> None:
    """Fill `sets` for some rows; rows with a negative weight or fewer than two keys have none."""
    width = weights.shape[1]
    keys, positions, dropped = np.empty(width, np.int64), np.empty(width, np.int64), np.empty(width, np.int64)
    values = np.empty(width)
    for r in rows:
        first, last = spans[r, 0], spans[r, 1]
        length = last - first
        largest, defined = 0.0, length > 1
        for j in range(length):
            weight = weights[r, first + j]
            defined &= 0 <= weight < np.inf
            largest = max(largest, weight)
            values[j], positions[j] = abs(weight), first + j  # no -0
        sets.counts[r] = 0
        if not defined:
            continue
        exponent = min(_LARGEST_EXPONENT, -math.frexp(largest)[1]) if largest > 0 else 0
        sets.scales[r] = math.ldexp(1.0, exponent)
        order_keys(values[:length], keys[:length])
        members, size = sets.members[r], length
        for s in range(top_n.size - 1, -1, -1):
            count = sets.counts[r, s] = min(top_n[s], length)
            if count < size:
                _move_largest_first(keys[:size], positions[:size], count, dropped)
                if s < top_n.size - 1:
                    for c in range(count, size):
                        members[c] = dropped[c - count]
            size = count
        for c in range(size):
            members[c] = positions[c]


@helper
def _move_largest_first(keys: Any, positions: Any, count: int, dropped: Any) -> None:
    """Move the `count` largest keys and their positions to the front; the positions of the others go to `dropped`."""
    level, ties = top_level(keys, count)
    chosen = left = 0
    for j in range(keys.size):
        key, position = keys[j], positions[j]
        taken = key > level
        if key == level and ties > 0:
            taken = True
            ties -= 1
        keys[chosen], positions[chosen] = key, position
        chosen += taken
        if not taken:
            dropped[left] = position
            left += 1


@loop
def sum_contexts(
    rows: Any, group_of: Any, weights: Any, sets: TopSets, groups: Groups, contexts: Contexts, stacked: Any
) -> None:
    """Fill the contexts of some rows from their sets and the vectors of their groups; `contexts.mean` is already set.

    stacked: (rows, 2 sets + 1, dims), in the type of the matrix products that follow: contexts, mean and unit contexts,
    each multiplied by the row's scale.
    """
    dims, count = groups.vectors.shape[2], sets.counts.shape[1]
    plain, unit = np.empty(dims), np.empty(dims)  # the sums so far
    for i in range(rows.size):
        r, group = rows[i], group_at(groups, group_of[i])
        scale = sets.scales[r]
        stacked[i] = 0
        if sets.counts[r, 0] == 0:
            continue
        plain[:] = 0
        unit[:] = 0
        done = 0
        for s in range(count):
            for c in range(done, sets.counts[r, s]):
                key = sets.members[r, c]
                weight, x = weights[r, key], group.vectors[key]
                unit_weight = weight * group.inverses[key]
                for k in range(dims):
                    plain[k] += weight * x[k]
                for k in range(dims):
                    unit[k] += unit_weight * x[k]
            done = sets.counts[r, s]
            for k in range(dims):
                contexts.plain[i, s, k], contexts.unit[i, s, k] = plain[k], unit[k] * scale
                stacked[i, s, k] = plain[k] * scale
                stacked[i, count + 1 + s, k] = unit[k] * scale
        for k in range(dims):
            stacked[i, count, k] = contexts.mean[i, k] * scale


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
