"""Compiled loops: the columns of `topn.parquet`. `measure.topn.topn_columns` is their specification.

Decisions:

- y = alpha x is a token's weighted vector, s a context, xbar the sum of all y. Weights are multiplied by the row's
  scale, a power of two that brings the largest near 1, so that no square vanishes;
- |y - f v|^2 is expanded into |y|^2 - 2 f y.v + f^2 |v|^2, with u.v from a matrix product (u = x/|x|). Where the terms
  cancel it is computed directly;
- comparisons and counts are exact: products only find the tokens that may decide the ball of eq. (10). Those are
  measured by one function, so that equal tokens tie.

Each loop writes one array and reads slices of one row: the compiler does not vectorize more complex loops.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnscope._numerics import exp, helper, largest, loop
from attnscope.measure._kernels import Contexts, Group, Groups, TopSets, dot, group_at

_CANCELLED = 1e-4  # of the sum of the squares: below it, four of sixteen digits are lost
_SMALLEST_SQUARE = 1e-290  # below it, digits are lost
_PRECISION = 2.0**-53
_ROUNDING = 1e-12  # relative, of a comparison with the radius
_CHECKED_TOGETHER = 64
_LINES = 8


@helper
def _squared_distances(
    lengths: Any, products: Any, target: Any, factor: float, scale: float, weights: Any, added: float, vectors: Any,
    out: Any,
) -> None:  # fmt: skip
    """out = scale^2 |y - factor v|^2 with y = (alpha + added) x and v the target.

    lengths, products: scale |y| and scale u.v. Where |y|^2, y.v and |v|^2 cancel it is computed directly.
    """
    target2 = 0.0
    for k in range(target.size):
        target2 += (target[k] * scale) * (target[k] * scale)
    twice, square = 2 * factor, factor * factor * target2
    for j in range(lengths.size):
        sum2 = lengths[j] * lengths[j] + square
        value = sum2 - twice * (lengths[j] * products[j])
        out[j] = value if value > _CANCELLED * sum2 + _SMALLEST_SQUARE else np.nan
    for first in range(0, out.size, _CHECKED_TOGETHER):
        part = out[first : first + _CHECKED_TOGETHER]
        missing = np.int32(0)
        for j in range(part.size):
            missing = np.int32(missing + np.int32(part[j] != part[j]))
        if missing:
            for j in range(part.size):
                if part[j] != part[j]:
                    weight, x = weights[first + j] + added, vectors[first + j]
                    total = 0.0
                    for k in range(x.size):
                        difference = (weight * x[k] - factor * target[k]) * scale
                        total += difference * difference
                    part[j] = total


@helper
def _sums_of_others(values: Any, out: Any) -> None:
    """For every key, the sum over all others: the total minus its own value, except for the largest, which cancels."""
    highest = largest(values)
    top = 0
    while top < values.size - 1 and values[top] != highest:
        top += 1
    rest = 0.0
    for j in range(top):
        rest += values[j]
    following = values[top + 1 :]
    for j in range(following.size):
        rest += following[j]
    total = rest + highest
    for j in range(values.size):
        out[j] = total - values[j]
    out[top] = rest


@helper
def _sums_outside(squares: Any, level: Any, s: Any) -> tuple[float, float]:
    """Sums over the keys outside set s of the roots, and of the squares themselves."""
    total = total2 = 0.0
    for j in range(squares.size):
        square = squares[j] if level[j] > s else 0.0
        total += np.sqrt(square)
        total2 += square
    return total, total2


@helper
def _expectation_sums(
    mean2: Any, scatter: Any, lengths: Any, other_lengths: Any, other_squares: Any, p: float, variance: float
) -> tuple[float, float, float]:
    """Sums over all keys: the lower and upper side of E1, and the printed bound on epsilon.

    mean2: |mu|^2 / (1 + p)^2 with mu = (1 + p) y - p xbar; variance: the factor of the scatter in E|Y|^2. In epsilon, a
    mu within its rounding error counts as zero.
    """
    alone, others, spread = 1 / (1 + p), p / (1 + p), variance / (1 + p) ** 2
    rounding = (mean2.size + 12) * _PRECISION
    lower = upper = epsilon = 0.0
    for j in range(mean2.size):
        mean = np.sqrt(mean2[j])
        triangle = alone * lengths[j] + others * other_lengths[j]
        moments = mean2[j] + spread * scatter[j]
        square = moments if moments < triangle * triangle else triangle * triangle
        ratio = other_squares[j] / (mean if mean > rounding * lengths[j] else 0.0)
        lower += mean
        upper += np.sqrt(square)
        epsilon += ratio if other_squares[j] > 0 else 0.0
    return (1 + p) * lower, (1 + p) * upper, epsilon / (1 + p)


@helper
def _phi_and_distance(weight: float, x: Any, inverse: float, context: Any) -> tuple[float, float]:
    """|y|^2 - 2 y.s and |y - s| of a token's unit vector: the same order, each exact where the other is not."""
    phi = square = 0.0
    for k in range(context.size):
        y = weight * (x[k] * inverse)
        phi += y * (y - 2 * context[k])
        square += (y - context[k]) * (y - context[k])
    return phi, np.sqrt(square)


