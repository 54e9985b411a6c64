"""Compiled loops: the columns of `topn.parquet` for a block of rows of one group.

`measure.topn.topn_columns` is the specification. Given are the sets, their contexts and the products of every vector
with every context (matrix products, made before); what remains is a few passes over the keys of a row for each set.

Decisions:

- squared distances |f x - v|^2 are expanded; where the terms cancel, the difference is formed directly, as in
  `Configuration.difference_norms`. All squares of a pass are written first and repaired before any root is taken;
- sums over "all but i" are total minus self, except for the one key that may be more than half of the total,
  whose sum leaves it out;
- products with unit vectors come in float32: they only find the tokens that may be nearest to the context. Those, and
  the members, are compared in float64, by one loop, so that equal tokens tie exactly.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnscope.normalizers._kernels import compiled, helper

COLUMNS = (
    "top_mass",
    "distance",
    "distance_bound_printed",
    "distance_lower",
    "distance_upper",
    "expected_printed",
    "expected_lower",
    "expected_upper",
    "epsilon_printed",
    "separability",
    "radius",
    "delta",
    "separability_lower_printed",
    "separability_upper_printed",
    "separability_lower",
    "separability_upper",
)
# (|u| + |v|)^2 <= 2 (|u|^2 + |v|^2): twice the share of `Configuration`, without its root.
_CANCELLATION = 2e-5
_ROUNDING = 1e-12
_FLOAT32 = 2.0**-24
_FLOOR = np.float32(1e-36)  # float32 cannot tell sizes below this apart
_CHECKED = 64
_NONE = -np.inf


@helper
def _squares(w: Any, norms2: Any, add: float, scale: float, products: Any, by: float, target2: float, out: Any) -> int:
    """out = |f x - v|^2 with f = scale w + add, products times `by` being x.v; how many of them cancelled."""
    lost = 0
    for j in range(w.size):
        f = scale * w[j] + add
        own = f * f * norms2[j]
        value = own - 2 * f * by * products[j] + target2
        out[j] = value
        lost += value <= _CANCELLATION * (own + target2)
    return lost


@helper
def _repair(
    w: Any,
    norms2: Any,
    add: float,
    scale: float,
    vectors: Any,
    keys: Any,
    target: Any,
    by: float,
    target2: float,
    out: Any,
) -> None:
    """Form the differences of `_squares` directly where their terms cancelled; the target is `by` times `target`."""
    for j in range(w.size):
        f = scale * w[j] + add
        if out[j] <= _CANCELLATION * (f * f * norms2[j] + target2):
            x = vectors[keys[j]]
            total = 0.0
            for k in range(x.size):
                difference = f * x[k] - by * target[k]
                total += difference * difference
            out[j] = total


@helper
def _distances(squares: Any, level: Any, s: float) -> tuple[float, float]:
    """Sums over the keys outside the set of |y - s| and its square."""
    total = total2 = 0.0
    for j in range(squares.size):
        value = squares[j] if level[j] > s else 0.0
        total += np.sqrt(value)
        total2 += value
    return total, total2


@helper
def _expectations(
    mean2: Any, printed2: Any, scatter: Any, size: Any, size_rest: Any, square_rest: Any, p: float, factor: float
) -> tuple[float, float, float, float]:
    """Sums over all keys: the printed main term, E1's two sides, and the printed bound on epsilon."""
    printed = lower = upper = epsilon = 0.0
    for j in range(mean2.size):
        m2 = mean2[j]
        mean = np.sqrt(m2)
        moments = np.sqrt(m2 + factor * scatter[j])
        triangle = size[j] + p * size_rest[j]
        printed += np.sqrt(printed2[j])
        lower += mean
        upper += moments if moments < triangle else triangle
        term = square_rest[j] / mean
        epsilon += term if square_rest[j] > 0 else 0.0
    return printed, lower, upper, epsilon


@helper
def _all_but_one(values: Any, out: Any) -> None:
    """The sum of the others, for every key."""
    top = 0
    for j in range(values.size):
        if values[j] > values[top]:
            top = j
    rest = 0.0
    for j in range(values.size):
        rest += values[j] if j != top else 0.0
    total = rest + values[top]
    for j in range(values.size):
        out[j] = total - values[j]
    out[top] = rest


@helper
def _nearest(sizes: Any, products: Any, level: Any, s: Any, context: Any, error: Any, found: Any) -> int:
    """Places outside the set that may have the smallest phi = |y|^2 - 2 y.s, y not zero; how many."""
    best = np.float32(np.inf)
    two = np.float32(2)
    for j in range(sizes.size):
        size = sizes[j]
        phi = size * size - two * size * products[j] + (error * size * (size + two * context) + _FLOOR)
        phi = phi if level[j] > s else np.float32(np.inf)
        best = phi if phi < best else best
    count = 0
    for first in range(0, sizes.size, _CHECKED):
        part, part_products, part_level = (
            sizes[first : first + _CHECKED],
            products[first : first + _CHECKED],
            level[first : first + _CHECKED],
        )
        close = 0
        for j in range(part.size):
            size = part[j]
            phi = size * size - two * size * part_products[j] - (error * size * (size + two * context) + _FLOOR)
            close += (phi <= best) & (part_level[j] > s)
        if close:
            for j in range(part.size):
                size = part[j]
                phi = size * size - two * size * part_products[j] - (error * size * (size + two * context) + _FLOOR)
                if phi <= best and part_level[j] > s:
                    found[count] = first + j
                    count += 1
    return count


