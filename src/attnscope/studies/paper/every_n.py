"""Algorithm 3: distance and expectation at every N, summed over all rows of a head, for both readings and all lengths.

A row's keys are added to the top set one by one; each step changes the products x_i . s by one row of the Gram matrix
X X^T, so all N together cost O(L^2) per row, whatever the dimension of the vectors.

With y = alpha x and xbar the sum of all y, a term of the expectation at the share p = N / (L - 1) is the length of a
vector that moves along a line as p grows: (y - xbar) + p x as printed, y + p (y - xbar) corrected. Split into parts
parallel and perpendicular to that line, it is sqrt((slope p - offset)^2 + rest): a sum of squares that cannot cancel,
so float32 is enough for the terms. Slopes, offsets and rests are computed in float64, once per row.

Keys that a causal row does not see have y = 0. In the literal reading the top set takes them last, the distance counts
each as |s|, and a term of the corrected expectation is the same for all of them; only the printed one needs their x.

The critical N comes from an exact two-sample Kolmogorov-Smirnov test for two samples of the same size, over heads. With
n values in each, n D is an integer h, and the probability of D >= h/n under equal continuous distributions counts
lattice paths that leave a strip (Gnedenko and Korolyuk, 1951):

    p(h) = 2 sum_{k >= 1} (-1)^(k+1) C(2n, n - k h) / C(2n, n),    p(0) = 1.

Printed: "the smallest N for which the empirical and expected distance distributions are indistinguishable under a
two-sample Kolmogorov-Smirnov test (alpha = 0.01)". A test that does not reject is no evidence of equality, and more
heads give more power; so the persistent N and the critical N of subsets of the heads are computed as well.
"""

from __future__ import annotations

from functools import lru_cache
from math import lgamma
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnscope._numerics import helper, loop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float, Int
    from numpy.typing import NDArray

COLUMNS = ("distance", "expected_printed", "expected_lower", "expected_upper")
_TOGETHER = 256  # terms that are added in float32
_SMALLEST = 1e-120  # length whose square has all digits


class Profiles(NamedTuple):
    """Sums of the `COLUMNS` over rows at N = 1 ... L-1, and the number of rows; zero beyond a length.

    In the visible reading a row is included only in the sums of the first length that has it: it is the same in all
    others.
    """

    sums: Any  # (literal and visible, lengths, columns, n)
    rows: Any  # (literal and visible, lengths, n)


def empty(lengths: Sequence[int]) -> Profiles:
    """Sums over no row."""
    shape = (2, len(lengths), len(COLUMNS), max(lengths) - 1)
    return Profiles(np.zeros(shape), np.zeros((2, len(lengths), max(lengths) - 1), np.int64))


def averages(profiles: Profiles) -> NDArray[np.float64]:
    """Means over rows, (literal and visible, lengths, columns, n); NaN where there is no row."""
    sums, rows = profiles.sums.copy(), profiles.rows.copy()
    sums[1], rows[1] = sums[1].cumsum(0), rows[1].cumsum(0)
    with np.errstate(invalid="ignore"):
        means: NDArray[np.float64] = sums / rows[:, :, None]
    return means


class _Row(NamedTuple):
    """The parts of the terms of one row, scaled so that the largest is near 1; zero for keys that are not visible."""

    slopes: Any  # (keys,) float32: of y + p (y - xbar)
    offsets: Any
    rests: Any
    lengths: Any  # |y|
    others: Any  # sum of |y| over the other keys
    variances: Any  # of the sum of N others, but for a factor
    squares: Any  # (keys,) float64: sum of |y|^2 over the other keys
    gaps: Any  # |y - xbar|^2


@helper
def _sum_printed(slopes: Any, offsets: Any, rests: Any, p: Any) -> float:
    total = 0.0
    for first in range(0, slopes.size, _TOGETHER):
        slope, offset, rest = (
            slopes[first : first + _TOGETHER], offsets[first : first + _TOGETHER], rests[first : first + _TOGETHER],
        )  # fmt: skip
        part = np.float32(0)
        for j in range(slope.size):
            along = np.float32(slope[j] * p - offset[j])
            part = np.float32(part + np.sqrt(np.float32(along * along + rest[j])))
        total += np.float64(part)
    return total


@helper
def _sum_corrected(row: _Row, begin: int, end: int, p: Any, factor: Any) -> tuple[float, float]:
    """Sums over the keys from `begin` to `end` of both sides of E1."""
    lower = upper = 0.0
    for first in range(begin, end, _TOGETHER):
        last = min(end, first + _TOGETHER)
        slope, offset, rest = row.slopes[first:last], row.offsets[first:last], row.rests[first:last]
        length, others, variance = row.lengths[first:last], row.others[first:last], row.variances[first:last]
        part_lower = part_upper = np.float32(0)
        for j in range(slope.size):
            along = np.float32(slope[j] * p - offset[j])
            mean = np.float32(along * along + rest[j])
            triangle = np.float32(length[j] + p * others[j])
            moments = np.float32(mean + factor * variance[j])
            triangle = np.float32(triangle * triangle)
            part_lower = np.float32(part_lower + np.sqrt(mean))
            part_upper = np.float32(part_upper + np.sqrt(moments if moments < triangle else triangle))
        lower += np.float64(part_lower)
        upper += np.float64(part_upper)
    return lower, upper


