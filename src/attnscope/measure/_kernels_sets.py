"""Compiled loops: passes over the keys of a row that sum up to the columns of `topn.parquet`.

`measure.topn.topn_columns` is the specification.

Decisions:

- sums over keys are of float32 terms, eight at a time, added up in float64: they are good to about 1e-7. In short rows,
  where the errors of the terms would not cancel out, the same code has terms in float64;
- weights are lifted by a power of two that brings the row's largest near 1, so that nothing overflows or vanishes;
- squared distances |f x - v|^2 are expanded; where the terms cancel to less than an eighth, the difference is formed
  directly, in float64. Such squares are NaN until then, and sums that met one are taken again;
- sums over "all but i" are total minus self, except for the one key that may be more than half of the total,
  whose sum leaves it out;
- the ball of eq. (10) is exact: products with unit vectors only find the tokens that may be nearest to the context.
  Those, and the members, are compared in float64, by one loop, so that equal tokens tie exactly.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from attnscope.normalizers._arithmetic import exp, largest
from attnscope.normalizers._kernels import helper

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
_CANCELLATION: Any = np.float32(1 / 8)
_VANISHING: Any = np.float32(1e-30)  # a lifted square below this has lost digits in float32
_NAN: Any = np.float32(np.nan)
_ROUNDING = 1e-12
_FLOAT32 = 2.0**-24
_FLOOR: Any = np.float32(1e-36)  # float32 cannot tell sizes below this apart
_CHECKED = 64
_TWO: Any = np.float32(2)
_ZERO: Any = np.float32(0)
_NEVER: Any = np.float32(np.inf)
_ALL: Any = np.float32(-1)  # no set: every key is outside


@helper
def squares(size: Any, products: Any, by: Any, target2: Any, out: Any) -> Any:
    """out = |y - by v|^2 for |y|, u.v and |by v|^2, u the unit vector of y; NaN where it cancels, and how often."""
    lost = np.int32(0)
    for j in range(size.size):
        own = size[j] * size[j]
        value = own - _TWO * by * (size[j] * products[j]) + target2
        kept = value > _CANCELLATION * (own + target2) + _VANISHING
        out[j] = value if kept else _NAN
        lost = np.int32(lost + np.int32(not kept))
    return lost


@helper
def repair(weights: Any, keys: Any, vectors: Any, add: float, target: Any, by: float, lift: float, out: Any) -> None:
    """out = lift^2 |f x - by v|^2 with f = w + add, formed directly, where it is NaN."""
    for first in range(0, out.size, _CHECKED):
        part = out[first : first + _CHECKED]
        lost = np.int32(0)
        for j in range(part.size):
            lost = np.int32(lost + np.int32(part[j] != part[j]))
        if lost:
            for j in range(part.size):
                if part[j] != part[j]:
                    key = keys[first + j]
                    f, x = weights[key] + add, vectors[key]
                    total = 0.0
                    for k in range(x.size):
                        difference = (f * x[k] - by * target[k]) * lift
                        total += difference * difference
                    part[j] = total


@helper
def distances(size: Any, products: Any, target2: Any, level: Any, s: Any, out: Any) -> tuple[float, float, Any]:
    """`squares` and `root_sums` in one pass, with by = 1; what cancelled is counted outside the set alone."""
    total = total2 = 0.0
    lost = np.int32(0)
    for j in range(size.size):
        own = size[j] * size[j]
        value = own - _TWO * (size[j] * products[j]) + target2
        kept = value > _CANCELLATION * (own + target2) + _VANISHING
        out[j] = value if kept else _NAN
        lost = np.int32(lost + np.int32((not kept) & (level[j] > s)))
        value = value if level[j] > s else _ZERO
        total += np.float64(np.sqrt(value))
        total2 += np.float64(value)
    return total, total2, lost


@helper
def root_sums(squares: Any, level: Any, s: Any) -> tuple[float, float]:
    """Sums over the keys outside the set of the roots, and of the squares themselves."""
    total = total2 = 0.0
    for j in range(squares.size):
        value = squares[j] if level[j] > s else _ZERO
        total += np.float64(np.sqrt(value))
        total2 += np.float64(value)
    return total, total2


@helper
def expectations(
    mean2: Any, scatter: Any, size: Any, size_rest: Any, square_rest: Any, alone: Any, by: Any, factor: Any
) -> tuple[float, float, float]:
    """Sums over all keys: E1's two sides, and the printed bound on epsilon; alone = 1 / (1 + p), by = p / (1 + p)."""
    lower = upper = epsilon = 0.0
    for j in range(mean2.size):
        moments = mean2[j] + factor * scatter[j]
        triangle = alone * size[j] + by * size_rest[j]
        triangle *= triangle
        mean = np.sqrt(mean2[j])
        lower += np.float64(mean)
        upper += np.float64(np.sqrt(moments if moments < triangle else triangle))
        term = square_rest[j] / mean
        epsilon += np.float64(term if square_rest[j] > _ZERO else _ZERO)
    return lower, upper, epsilon


