"""Compiled loops: the nearest two vectors (delta), and the farthest two across a cut (d1).

Both look at all pairs of a group, so matrix products in float32 do the looking. Their error is bounded, every
pair that may be the answer within it is measured in float64, and the answer is exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from attnscope.normalizers._kernels import RELAXED, compiled, helper

_CHECKED = 64
_FLOAT64 = 1e-12  # more than the rounding of a squared gap made of products


@compiled
def prepare(
    vectors: Any, units: Any, norms2: Any, units32: Any, unit_squares: Any, centred: Any, centred_squares: Any
) -> None:
    """Fill all but the first, for one group: unit vectors, squared norms, and float32 for looking at pairs."""
    keys, dims = vectors.shape
    mean = np.zeros(dims)
    for j in range(keys):
        for k in range(dims):
            mean[k] += vectors[j, k]
    for k in range(dims):
        mean[k] /= keys
    for j in range(keys):
        x, u = vectors[j], units[j]
        largest = 0.0
        for k in range(dims):
            largest = max(largest, abs(x[k]))
        total = total2 = 0.0
        for k in range(dims):
            scaled = x[k] / largest if largest > 0 else 0.0  # squares neither overflow nor vanish
            u[k] = scaled
            total += scaled * scaled
            total2 += x[k] * x[k]
        norms2[j] = total2
        unit_squares[j] = 1 if total > 0 else 0
        inverse = 1 / np.sqrt(total) if total > 0 else 0.0
        around = np.float32(0)
        for k in range(dims):
            u[k] *= inverse
            units32[j, k] = u[k]
            centred[j, k] = x[k] - mean[k]
            around += centred[j, k] * centred[j, k]
        centred_squares[j] = around


@njit(fastmath={*RELAXED, "nnan"}, error_model="numpy")
def _highest(products: Any, squares: Any) -> Any:
    """The largest 2 x.y - |y|^2: the y nearest to x."""
    best = np.float32(-np.inf)
    two = np.float32(2)
    for j in range(products.size):
        value = two * products[j] - squares[j]
        best = value if value > best else best
    return best


@helper
def _gap2(x: Any, y: Any) -> float:
    total = 0.0
    for k in range(x.size):
        difference = x[k] - y[k]
        total += difference * difference
    return total


@compiled
def nearest_before(products: Any, vectors: Any, squares: Any, first: int, error: Any, out: Any) -> None:
    """out[i] = smallest squared gap of keys first + i to an earlier key, or infinity where it sets no new minimum.

    products: (block, earlier keys) float32; squares: |x|^2 as the products see them; error: bound on a squared gap.
    """
    best = np.inf
    two = np.float32(2)
    for i in range(out.size):
        own = first + i
        out[i] = np.inf
        if own == 0:
            continue
        row, norms = products[i, :own], squares[:own]
        if squares[own] - _highest(row, norms) - error >= best:
            continue
        for j in range(own):
            if squares[own] - (two * row[j] - norms[j]) - error < best:
                best = min(best, _gap2(vectors[own], vectors[j]))
                out[i] = best


@compiled
def collect_far(
    products: Any, squares: Any, first: int, cuts: Any, low: Any, high: Any, values: Any, limit: int
) -> int:
    """List the pairs of a block whose squared gap is above the later key's cut; how many there are."""
    count = 0
    two = np.float32(2)
    for i in range(products.shape[0]):
        own = first + i
        cut = cuts[own] - squares[own]
        for begin in range(0, own, _CHECKED):
            end = min(own, begin + _CHECKED)
            row, norms = products[i, begin:end], squares[begin:end]
            above = 0
            for j in range(row.size):
                above += norms[j] - two * row[j] > cut
            if above:
                for j in range(row.size):
                    value = norms[j] - two * row[j]
                    if value > cut:
                        if count < limit:
                            low[count], high[count] = begin + j, own
                            values[count] = value + squares[own]
                        count += 1
    return count


@compiled
def sample_gaps(vectors: Any, keys: int, out: Any) -> None:
    """Squared gaps of pairs of the first `keys` vectors, drawn by a fixed sequence."""
    state = np.uint64(88172645463325252)
    for i in range(out.size):
        state ^= state << np.uint64(13)
        state ^= state >> np.uint64(7)
        state ^= state << np.uint64(17)
        a = np.int64((state >> np.uint64(33)) % np.uint64(keys))
        b = np.int64((state & np.uint64(0x7FFFFFFF)) % np.uint64(keys))
        out[i] = _gap2(vectors[a], vectors[b])