@helper
def _variance_factor(count: int, others: int) -> float:
    return count * (others - count) / (others * (others - 1.0)) if others > 1 else 0.0


@helper
def _fill_variances(row: _Row, begin: int, end: int, others: int) -> None:
    for i in range(begin, end):
        row.variances[i] = max(row.squares[i] - row.gaps[i] / others, 0.0)


@loop
def add_rows(
    weights: Any,  # (rows, keys) float64, zero on keys that are not visible
    visible: Any,  # (rows, keys)
    order: Any,  # (rows, keys): each row's keys by falling weight
    mean_products: Any,  # (rows, keys) x_i . xbar
    gram: Any,  # (keys, keys) x_i . x_j
    positions: Any,  # (rows,) of the rows in the window
    lengths: Any,  # ascending
    out: Profiles,
) -> None:
    """Add rows of one head to its sums."""
    keys = weights.shape[1]
    norms = np.empty(keys)
    for i in range(keys):
        norms[i] = np.sqrt(gram[i, i])
    x_scale = max(norms.max(), _SMALLEST)
    x_unit = 1 / x_scale
    single = np.float32
    printed = np.zeros((3, keys), single)
    seen = np.zeros((3, keys), single)
    row = _Row(
        np.zeros(keys, single), np.zeros(keys, single), np.zeros(keys, single), np.zeros(keys, single),
        np.zeros(keys, single), np.zeros(keys, single), np.zeros(keys), np.zeros(keys),
    )  # fmt: skip
    squares, turned = np.empty(keys), np.empty(keys)
    products, outside = np.empty(keys), np.empty(keys)
    distances, contexts = np.zeros(keys + 1), np.zeros(keys + 1)
    for r in range(weights.shape[0]):
        alpha, along = weights[r], mean_products[r]
        begin, end, count = keys, 0, 0
        total = summed = mean2 = largest = 0.0
        for i in range(keys):
            squares[i] = (alpha[i] * norms[i]) ** 2
            turned[i] = -2 * alpha[i]
            products[i] = 0.0
            outside[i] = 1.0 if visible[r, i] else 0.0
            if visible[r, i]:
                begin, end, count = min(begin, i), i + 1, count + 1
            length = alpha[i] * norms[i]
            total += squares[i]
            summed += length
            mean2 += alpha[i] * along[i]
            largest = max(largest, length)
        mean2 = max(mean2, 0.0)
        scale = max(largest, _SMALLEST)
        unit = 1 / scale
        for i in range(keys):
            gap = max(squares[i] + turned[i] * along[i] + mean2, 0.0)
            offset = (along[i] - alpha[i] * gram[i, i]) / norms[i] if norms[i] > 0 else 0.0
            offset = min(max(offset, -np.sqrt(gap)), np.sqrt(gap))
            printed[0, i] = norms[i] * x_unit
            printed[1, i] = offset * x_unit
            printed[2, i] = max(gap - offset * offset, 0.0) * x_unit * x_unit
            for k in range(3):
                seen[k, i] = printed[k, i] if visible[r, i] else single(0)
            length = np.sqrt(squares[i])
            turn = (alpha[i] * along[i] - squares[i]) / np.sqrt(gap) if gap > 0 else 0.0
            turn = min(max(turn, -length), length)
            shown = unit if visible[r, i] else 0.0
            row.slopes[i] = np.sqrt(gap) * shown
            row.offsets[i] = turn * shown
            row.rests[i] = max(squares[i] - turn * turn, 0.0) * shown * shown
            row.lengths[i] = length * shown
            row.others[i] = (summed - length) * shown
            row.squares[i] = (total - squares[i]) * shown * shown
            row.gaps[i] = gap * shown * shown

        # The distances to the context of each top set among the visible keys.
        context = 0.0
        size = 0
        for k in range(keys):
            key = order[r, k]
            if not visible[r, key]:
                continue
            context = max(context + 2 * alpha[key] * products[key] + squares[key], 0.0)
            outside[key] = 0.0
            weight, products_of_key = alpha[key], gram[key]
            distance = 0.0
            for i in range(begin, end):
                product = products[i] + weight * products_of_key[i]
                products[i] = product
                distance += outside[i] * np.sqrt(max(squares[i] + context + turned[i] * product, 0.0))
            size += 1
            distances[size], contexts[size] = distance, np.sqrt(context)

        start = 0  # the first length that has the row
        while lengths[start] <= positions[r]:
            start += 1
        others = count - 1
        _fill_variances(row, begin, end, others)
        sums = out.sums[1, start]
        for n in range(1, count):
            p, share = n / others, (count - n) / count
            main = _sum_printed(seen[0, begin:end], seen[1, begin:end], seen[2, begin:end], single(p))
            lower, upper = _sum_corrected(row, begin, end, single(p), single(_variance_factor(n, others)))
            sums[0, n - 1] += distances[n]
            sums[1, n - 1] += share * x_scale * main
            sums[2, n - 1] += share * scale * lower
            sums[3, n - 1] += share * scale * upper
            out.rows[1, start, n - 1] += 1

        for place in range(start, lengths.size):
            length, others = lengths[place], lengths[place] - 1
            hidden = length - count
            _fill_variances(row, begin, end, others)
            variance = max(total - mean2 / others, 0.0)
            sums = out.sums[0, place]
            out.rows[0, place, : length - 1] += 1
            for n in range(1, length):
                p, share = n / others, (length - n) / length
                factor = _variance_factor(n, others)
                main = _sum_printed(printed[0, :length], printed[1, :length], printed[2, :length], single(p))
                lower, upper = _sum_corrected(row, begin, end, single(p), single(factor))
                zero_lower = p * np.sqrt(mean2)
                zero_upper = min(np.sqrt(p * p * mean2 + factor * variance), p * summed)
                if n <= count:
                    sums[0, n - 1] += distances[n] + hidden * contexts[n]
                else:
                    sums[0, n - 1] += (length - n) * np.sqrt(mean2)
                sums[1, n - 1] += share * x_scale * main
                sums[2, n - 1] += share * (scale * lower + hidden * zero_lower)
                sums[3, n - 1] += share * (scale * upper + hidden * zero_upper)