@helper
def _ball(
    first: int, unit_lengths: Any, products: Any, group: Group, context: Any, level: Any, s: Any, members: Any,
    at_origin: Any, work: Any,
) -> tuple[float, float]:  # fmt: skip
    """Eq. (10): share of members nearer to the context than all other tokens, and the distance of the nearest other.

    unit_lengths, products, context: |y|, u.s and s for unit vectors; like the distance, they are multiplied by the
    row's scale. Products find the tokens that may be nearest. at_origin: number of tokens outside the set with weight
    or length zero.
    """
    relative, tiny = (context.size + 12) * _PRECISION, _SMALLEST_SQUARE
    norm = np.sqrt(dot(context, context))
    reach = 2 * norm
    for j in range(level.size):  # -phi, less its error
        length = unit_lengths[j]
        value = length * (2 * products[j] - length) - (relative * length * (length + reach) + tiny)
        work[j] = value if level[j] > s else -np.inf
    best = largest(work)
    lowest = radius = np.inf
    for start in range(0, level.size, _CHECKED_TOGETHER):
        part, lengths = work[start : start + _CHECKED_TOGETHER], unit_lengths[start : start + _CHECKED_TOGETHER]
        candidates = np.int32(0)
        for j in range(part.size):
            upper = part[j] + 2 * (relative * lengths[j] * (lengths[j] + reach) + tiny)
            candidates = np.int32(candidates + np.int32(upper >= best))
        if candidates:
            for j in range(part.size):
                key = first + start + j
                possible = part[j] + 2 * (relative * lengths[j] * (lengths[j] + reach) + tiny) >= best
                if possible and level[start + j] > s and lengths[j] > 0:
                    phi, gap = _phi_and_distance(lengths[j], group.vectors[key], group.inverses[key], context)
                    lowest, radius = min(lowest, phi), min(radius, gap)
    if at_origin:
        lowest, radius = min(lowest, 0.0), min(radius, norm)
    inside = 0
    for c in range(members.size):
        key = members[c]
        weight = unit_lengths[key - first]
        phi = weight * (weight - 2 * products[key - first])
        if abs(phi - lowest) > relative * weight * (weight + reach) + _ROUNDING * abs(lowest):
            inside += phi < lowest
        else:
            phi, gap = _phi_and_distance(weight, group.vectors[key], group.inverses[key], context)
            inside += gap < radius if gap < weight else phi < lowest
    return inside / members.size, radius