@helper
def _norm2(vector: Any) -> float:
    total = 0.0
    for k in range(vector.size):
        total += vector[k] * vector[k]
    return total


@helper
def _bounds(weights: Any, sizes: Any, count: int, radius: float, delta: float, xi: Any, out: Any) -> None:
    """Theorem 2 as printed and T2a for one set; `out` takes the four columns from the printed lower side on."""
    half = delta * delta / 2
    before = before2 = 0.0
    for i in range(count):  # xi holds the sums before i for now
        xi[0, i], xi[1, i] = before, before2
        before += weights[i]
        before2 += weights[i] * weights[i]
    after = after2 = total = tails = 0.0
    inside = 0
    for i in range(count - 1, -1, -1):
        sum1, sum2 = xi[0, i] + after, xi[1, i] + after2
        value = np.sqrt(max(half * sum2 + (1 - half) * sum1 * sum1, 0.0))
        total += value
        tails += np.exp(-(radius - value) * (radius - value) / 16)
        inside += value < radius * (1 - _ROUNDING)
        after += weights[i]
        after2 += weights[i] * weights[i]
    first = second = before = 0.0
    place = 0
    for i in range(count):
        if sizes[i] > first:
            first, second, place = sizes[i], first, i
        else:
            second = max(second, sizes[i])
        xi[0, i] = before
        before += sizes[i]
    after = 0.0
    possible = 0
    for i in range(count - 1, -1, -1):
        least = 2 * (second if i == place else first) - (xi[0, i] + after)
        possible += max(least, 0.0) < radius * (1 + _ROUNDING)
        after += sizes[i]
    out[0] = 1 - (total / (radius * count) if total > 0 else 0.0)
    out[1] = tails / count
    out[2] = inside / count
    out[3] = possible / count
    if delta != delta:
        out[0] = out[1] = out[2] = np.nan