@lru_cache(maxsize=64)
def exact_p_values(n: int) -> Float[np.ndarray, " n_plus_one"]:
    """The p-values p(h) for h = 0 ... n."""
    log_factorial = np.array([lgamma(k + 1) for k in range(2 * n + 1)])
    # C(2n, n - j) / C(2n, n) for j = 0 ... n, as n! n! / ((n-j)! (n+j)!)
    j = np.arange(n + 1)
    share = np.exp(2 * log_factorial[n] - log_factorial[n - j] - log_factorial[n + j])
    p = np.ones(n + 1)
    for h in range(1, n + 1):
        terms = share[h::h]
        p[h] = min(1.0, 2 * float(np.sum(terms[0::2]) - np.sum(terms[1::2])))
    return p


def largest_gaps(
    first: Float[np.ndarray, "tests n"], second: Float[np.ndarray, "tests n"]
) -> Int[np.ndarray, " tests"]:
    """h = n D of each test: the largest difference of the two empirical distribution functions, in units of 1/n."""
    gaps = np.empty(len(first), dtype=np.int64)
    _gaps(np.ascontiguousarray(first), np.ascontiguousarray(second), gaps)
    return gaps


def p_values(first: Float[np.ndarray, "tests n"], second: Float[np.ndarray, "tests n"]) -> Float[np.ndarray, " tests"]:
    """The exact p-value of each test."""
    return exact_p_values(first.shape[1])[largest_gaps(first, second)]


@loop
def _gaps(first: Any, second: Any, gaps: Any) -> None:
    n = first.shape[1]
    for test in range(first.shape[0]):
        a = np.sort(first[test])
        b = np.sort(second[test])
        i = 0
        j = 0
        widest = 0
        while i < n and j < n:
            value = min(a[i], b[j])
            # Skip all copies of the value in both samples before comparing: ties must not count as a difference.
            while i < n and a[i] <= value:
                i += 1
            while j < n and b[j] <= value:
                j += 1
            widest = max(widest, abs(i - j))
        gaps[test] = widest


LEVEL = 0.01  # of the text and the caption of Figure 2
LEVELS = (0.05, LEVEL)  # Algorithm 3 says 0.05


class Critical(NamedTuple):
    """The smallest N that is not rejected, and the smallest N from which none is rejected; None if there is none."""

    first: int | None
    persistent: int | None


def critical_n(p: Float[np.ndarray, " sets"], n: Float[np.ndarray, " sets"], level: float = LEVEL) -> Critical:
    """The critical N from the p-values of ascending N."""
    accepted = p >= level
    first = int(n[int(np.argmax(accepted))]) if accepted.any() else None
    rejected = np.flatnonzero(~accepted)
    after = int(rejected[-1]) + 1 if len(rejected) else 0
    return Critical(first, int(n[after]) if after < len(n) else None)


def subset_p_values(
    distance: Float[np.ndarray, "sets heads"],
    expected: Float[np.ndarray, "sets heads"],
    size: int,
    repeats: int,
    seed: int,
) -> list[Float[np.ndarray, " sets"]]:
    """The p-values of `repeats` random subsets of the heads, each of `size`."""
    random = np.random.default_rng(seed)
    subsets = [random.choice(distance.shape[1], size=size, replace=False) for _ in range(repeats)]
    return [p_values(distance[:, heads], expected[:, heads]) for heads in subsets]