@helper
def _xi_bounds(weights: Any, radius: float, scale: float, delta: float, xi: Any) -> tuple[float, float, float]:
    """Both sides of Theorem 2 as printed, and the lower side of T2a, for the weights of one set multiplied by `scale`.

    xi_i^2 = delta^2/2 sum2 + (1 - delta^2/2) sum^2 over the other members (`theory.geometry.xi`).
    """
    half = delta * delta / 2
    before = before2 = 0.0
    for i in range(weights.size):  # the first two rows hold the sums before i
        xi[0, i], xi[1, i] = before, before2
        before += weights[i]
        before2 += weights[i] * weights[i]
    after = after2 = total = tails = 0.0
    inside = 0
    for i in range(weights.size - 1, -1, -1):
        sum1, sum2 = xi[0, i] + after, xi[1, i] + after2
        value = np.sqrt(max(half * sum2 + (1 - half) * sum1 * sum1, 0.0))
        total += value
        margin = (radius - value) / scale
        tails += exp(-margin * margin / 16)
        inside += value < radius * (1 - _ROUNDING)
        after += weights[i]
        after2 += weights[i] * weights[i]
    count = weights.size
    return 1 - (total / (radius * count) if total > 0 else 0.0), tails / count, inside / count


@helper
def _possibly_inside(lengths: Any, radius: float, before: Any) -> float:
    """The upper side of T2a: the share of members for which the sum of the others can be shorter than the radius."""
    first = second = total = 0.0
    top = 0
    for i in range(lengths.size):
        if lengths[i] > first:
            first, second, top = lengths[i], first, i
        else:
            second = max(second, lengths[i])
        before[i] = total
        total += lengths[i]
    after = 0.0
    possible = 0
    for i in range(lengths.size - 1, -1, -1):
        shortest = 2 * (second if i == top else first) - (before[i] + after)
        possible += max(shortest, 0.0) < radius * (1 + _ROUNDING)
        after += lengths[i]
    return possible / lengths.size