@helper
def printed(w: Any, norms: Any, products: Any, p: Any, target2: Any, out: Any) -> tuple[float, Any]:
    """out = |(w + p) x - v|^2 for products x.v, NaN where it cancels; the sum of the roots, and how often it does."""
    total = 0.0
    lost = np.int32(0)
    for j in range(w.size):
        f = w[j] + p
        own = f * f * norms[j]
        value = own - _TWO * f * products[j] + target2
        kept = value > _CANCELLATION * (own + target2) + _VANISHING
        out[j] = value if kept else _NAN
        lost = np.int32(lost + np.int32(not kept))
        total += np.float64(np.sqrt(value))
    return total, lost


@helper
def all_but_one(values: Any, out: Any) -> None:
    """The sum of the others, for every key."""
    highest = largest(values)
    both = 0.0
    for j in range(values.size):
        both += np.float64(values[j])
    for j in range(values.size):
        out[j] = both - values[j]
    if 2 * highest > both:  # its digits would be lost in the difference
        top = 0
        while values[top] != highest:
            top += 1
        rest = 0.0
        for j in range(top):
            rest += np.float64(values[j])
        behind = values[top + 1 :]
        for j in range(behind.size):
            rest += np.float64(behind[j])
        out[top] = rest


class Terms(NamedTuple):
    """Numbers of a row's visible keys that sums are made of, all in float32 or all in float64."""

    plain: Any  # the weights
    norms2: Any  # |x|^2
    size: Any  # |y|, y = w x, lifted
    of_unit_mean: Any  # u.xbar, lifted
    of_mean: Any  # x.xbar
    level: Any  # the smallest set that a key is in, the number of sets for the others
    scatter: Any  # this and the next two, lifted: filled by `rests`
    size_rest: Any
    square_rest: Any
    work: Any  # scratch


@helper
def rests(weights: Any, keys: Any, vectors: Any, xbar: Any, mean2: float, lift: float, terms: Terms) -> None:
    """For every key what the sums need of all the others, whatever the set; mean2: |xbar|^2, lifted."""
    number = terms.size.dtype.type
    size, scatter, work = terms.size, terms.scatter, terms.work
    # |y - xbar/L|^2: variances do not change with the origin, and nothing cancels when all y are alike.
    share = 1 / size.size
    if squares(size, terms.of_unit_mean, number(share), number(mean2 * share * share), scatter):
        repair(weights, keys, vectors, 0.0, xbar, share, lift, scatter)
    all_but_one(scatter, work)
    fraction = number(1 / (size.size - 1))
    for j in range(size.size):
        value = work[j] - scatter[j] * fraction
        scatter[j] = value if value > _ZERO else _ZERO
    for j in range(size.size):
        work[j] = size[j] * size[j]
    all_but_one(work, terms.square_rest)
    all_but_one(size, terms.size_rest)


@helper
def set_sums(
    weights: Any, keys: Any, vectors: Any, context: Any, of_context: Any, xbar: Any, mean2: float, p: float,
    factor: float, lift: float, s: Any, terms: Terms,
) -> tuple[float, float, float, float, float, float]:  # fmt: skip
    """The sums over keys of one set: those of `distances`, of `expectations` and of `printed`; the root of the second.

    of_context: u.context, mean2: |xbar|^2, both lifted; p: a key's chance to be in the set; factor: of the scatter.
    """
    number = terms.size.dtype.type
    size, level, work = terms.size, terms.level, terms.work
    total, total2, lost = distances(size, of_context, number(norm2(context, lift)), level, s, work)
    if lost:
        repair(weights, keys, vectors, 0.0, context, 1.0, lift, work)
        total, total2 = root_sums(work, level, s)
    # |(1 + p) y - p xbar|^2, over (1 + p)^2
    by, alone = p / (1 + p), 1 / (1 + p)
    if squares(size, terms.of_unit_mean, number(by), number(by * by * mean2), work):
        repair(weights, keys, vectors, 0.0, xbar, by, lift, work)
    lower, upper, epsilon = expectations(
        work, terms.scatter, size, terms.size_rest, terms.square_rest, number(alone), number(by),
        number(factor * alone * alone),
    )  # fmt: skip
    main, lost = printed(terms.plain, terms.norms2, terms.of_mean, number(p), number(mean2 / lift / lift), work)
    if lost:
        repair(weights, keys, vectors, p, xbar, 1.0, 1.0, work)
        main, _ = root_sums(work, level, _ALL)
    return (
        total / lift, np.sqrt(total2) / lift, (1 + p) * lower / lift, (1 + p) * upper / lift,
        epsilon / ((1 + p) * lift), main,
    )  # fmt: skip