@compiled
def measure(
    rows: Any,  # (block,) which rows of `weights`
    weights: Any,  # (all rows, keys)
    masks: Any,  # (masks, keys)
    mask_of: Any,  # (all rows,)
    vectors: Any,  # (keys, dims) of this group
    units: Any,  # (keys, dims)
    norms2: Any,  # (keys,)
    members: Any,  # (block, largest N)
    counts: Any,  # (block, sets)
    contexts: Any,  # (block, sets, dims)
    unit_contexts: Any,  # (block, sets, dims)
    means: Any,  # (block, dims)
    low: int,  # the first key of the products
    products: Any,  # (block, sets, some keys) x.s
    mean_products: Any,  # (block, some keys) x.xbar
    unit_products: Any,  # (block, sets, some keys), float32
    farthest: Any,  # (block, sets) d1
    deltas: Any,  # (all rows,)
    out: Any,  # (all rows, sets, columns)
    start: int,
    stop: int,
) -> None:
    """Fill `out` for rows `start` to `stop` of a block."""
    sets, dims = contexts.shape[1:]
    width = weights.shape[1]
    wide = np.empty((9, width))
    narrow = np.empty((2, width), np.float32)
    gathered = np.empty((2, width))
    gathered32 = np.empty(width, np.float32)
    keys_of = np.empty(width, np.int64)
    listed = np.empty(width, np.int64)
    compared = np.empty((3, width))
    own = np.empty((2, members.shape[1]))
    sums = np.empty((2, members.shape[1]))
    error = np.float32((dims + 8) * _FLOAT32)
    for r in range(start, stop):
        row = rows[r]
        seen = masks[mask_of[row]]
        length = 0
        for j in range(width):
            if seen[j]:
                keys_of[length] = j
                length += 1
        if length < 2 or counts[r, 0] == 0:
            out[row] = np.nan
            continue
        keys = keys_of[:length]
        first = keys[0]
        solid = keys[length - 1] - first == length - 1
        w, n2, size, scatter = wide[0, :length], wide[1, :length], wide[2, :length], wide[3, :length]
        size_rest, square_rest, level = wide[4, :length], wide[5, :length], wide[6, :length]
        work, other_work = wide[7, :length], wide[8, :length]
        unit_size, level32 = narrow[0, :length], narrow[1, :length]
        zeros = 0
        for j in range(length):
            key = keys[j]
            weight, norm2 = weights[row, key], norms2[key]
            w[j], n2[j] = weight, norm2
            size[j] = weight * np.sqrt(norm2)
            unit_size[j] = weight if norm2 > 0 else 0.0
            level[j] = level32[j] = sets
            zeros += not (norm2 > 0 and weight > 0)
        for s in range(sets - 1, -1, -1):
            for c in range(counts[r, s]):
                key = members[r, c]
                place = key - first if solid else np.searchsorted(keys, key)
                level[place] = level32[place] = s
        mean = means[r]
        mean2 = _norm2(mean)
        if solid:
            b = mean_products[r, first - low : first - low + length]
        else:
            b = gathered[0, :length]
            for j in range(length):
                b[j] = mean_products[r, keys[j] - low]
        # |y - xbar/L|^2: variances do not change with the origin, and nothing cancels when all y are alike.
        share = 1 / length
        if _squares(w, n2, 0.0, 1.0, b, share, mean2 * share * share, scatter):
            _repair(w, n2, 0.0, 1.0, vectors, keys, mean, share, mean2 * share * share, scatter)
        _all_but_one(scatter, work)
        for j in range(length):
            value = work[j] - scatter[j] / (length - 1)
            scatter[j] = value if value > 0 else 0.0
            other_work[j] = size[j] * size[j]
        _all_but_one(other_work, square_rest)
        _all_but_one(size, size_rest)
        mass = largest2 = 0.0
        done = 0
        for s in range(sets):
            count = counts[r, s]
            result = out[row, s]
            context, unit_context = contexts[r, s], unit_contexts[r, s]
            context2, unit_norm = _norm2(context), np.sqrt(_norm2(unit_context))
            if solid:
                p_s = products[r, s, first - low : first - low + length]
                q_s = unit_products[r, s, first - low : first - low + length]
            else:
                p_s, q_s = gathered[1, :length], gathered32[:length]
                for j in range(length):
                    p_s[j] = products[r, s, keys[j] - low]
                    q_s[j] = unit_products[r, s, keys[j] - low]
            for c in range(done, count):
                key = members[r, c]
                mass += weights[row, key]
                largest2 = max(largest2, norms2[key])
                own[0, c] = weights[row, key]
                own[1, c] = weights[row, key] if norms2[key] > 0 else 0.0
            done = count
            left = length - count
            result[0] = mass
            if _squares(w, n2, 0.0, 1.0, p_s, 1.0, context2, work):
                _repair(w, n2, 0.0, 1.0, vectors, keys, context, 1.0, context2, work)
            total, total2 = _distances(work, level, s)
            result[1] = total
            result[2] = (1 - mass) * farthest[r, s] + np.sqrt(largest2) * (mass * left - (1 - mass))
            lower2 = 0.0
            for k in range(dims):
                value = (left + 1) * context[k] - mean[k]
                lower2 += value * value
            result[3] = np.sqrt(lower2)
            result[4] = np.sqrt(left * total2)
            n = length - 1
            p = count / n
            if _squares(w, n2, 0.0, 1 + p, b, p, p * p * mean2, work):
                _repair(w, n2, 0.0, 1 + p, vectors, keys, mean, p, p * p * mean2, work)
            if _squares(w, n2, p, 1.0, b, 1.0, mean2, other_work):
                _repair(w, n2, p, 1.0, vectors, keys, mean, 1.0, mean2, other_work)
            factor = count * (n - count) / (n * (n - 1)) if n > 1 else 0.0
            printed, lower, upper, epsilon = _expectations(
                work, other_work, scatter, size, size_rest, square_rest, p, factor
            )
            chance = left / length
            result[5], result[6], result[7] = chance * printed, chance * lower, chance * upper
            result[8] = 0.5 * chance * p * epsilon
            # The ball of eq. (10): members first, then the tokens that may be its edge.
            for c in range(count):
                listed[c] = members[r, c]
            near = _nearest(unit_size, q_s, level32, np.float32(s), np.float32(unit_norm), error, listed[count:])
            kept = count
            for c in range(count, count + near):
                key = keys[listed[c]]
                if weights[row, key] > 0 and norms2[key] > 0:
                    listed[kept] = key
                    kept += 1
            for c in range(kept):
                key = listed[c]
                weight, u = weights[row, key], units[key]
                phi = gap2 = 0.0
                for k in range(dims):
                    y = weight * u[k]
                    phi += y * (y - 2 * unit_context[k])
                    gap2 += (y - unit_context[k]) * (y - unit_context[k])
                compared[0, c], compared[1, c] = phi, np.sqrt(gap2)
            lowest = radius = np.inf
            for c in range(count, kept):
                lowest, radius = min(lowest, compared[0, c]), min(radius, compared[1, c])
            empty = zeros
            for c in range(count):
                empty -= own[1, c] == 0
            if empty:  # a token of no weight or no length lies at the origin
                lowest, radius = min(lowest, 0.0), min(radius, unit_norm)
            inside = 0
            for c in range(count):
                if compared[1, c] < own[1, c]:
                    inside += compared[1, c] < radius
                else:
                    inside += compared[0, c] < lowest
            result[9] = inside / count
            result[10] = radius
            result[11] = deltas[row]
            _bounds(own[0], own[1], count, radius, deltas[row], sums, result[12:])