@loop
def set_columns(
    rows: Any,  # (some,)
    group_of: Any,  # (some,) the group of each
    weights: Any,  # (all rows, keys)
    spans: Any,  # (all rows, 2) the first visible key and the end
    groups: Groups,
    sets: TopSets,
    contexts: Contexts,
    products: Any,  # (some rows, 2 sets + 1, keys from `begin` on): u.s, u.xbar, u.s of unit vectors, all scaled
    begin: int,
    delta: Any,  # (all rows,) and d1: only with `paper_bounds`
    d1: Any,  # (all rows, sets)
    paper_bounds: bool,
    out: Any,  # `columns.SetArrays` of (all rows, sets)
) -> None:
    """Fill the columns of some rows; rows without sets are unchanged, as are the paper's bounds unless requested."""
    count_of_sets, largest_set = sets.counts.shape[1], sets.members.shape[1]
    lines = np.empty((_LINES, weights.shape[1]))
    member_weights, member_lengths = np.empty(largest_set), np.empty(largest_set)
    xi, scaled_mean = np.empty((2, largest_set)), np.empty(groups.vectors.shape[2])
    for i in range(rows.size):
        r, group = rows[i], group_at(groups, group_of[i])
        if sets.counts[r, 0] == 0:
            continue
        first, last = spans[r, 0], spans[r, 1]
        length, scale, members, mean = last - first, sets.scales[r], sets.members[r], contexts.mean[i]
        row_weights, vectors = weights[r, first:last], group.vectors[first:last]
        norms, inverses = group.norms[first:last], group.inverses[first:last]
        of_mean = products[i, count_of_sets, first - begin : last - begin]
        unit_lengths, lengths, level = lines[0, :length], lines[1, :length], lines[2, :length]
        scatter, other_lengths, other_squares = lines[3, :length], lines[4, :length], lines[5, :length]
        work, printed_lengths = lines[6, :length], lines[7, :length]

        # The smallest set that each key belongs to.
        level[:] = count_of_sets
        for s in range(count_of_sets - 1, -1, -1):
            for c in range(sets.counts[r, s]):
                level[members[c] - first] = s
        at_origin = np.int64(0)
        for j in range(length):
            unit_lengths[j] = row_weights[j] * scale if inverses[j] > 0 else 0.0
        for j in range(length):
            at_origin += np.int64(unit_lengths[j] == 0)
        for j in range(length):
            lengths[j] = unit_lengths[j] * norms[j]
        for k in range(mean.size):
            scaled_mean[k] = mean[k] * scale
        # Variances do not depend on the origin: around the mean, nothing cancels where all y are similar.
        _squared_distances(lengths, of_mean, mean, 1 / length, scale, row_weights, 0.0, vectors, scatter)
        _sums_of_others(scatter, work)
        for j in range(length):
            value = work[j] - scatter[j] / (length - 1)
            scatter[j] = value if value > 0 else 0.0
        for j in range(length):
            work[j] = lengths[j] * lengths[j]
        _sums_of_others(work, other_squares)
        _sums_of_others(lengths, other_lengths)

        mass = longest = 0.0
        done = 0
        for s in range(count_of_sets):
            count, context = sets.counts[r, s], contexts.plain[i, s]
            for c in range(done, count):
                weight, key = weights[r, members[c]], members[c]
                mass += weight
                longest = max(longest, group.norms[key])
                member_weights[c], member_lengths[c] = weight * scale, unit_lengths[key - first]
                at_origin -= member_lengths[c] == 0
            done = count
            others, p = length - count, count / (length - 1)
            share = others / length
            out.top_mass[r, s] = mass

            of_context = products[i, s, first - begin : last - begin]
            _squared_distances(lengths, of_context, context, 1.0, scale, row_weights, 0.0, vectors, work)
            total, total2 = _sums_outside(work, level, s)
            out.distance[r, s] = group.scale * total / scale
            out.distance_upper[r, s] = group.scale * np.sqrt(others * total2) / scale
            lower2 = 0.0
            for k in range(mean.size):
                value = ((others + 1) * context[k] - mean[k]) * scale
                lower2 += value * value
            out.distance_lower[r, s] = group.scale * np.sqrt(lower2) / scale

            _squared_distances(lengths, of_mean, mean, p / (1 + p), scale, row_weights, 0.0, vectors, work)
            variance = count * (others - 1) / ((length - 1) * (length - 2)) if length > 2 else 0.0
            lower, upper, epsilon = _expectation_sums(work, scatter, lengths, other_lengths, other_squares, p, variance)
            out.expected_lower[r, s] = group.scale * share * lower / scale
            out.expected_upper[r, s] = group.scale * share * upper / scale
            out.epsilon_printed[r, s] = group.scale * share * 0.5 * p * epsilon / scale
            for j in range(length):
                printed_lengths[j] = (row_weights[j] + p) * norms[j]
            _squared_distances(printed_lengths, of_mean, scaled_mean, 1 / scale, 1.0, row_weights, p, vectors, work)
            main, _ = _sums_outside(work, level, -1)
            out.expected_printed[r, s] = group.scale * share * main

            out.separability[r, s], radius = _ball(
                first, unit_lengths, products[i, count_of_sets + 1 + s, first - begin : last - begin], group,
                contexts.unit[i, s], level, s, members[:count], at_origin, work,
            )  # fmt: skip
            out.radius[r, s] = radius / scale
            out.separability_upper[r, s] = _possibly_inside(member_lengths[:count], radius, xi[0])
            if paper_bounds:
                bound = (1 - mass) * d1[r, s] + longest * (mass * others - (1 - mass))
                out.distance_bound_printed[r, s] = group.scale * bound
                out.delta[r, s] = delta[r]
                if delta[r] == delta[r]:
                    lower, upper, certain = _xi_bounds(member_weights[:count], radius, scale, delta[r], xi)
                    out.separability_lower_printed[r, s], out.separability_upper_printed[r, s] = lower, upper
                    out.separability_lower[r, s] = certain