@helper
def dot(x: Any, y: Any) -> float:
    total = 0.0
    for k in range(x.size):
        total += x[k] * y[k]
    return total


@helper
def nearest(
    sizes: Any, products: Any, by: Any, level: Any, s: Any, context: Any, error: Any, work: Any, found: Any
) -> int:
    """Places outside the set that may have the smallest phi = |y|^2 - 2 y.s, y not zero; how many.

    by: what the products with unit vectors have to be multiplied by; context: |s|; error: relative, of phi.
    """
    for j in range(sizes.size):
        size = sizes[j]
        phi = size * size - _TWO * by * (size * products[j]) + (error * size * (size + _TWO * context) + _FLOOR)
        work[j] = -phi if level[j] > s else -_NEVER
    best = -largest(work)
    count = 0
    for first in range(0, sizes.size, _CHECKED):
        part, highest = sizes[first : first + _CHECKED], work[first : first + _CHECKED]
        close = np.int32(0)
        for j in range(part.size):
            size = part[j]
            lowest = -highest[j] - _TWO * (error * size * (size + _TWO * context) + _FLOOR)
            close = np.int32(close + np.int32(lowest <= best))
        if close:
            for j in range(part.size):
                size = part[j]
                if -highest[j] - _TWO * (error * size * (size + _TWO * context) + _FLOOR) <= best:
                    found[count] = first + j
                    count += 1
    return count


@helper
def norm2(vector: Any, lift: float) -> float:
    """|lift v|^2: the square of a small vector alone may vanish."""
    total = 0.0
    for k in range(vector.size):
        total += (vector[k] * lift) * (vector[k] * lift)
    return total


@helper
def bounds(weights: Any, sizes: Any, count: int, radius: float, delta: float, xi: Any, out: Any) -> None:
    """Theorem 2 as printed and T2a for one set; `out` takes the four columns from the printed lower side on."""
    half = delta * delta / 2
    before = before2 = 0.0
    for i in range(count):  # first xi holds the sums before i
        xi[0, i], xi[1, i] = before, before2
        before += weights[i]
        before2 += weights[i] * weights[i]
    after = after2 = total = tails = 0.0
    inside = 0
    for i in range(count - 1, -1, -1):
        sum1, sum2 = xi[0, i] + after, xi[1, i] + after2
        value = np.sqrt(max(half * sum2 + (1 - half) * sum1 * sum1, 0.0))
        total += value
        xi[1, i] = value
        inside += value < radius * (1 - _ROUNDING)
        after += weights[i]
        after2 += weights[i] * weights[i]
    values = xi[1, :count]
    for i in range(count):
        values[i] = exp(-(radius - values[i]) * (radius - values[i]) / 16)
    for i in range(count):
        tails += values[i]
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


@helper
def _phi_and_gap(weight: float, vector: Any, inverse: float, context: Any) -> tuple[float, float]:
    """|y|^2 - 2 y.s, and |y - s|, y = weight u: the same order, but each is exact where the other is not."""
    phi = gap2 = 0.0
    for k in range(context.size):
        y = weight * (vector[k] * inverse)
        phi += y * (y - 2 * context[k])
        gap2 += (y - context[k]) * (y - context[k])
    return phi, np.sqrt(gap2)


@helper
def edge(weights: Any, vectors: Any, inverses: Any, context: Any, near: Any, empty: Any) -> tuple[float, float]:
    """The smallest phi and gap outside the set, given the keys that may have them: the edge of the ball of eq. (10).

    empty: how many tokens outside the set have no weight or no length, and so lie at the origin.
    """
    lowest = radius = np.inf
    for c in range(near.size):
        key = near[c]
        if weights[key] > 0 and inverses[key] > 0:
            phi, gap = _phi_and_gap(weights[key], vectors[key], inverses[key], context)
            lowest, radius = min(lowest, phi), min(radius, gap)
    if empty:
        lowest, radius = min(lowest, 0.0), min(radius, np.sqrt(norm2(context, 1.0)))
    return lowest, radius


@helper
def is_inside(
    weight: Any, vector: Any, inverse: Any, context: Any, product: Any, context_norm: Any, error: Any, lowest: float,
    radius: float,
) -> bool:  # fmt: skip
    """Whether a member of the set is inside the ball: by the product with the context where that can tell."""
    phi = weight * (weight - 2 * product)
    slack = error * weight * (weight + 2 * context_norm) + 1e-12 * abs(lowest)
    if abs(phi - lowest) > slack:
        return phi < lowest
    phi, gap = _phi_and_gap(weight, vector, inverse, context)
    return gap < radius if gap < weight else phi < lowest