@compiled
def pair_gaps(vectors: Any, low: Any, high: Any, out: Any) -> None:
    """Exact distances of listed pairs."""
    for i in range(out.size):
        out[i] = np.sqrt(_gap2(vectors[low[i]], vectors[high[i]]))


@helper
def _farthest_from(key: int, products: Any, norms2: Any, vectors: Any, first: int, level: Any) -> float:
    """The largest distance of a visible key to one key, given the products of its vector with keys from `first` on."""
    top = 0.0
    own = norms2[key]
    for j in range(products.size):
        value = norms2[first + j] - 2 * products[j] + own
        top = value if value > top and level[first + j] >= 0 else top
    longest = 0.0
    for j in range(products.size):
        other = norms2[first + j]
        if level[first + j] >= 0 and other - 2 * products[j] + own >= top - _FLOAT64 * (other + own):
            longest = max(longest, _gap2(vectors[key], vectors[first + j]))
    return np.sqrt(longest)


@compiled
def walk(
    low: Any,
    high: Any,
    gaps: Any,
    complete_above: float,
    rows: Any,
    weights: Any,
    masks: Any,
    mask_of: Any,
    vectors: Any,
    norms2: Any,
    members: Any,
    counts: Any,
    first: int,
    products: Any,
    out: Any,
) -> None:
    """d1 of a block's rows and sets from pairs in descending order; NaN in all sets of a row whose list was too short.

    A pair is across the cut of set s if one end is in the set and the other is visible and not. A set of one has few
    such pairs, so it takes its largest gap from the products with its context.
    """
    sets = counts.shape[1]
    # The smallest set a key is in, `sets` for the other visible keys, -1 for unseen ones.
    level = np.empty(weights.shape[1], np.int64)
    for r in range(rows.size):
        seen = masks[mask_of[rows[r]]]
        for j in range(seen.size):
            level[j] = sets if seen[j] else -1
        for s in range(sets - 1, -1, -1):
            for c in range(counts[r, s]):
                level[members[r, c]] = s
        found = out[r]
        missing = sets
        for s in range(sets):
            found[s] = np.nan
            key = members[r, 0]
            weight = weights[rows[r], key]
            if counts[r, s] == 1 and weight > 0:
                row = products[r, s]
                scaled = np.empty(row.size)
                for j in range(row.size):
                    scaled[j] = row[j] / weight
                found[s] = _farthest_from(key, scaled, norms2, vectors, first, level)
                missing -= 1
        for i in range(low.size):
            if missing == 0 or gaps[i] < complete_above:
                break
            a, b = level[low[i]], level[high[i]]
            if a < 0 or b < 0 or a == b:
                continue
            for s in range(min(a, b), max(a, b)):
                if found[s] != found[s]:
                    found[s] = gaps[i]
                    missing -= 1
        if missing:
            found[0] = np.nan


@compiled
def farthest_across(
    products: Any,
    squares: Any,
    error: Any,
    vectors: Any,
    first: int,
    members: Any,
    counts: Any,
    seen: Any,
    best: Any,
    out: Any,
) -> None:
    """d1 of one row for all its sets, from the products (members, some keys) of its members with keys from `first` on.

    squares: |x|^2 as the products see them; error: bound on a squared gap; best: scratch of (2, some keys).
    """
    two = np.float32(2)
    width = products.shape[1]
    nearest, shown = best[0, :width], best[1, :width]
    norms = squares[first : first + width]
    for j in range(width):
        nearest[j] = -np.inf
        shown[j] = norms[j] if seen[first + j] else -np.inf
    done = 0
    for s in range(counts.size):
        for c in range(done, counts[s]):
            row, own = products[c, :width], squares[members[c]]
            for j in range(width):
                value = own - two * row[j]
                nearest[j] = value if value > nearest[j] else nearest[j]
            shown[members[c] - first] = -np.inf
        done = counts[s]
        top = np.float32(-np.inf)
        for j in range(width):
            value = nearest[j] + shown[j]
            top = value if value > top else top
        longest = 0.0
        limit = top - error
        for j in range(width):
            if nearest[j] + shown[j] >= limit and shown[j] >= 0:
                for c in range(counts[s]):
                    if squares[members[c]] - two * products[c, j] + norms[j] >= limit:
                        longest = max(longest, _gap2(vectors[members[c]], vectors[first + j]))
        out[s] = np.sqrt(longest)
