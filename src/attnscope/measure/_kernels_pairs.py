"""Compiled loops: the nearest two vectors (delta), and the farthest two across a cut (d1).

Both look at all pairs of a group, so matrix products in float32 do the looking. Their error is bounded, every
pair that may be the answer within it is measured in float64, and the answer is exact.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from attnscope.measure._kernels_products import PAIR, PANEL, multiply, pack
from attnscope.normalizers._arithmetic import largest
from attnscope.normalizers._kernels import compiled, helper

_CHECKED = 64
_MOST = 1000


@compiled
def prepare(
    vectors: Any, mean: Any, norms2: Any, norms32: Any, units: Any, unit_squares: Any, unit_panels: Any,
    centred_squares: Any, centred_panels: Any,
) -> float:  # fmt: skip
    """Fill all but the first for one group, and bring the vectors near size 1 by a power of two; its inverse."""
    keys, dims = vectors.shape
    largest_entry = 0.0
    for j in range(keys):
        for k in range(dims):
            largest_entry = max(largest_entry, abs(vectors[j, k]))
    exponent = 0
    if 0 < largest_entry < np.inf:
        exponent = max(-_MOST, min(_MOST, math.frexp(largest_entry)[1]))
    scale = math.ldexp(1.0, -exponent)
    mean[:] = 0
    for j in range(keys):
        for k in range(dims):
            vectors[j, k] *= scale
            mean[k] += vectors[j, k]
    for k in range(dims):
        mean[k] /= keys
    unit_panels[:] = 0
    centred_panels[:] = 0
    centred = np.empty(dims)
    for j in range(keys):
        x, u = vectors[j], units[j]
        top = 0.0
        for k in range(dims):
            top = max(top, abs(x[k]))
        total = total2 = 0.0
        inverse = 1 / top if top > 1e-300 else 0.0
        for k in range(dims):
            scaled = x[k] * inverse  # squares do not vanish
            u[k] = scaled
            total += scaled * scaled
            total2 += x[k] * x[k]
        norms2[j] = norms32[j] = total2
        unit_squares[j] = 1 if total > 0 else 0
        inverse = 1 / np.sqrt(total) if total > 0 else 0.0
        around = 0.0
        for k in range(dims):
            u[k] *= inverse
            centred[k] = x[k] - mean[k]
            around += centred[k] * centred[k]
        centred_squares[j] = around
        pack(u, j, unit_panels)
        pack(centred, j, centred_panels)
    return math.ldexp(1.0, exponent)


@compiled
def pack_all(vectors: Any, panels: Any) -> None:
    """Pack some vectors for products."""
    panels[:] = 0
    for j in range(vectors.shape[0]):
        pack(vectors[j], j, panels)


@helper
def _gap2(x: Any, y: Any) -> float:
    total = 0.0
    for k in range(x.size):
        difference = x[k] - y[k]
        total += difference * difference
    return total


@compiled
def nearest_before(units: Any, squares: Any, panels: Any, error: Any, few: Any, products: Any, out: Any) -> None:
    """out[i] = the smallest squared gap between two of the keys up to i.

    squares: |x|^2 as the products see them; error: bound on a squared gap; few, products: scratch for a block.
    """
    two = np.float32(2)
    block = few.shape[0]
    best = np.inf
    for first in range(0, out.size, block):
        last = min(out.size, first + block)
        few[:] = 0
        for i in range(first, last):
            few[i - first, : units.shape[1]] = units[i]
        multiply(few, panels, 0, -(-last // PANEL), products)
        for own in range(first, last):
            row, norms = products[own - first, :own], squares[:own]
            for j in range(own):
                row[j] = two * row[j] - norms[j]
            if own and squares[own] - largest(row) - error < best:
                for j in range(own):
                    if squares[own] - row[j] - error < best:
                        best = min(best, _gap2(units[own], units[j]))
            out[own] = best


@compiled
def collect_far(
    vectors: Any, mean: Any, squares: Any, panels: Any, cuts: Any, few: Any, products: Any, low: Any, high: Any,
    values: Any,
) -> int:  # fmt: skip
    """List the pairs whose squared gap is above the later key's cut, as many as fit; how many there are."""
    count = 0
    two = np.float32(2)
    block = few.shape[0]
    keys, dims = vectors.shape
    for first in range(0, keys, block):
        last = min(keys, first + block)
        few[:] = 0
        for i in range(first, last):
            for k in range(dims):
                few[i - first, k] = vectors[i, k] - mean[k]
        multiply(few, panels, 0, -(-last // PANEL), products)
        for own in range(first, last):
            cut = cuts[own] - squares[own]
            for begin in range(0, own, _CHECKED):
                end = min(own, begin + _CHECKED)
                row, norms = products[own - first, begin:end], squares[begin:end]
                above = np.int32(0)
                for j in range(row.size):
                    above = np.int32(above + np.int32(norms[j] - two * row[j] > cut))
                if above:
                    for j in range(row.size):
                        value = norms[j] - two * row[j]
                        if value > cut:
                            if count < low.size:
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
def farthest_from(
    key: int, products: Any, norms: Any, vectors: Any, first: int, level: Any, error: Any, far: Any
) -> float:
    """The largest distance of a visible key to one key, given u.x of its vector x with unit vectors from `first` on.

    norms: |x|^2 in float32, of all keys like level, which is negative for unseen ones; far: scratch.
    """
    two, never = np.float32(2), np.float32(-np.inf)
    part, shown = norms[first : first + products.size], level[first : first + products.size]
    for j in range(products.size):
        far[j] = part[j] - two * np.sqrt(part[j]) * products[j] if shown[j] >= 0 else never
    longest = 0.0
    limit = largest(far) - error
    for j in range(products.size):
        if far[j] >= limit:
            longest = max(longest, _gap2(vectors[key], vectors[first + j]))
    return np.sqrt(longest)


@helper
def walk(low: Any, high: Any, gaps: Any, level: Any, sets: int, out: Any) -> int:
    """d1 of one row from pairs in descending order, for the sets of which it is NaN; for how many it stays so.

    A pair is across the cut of set s if one end is in the set and the other is visible and not. level: the smallest
    set a key is in, `sets` for the other visible keys, -1 for unseen ones.
    """
    missing = 0
    for s in range(sets):
        missing += out[s] != out[s]
    for i in range(low.size):
        if missing == 0:
            break
        a, b = level[low[i]], level[high[i]]
        if a == b or a < 0 or b < 0:
            continue
        for s in range(min(a, b), max(a, b)):
            if out[s] != out[s]:
                out[s] = gaps[i]
                missing -= 1
    return missing


@helper
def farthest_across(
    vectors: Any, mean: Any, squares: Any, panels: Any, error: Any, begin: int, end: int, members: Any, counts: Any,
    level: Any, few: Any, products: Any, across: Any, out: Any,
) -> None:  # fmt: skip
    """d1 of one row for some of its sets, from the products of all members with the keys of panels `begin` to `end`.

    squares: |x|^2 as the products see them; error: bound on a squared gap; few, products (members, keys of a chunk) and
    across (sets, keys) are scratch.
    """
    two, never = np.float32(2), np.float32(-np.inf)
    sets = counts.size
    size = counts[sets - 1]
    few[:] = 0
    for c in range(size):
        for k in range(mean.size):
            few[c, k] = vectors[members[c], k] - mean[k]
    base, chunk = begin * PANEL, products.shape[1] // PANEL
    for part in range(begin, end, chunk):
        last = min(end, part + chunk)
        multiply(few[: size + size % PAIR], panels, part, last, products)
        first = part * PANEL
        width = min(last * PANEL, squares.size) - first
        norms, seen = squares[first : first + width], level[first : first + width]
        done = 0
        for s in range(sets):
            best = across[s, first - base : first - base + width]
            if s == 0:
                best[:] = never
            else:
                best[:] = across[s - 1, first - base : first - base + width]
            for c in range(done, counts[s]):
                row, own = products[c, :width], squares[members[c]]
                for j in range(width):
                    value = own - two * row[j]
                    best[j] = value if value > best[j] else best[j]
            done = counts[s]
        for s in range(sets):
            best = across[s, first - base : first - base + width]
            for j in range(width):  # members and unseen keys are on no other side
                best[j] = best[j] + norms[j] if seen[j] > s else never
    width = min(end * PANEL, squares.size) - base
    for s in range(sets):
        best = across[s, :width]
        limit = largest(best) - error
        longest = 0.0
        for j in range(width):
            if best[j] >= limit and level[base + j] > s:
                for c in range(counts[s]):
                    longest = max(longest, _gap2(vectors[members[c]], vectors[base + j]))
        out[s] = np.sqrt(longest)
