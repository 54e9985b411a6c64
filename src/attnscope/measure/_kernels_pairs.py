"""Compiled loops: the nearest two vectors (delta), and the farthest two across a cut (d1).

Both look at all pairs of a group, so matrix products in float32 do the looking. Their error is bounded, every
pair that may be the answer within it is measured in float64, and the answer is exact.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from attnscope._kernels_tiles import PANEL
from attnscope.measure._kernels_panels import INTEGER_ONE, integer_error, pack, panels_to_integers, to_integers
from attnscope.measure._kernels_products import AT_ONCE, any_above, keep_most, multiply, next_above
from attnscope.normalizers._arithmetic import largest
from attnscope.normalizers._kernels import compiled, helper

_MOST = 1000
_VANISHING = 1e-200  # squares below this have lost digits
_CHECKED = 64  # keys that are passed over together where none of them matters
_NEVER: Any = np.float32(-np.inf)
_LOWEST = -(2**31) + 2


@compiled
def prepare(
    source: Any, vectors: Any, mean: Any, norms2: Any, norms32: Any, inverses: Any, unit_squares: Any, unit_panels: Any,
    centred_squares: Any, centred_panels: Any,
) -> tuple[float, float, bool]:  # fmt: skip
    """Fill all but the first for one group, its vectors brought near size 1 by a power of two.

    The inverse of that power, the largest centred square, and whether all numbers are finite; only if not, it may be
    that their squares are too large.
    """
    keys, dims = source.shape
    size = of_all = 0.0
    for j in range(keys):
        total = 0.0
        for k in range(dims):
            total += np.float64(source[j, k]) * np.float64(source[j, k])
        size = max(size, total)
        of_all += total
    if _VANISHING < size < 1 / _VANISHING:
        size = np.sqrt(size)
    else:  # the squares may have vanished, or left all bounds
        size = 0.0
        for j in range(keys):
            for k in range(dims):
                size = max(size, abs(np.float64(source[j, k])))
    exponent = 0
    if 0 < size < np.inf:
        exponent = max(-_MOST, min(_MOST, math.frexp(size)[1]))
    scale = math.ldexp(1.0, -exponent)
    mean[:] = 0
    for j in range(keys):
        for k in range(dims):
            vectors[j, k] = source[j, k] * scale
            mean[k] += vectors[j, k]
    for k in range(dims):
        mean[k] /= keys
    spread = 0.0
    for j in range(keys):
        x = vectors[j]
        total = around = 0.0
        for k in range(dims):
            total += x[k] * x[k]
            around += (x[k] - mean[k]) * (x[k] - mean[k])
        norms2[j] = norms32[j] = total
        inverses[j] = 1 / np.sqrt(total) if total > _VANISHING else _inverse_of_small(x)
        unit_squares[j] = 1 if inverses[j] > 0 else 0
        centred_squares[j] = around
        spread = max(spread, around)
    pack(vectors, np.zeros(dims), inverses, unit_panels)
    pack(vectors, mean, np.ones(keys), centred_panels)
    return math.ldexp(1.0, exponent), spread, of_all < np.inf


@helper
def _inverse_of_small(x: Any) -> float:
    """1 / |x| of a vector whose squares may vanish; 0 for zero, or as good as zero."""
    top = total = 0.0
    for k in range(x.size):
        top = max(top, abs(x[k]))
    if not top > 1e-300:
        return 0.0
    for k in range(x.size):
        total += (x[k] / top) * (x[k] / top)
    return 1 / (top * np.sqrt(total))


@compiled
def pack_units(vectors: Any, inverses: Any, panels: Any) -> None:
    """Pack the unit vectors of some vectors for products."""
    pack(vectors, np.zeros(vectors.shape[1]), inverses, panels)


@helper
def _gap2(x: Any, y: Any) -> float:
    total = 0.0
    for k in range(x.size):
        difference = x[k] - y[k]
        total += difference * difference
    return total


@helper
def _unit_gap2(x: Any, by: float, y: Any, by_other: float) -> float:
    """The squared gap of the unit vectors by x and by_other y."""
    total = 0.0
    for k in range(x.size):
        difference = by * x[k] - by_other * y[k]
        total += difference * difference
    return total


@compiled
def nearest_before(
    vectors: Any, inverses: Any, squares: Any, panels: Any, error: Any, few: Any, products: Any, integers: Any,
    integer_panels: Any, out: Any,
) -> None:  # fmt: skip
    """out[i] = the smallest gap between the unit vectors of two of the keys up to i.

    inverses: what makes unit vectors; squares: their |u|^2; error: bound on a squared gap; few, products, integers:
    scratch for six rows; integer_panels: for all keys. The squared gap of two unit vectors is 2 - 2 u.v: where no
    product is above a cut, none is nearer. Integers say so of most keys, float32 of most others.
    """
    keys, dims = vectors.shape
    panels_to_integers(panels, integer_panels)
    cut, nearest = np.empty(1, np.int32), np.empty(AT_ONCE)
    best = np.inf
    zeros = 0
    for first in range(0, keys, AT_ONCE):
        rows = min(AT_ONCE, keys - first)
        for row in range(rows):
            own = first + row
            for k in range(dims):
                few[row, k] = vectors[own, k] * inverses[own]
            to_integers(few[row], integers[row])
            nearest[row] = min(best, _gap2_to_zero(squares[own], own, zeros))
            zeros += squares[own] == 0
        whole = first // PANEL  # panels of keys that all come before the rows
        p = -1
        while p < whole:
            cut[0] = _integer_cut(largest(nearest[:rows]), dims)
            p = next_above(integers, integer_panels, p + 1, whole, cut)
            multiply(few, rows, panels, p, p + 1, products)
            for row in range(rows):
                end = min((p + 1) * PANEL, first + row)
                _look_nearer(vectors, inverses, error, first + row, p * PANEL, end, products[row], nearest[row:])
        if first + rows > (whole + 1) * PANEL:
            multiply(few, rows, panels, whole + 1, whole + 2, products)
            for row in range(rows):
                begin = (whole + 1) * PANEL
                _look_nearer(vectors, inverses, error, first + row, begin, first + row, products[row], nearest[row:])
        for row in range(rows):
            best = min(best, nearest[row])
            out[first + row] = np.sqrt(best)
        if best == 0:  # nothing can be nearer
            out[first + rows :] = 0
            return


@helper
def _gap2_to_zero(square: Any, before: int, zeros: int) -> float:
    """The squared gap to an earlier vector if one of the two is zero, which products do not tell; else infinity."""
    if square == 0 and zeros:
        return 0.0
    return 1.0 if zeros or (square == 0 and before) else np.inf


@helper
def _integer_cut(gap2: float, dims: int) -> Any:
    """The product in integers above which a squared gap may be below `gap2`."""
    return np.int32(max(_LOWEST, (1 - gap2 / 2) * INTEGER_ONE**2 - integer_error(dims) - 1))


@helper
def _look_nearer(
    vectors: Any, inverses: Any, error: Any, own: int, begin: int, end: int, products: Any, nearest: Any
) -> None:
    """Measure the keys from `begin` to `end` that may be nearer to `own` than any before."""
    cut = np.float32((2 - error - nearest[0]) / 2)
    near = np.int32(0)
    for j in range(end - begin):
        near = np.int32(near + np.int32(products[j] > cut))
    if near:
        for j in range(begin, end):
            if products[j - begin] > cut:
                nearest[0] = min(nearest[0], _unit_gap2(vectors[own], inverses[own], vectors[j], inverses[j]))


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
    start = np.full(panels.shape[0] * PANEL, _NEVER)
    for j in range(keys):
        start[j] = squares[j] / two
    halves = np.empty(block, np.float32)  # of the cut without the later key's square
    for first in range(0, keys, block):
        rows = min(block, keys - first)
        halves[:] = np.inf
        for i in range(rows):
            halves[i] = (cuts[first + i] - squares[first + i]) / two
            for k in range(dims):
                few[i, k] = mean[k] - vectors[first + i, k]
        for p in range(-(-(first + rows) // PANEL)):
            for i in range(0, rows, AT_ONCE):
                if any_above(few, i, panels, p, start, halves):
                    multiply(few[i : i + AT_ONCE], AT_ONCE, panels, p, p + 1, products)
                    for row in range(i, min(rows, i + AT_ONCE)):
                        own = first + row
                        for j in range(p * PANEL, min(own, (p + 1) * PANEL)):
                            value = start[j] + products[row - i, j - p * PANEL]
                            if value > halves[row]:
                                if count < low.size:
                                    low[count], high[count] = j, own
                                    values[count] = two * value + squares[own]
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
    two = np.float32(2)
    part, shown = norms[first : first + products.size], level[first : first + products.size]
    for j in range(products.size):
        far[j] = part[j] - two * np.sqrt(part[j]) * products[j] if shown[j] >= 0 else _NEVER
    longest = 0.0
    limit = largest(far) - error
    for begin in range(0, far.size, _CHECKED):
        chunk = far[begin : begin + _CHECKED]
        close = np.int32(0)
        for j in range(chunk.size):
            close = np.int32(close + np.int32(chunk[j] >= limit))
        if close:
            for j in range(chunk.size):
                if chunk[j] >= limit:
                    longest = max(longest, _gap2(vectors[key], vectors[first + begin + j]))
    return np.sqrt(longest)


@compiled
def by_key(
    low: Any, high: Any, gaps: Any, starts: Any, longest: Any, partners: Any, partner_gaps: Any, offset: int
) -> None:
    """For every key its partners in a list of pairs, in the list's order: those of key i from starts[i] to starts[i+1].

    Both count from `offset`, where the list begins in `partners` and `partner_gaps`. longest: a key's first gap, -1 if
    it has none.
    """
    starts[:] = 0
    for i in range(low.size):
        starts[low[i] + 1] += 1
        starts[high[i] + 1] += 1
    starts[0] = offset
    for key in range(starts.size - 1):
        starts[key + 1] += starts[key]
    place = starts.copy()
    for i in range(low.size):
        for key, other in ((low[i], high[i]), (high[i], low[i])):
            partners[place[key]], partner_gaps[place[key]] = other, gaps[i]
            place[key] += 1
    for key in range(longest.size):
        longest[key] = partner_gaps[starts[key]] if starts[key] < starts[key + 1] else -1.0


@helper
def farthest_listed(
    starts: Any, longest: Any, partners: Any, gaps: Any, members: Any, counts: Any, level: Any, out: Any
) -> int:
    """d1 of one row from lists of far pairs by key, for the sets of which it is NaN; for how many it stays so.

    A pair is across the cut of set s if one end is in the set and the other is visible and not. level: the smallest
    set a key is in, the number of sets for the other visible keys, -1 for unseen ones.
    """
    missing = 0
    for s in range(counts.size):
        if out[s] == out[s]:
            continue
        found = -1.0
        for c in range(counts[s]):
            key = members[c]
            if longest[key] > found:
                for i in range(starts[key], starts[key + 1]):
                    if gaps[i] <= found:
                        break
                    if level[partners[i]] > s:
                        found = gaps[i]
                        break
        if found >= 0:
            out[s] = found
        else:
            missing += 1
    return missing


@helper
def farthest_across(
    vectors: Any, mean: Any, squares: Any, panels: Any, error: Any, begin: int, end: int, members: Any, counts: Any,
    level: Any, few: Any, across: Any, out: Any,
) -> None:  # fmt: skip
    """d1 of one row for the sets of which it is NaN, from the products of members with the keys of some panels.

    squares: |x|^2 as the products see them; error: bound on a squared gap; few (members) and across (2, keys) are
    scratch.
    """
    two = np.float32(2)
    base = begin * PANEL
    width = min(end * PANEL, squares.size) - base
    norms, seen = squares[base : base + width], level[base : base + width]
    start, best = np.full(few.shape[0], _NEVER), across[0]
    best[:] = _NEVER
    done = 0
    for s in range(counts.size):
        if out[s] == out[s]:
            continue
        for c in range(done, counts[s]):
            start[c] = squares[members[c]] / two
            for k in range(mean.size):
                few[c, k] = mean[k] - vectors[members[c], k]
        if counts[s] > done:
            keep_most(few[done:], counts[s] - done, start[done:], panels, begin, end, best)
        done = counts[s]
        far = across[1, :width]
        for j in range(width):  # members and unseen keys are on no other side
            far[j] = two * best[j] + norms[j] if seen[j] > s else _NEVER
        limit = largest(far) - error
        longest = 0.0
        for j in range(width):
            if far[j] >= limit and seen[j] > s:
                for c in range(counts[s]):
                    longest = max(longest, _gap2(vectors[members[c]], vectors[base + j]))
        out[s] = np.sqrt(longest)
