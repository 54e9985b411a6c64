"""Compiled loops: the nearest two vectors (delta), and the farthest two across a cut (d1).

Both look at all pairs of a group, so matrix products do the looking, of integers first and of float32 where those
cannot tell. Their error is bounded, every pair that may be the answer within it is measured in float64, and the answer
is exact.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from attnscope._kernels_tiles import PANEL
from attnscope.measure._kernels_panels import (
    INTEGER_ONE,
    integer_error,
    pack,
    panels_to_distances,
    panels_to_integers,
    to_distances,
    to_integers,
)
from attnscope.measure._kernels_products import AT_ONCE, keep_most, multiply, next_above
from attnscope.normalizers._arithmetic import largest
from attnscope.normalizers._kernels import compiled, helper, rounding

_MOST = 1000
_VANISHING = 1e-200  # squares below this have lost digits
_FIRST = 2 * AT_ONCE  # members whose distances are found before integers pass over those of the others
_CHECKED = 64  # keys that are passed over together where none of them matters
_NEVER: Any = np.float32(-np.inf)
_LOWEST, _HIGHEST = -(2**31) + 2, 2**31 - 1


@compiled
def prepare(
    source: Any, vectors: Any, mean: Any, norms2: Any, norms32: Any, inverses: Any, unit_squares: Any, unit_panels: Any,
    centred_squares: Any, centred_panels: Any, distance_panels: Any,
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
    panels_to_distances(centred_panels, centred_squares, _shortened(spread), distance_panels)
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


@rounding
def _unit_gap2(x: Any, by: float, y: Any, by_other: float) -> float:
    """The squared gap of the unit vectors by x and by_other y: zero if they are the same."""
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
    one = np.float32(1)
    panels_to_integers(panels, one, integer_panels)
    cut, nearest = np.empty(1, np.int32), np.empty(AT_ONCE)
    best = np.inf
    zeros = 0
    for first in range(0, keys, AT_ONCE):
        rows = min(AT_ONCE, keys - first)
        for row in range(rows):
            own = first + row
            for k in range(dims):
                few[row, k] = vectors[own, k] * inverses[own]
            to_integers(few[row], one, integers[row])
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
    return np.int32(max(_LOWEST, (1 - gap2 / 2) * INTEGER_ONE**2 - integer_error(dims, 1.0) - 1))


@helper
def _shortened(spread: float) -> Any:
    """What centred vectors are multiplied by before they become integers; spread: the largest of their squares.

    Half a squared gap then stays below 2, as it must.
    """
    return np.float32(0.98 / np.sqrt(spread) if spread > 0 else 0.0)


@helper
def _distance_cut(gap2: float, spread: float, dims: int) -> Any:
    """The product in integers above which a squared gap of centred vectors may be above `gap2`.

    A vector that tells distances is at most sqrt(0.98^2 + 0.49^2 + 1) long.
    """
    half = gap2 / 2 * np.float64(_shortened(spread)) ** 2
    return np.int32(min(_HIGHEST, max(_LOWEST, half * INTEGER_ONE**2 - integer_error(dims + 2, 1.5) - 1)))


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
    vectors: Any, mean: Any, squares: Any, panels: Any, spread: float, distance_panels: Any, cuts: Any, few: Any,
    products: Any, integers: Any, low: Any, high: Any, values: Any,
) -> int:  # fmt: skip
    """List the pairs whose squared gap is above the later key's cut, as many as fit; how many there are.

    Integers pass over most panels, with the lowest cut of six keys.
    """
    count = 0
    two, by = np.float32(2), _shortened(spread)
    keys, dims = vectors.shape
    cut = np.empty(1, np.int32)
    for first in range(0, keys, AT_ONCE):
        rows = min(AT_ONCE, keys - first)
        lowest = np.inf
        for row in range(rows):
            own = first + row
            for k in range(dims):
                few[row, k] = mean[k] - vectors[own, k]
            to_distances(few[row], squares[own], by, integers[row])
            lowest = min(lowest, cuts[own])
        cut[0] = _distance_cut(lowest, spread, dims)
        p, end = -1, -(-(first + rows) // PANEL)
        while True:
            p = next_above(integers, distance_panels, p + 1, end, cut)
            if p == end:
                break
            multiply(few, AT_ONCE, panels, p, p + 1, products)
            for row in range(rows):
                own = first + row
                for j in range(p * PANEL, min(own, (p + 1) * PANEL)):
                    value = two * products[row, j - p * PANEL] + squares[j] + squares[own]
                    if value > cuts[own]:
                        if count < low.size:
                            low[count], high[count], values[count] = j, own, value
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
    vectors: Any, mean: Any, squares: Any, panels: Any, spread: float, distance_panels: Any, error: Any, begin: int,
    end: int, members: Any, counts: Any, level: Any, few: Any, integers: Any, across: Any, out: Any,
) -> None:  # fmt: skip
    """d1 of one row for the sets of which it is NaN, from the products of members with the keys of some panels.

    squares: |x|^2 as the products see them; error: bound on a squared gap; few (members), integers (six) and across
    (2, keys) are scratch.
    """
    base = begin * PANEL
    width = min(end * PANEL, squares.size) - base
    norms, seen = squares[base : base + width], level[base : base + width]
    start, best, far = np.full(few.shape[0], _NEVER), across[0], across[1, :width]
    best[:] = _NEVER
    last = 0
    for s in range(counts.size):
        last = s if out[s] != out[s] else last
    done = 0
    for s in range(last + 1):
        if out[s] == out[s]:
            continue
        for c in range(done, counts[s]):
            start[c] = squares[members[c]] / np.float32(2)
            for k in range(mean.size):
                few[c, k] = mean[k] - vectors[members[c], k]
        some = counts[s]
        if s == last and width > 2 * some:
            # The others of the last set only have to be looked at where they may be farther than these.
            some = min(some, max(done, _FIRST))
        if some > done:
            keep_most(few[done:], some - done, start[done:], panels, begin, end, best)
        done = counts[s]
        limit = _across(best, norms, seen, s, far) - error
        if some < done:
            _keep_farther(few[:done], start, some, panels, spread, distance_panels, limit, begin, end, integers, best)
            limit = _across(best, norms, seen, s, far) - error
        longest = 0.0
        for j in range(width):
            if far[j] >= limit and seen[j] > s:
                for c in range(done):
                    longest = max(longest, _gap2(vectors[members[c]], vectors[base + j]))
        out[s] = np.sqrt(longest)


@helper
def _across(best: Any, norms: Any, seen: Any, s: int, far: Any) -> Any:
    """The largest squared gap of each key outside a set to its members so far, and the largest of all."""
    for j in range(far.size):  # members and unseen keys are on no other side
        far[j] = np.float32(2) * best[j] + norms[j] if seen[j] > s else _NEVER
    return largest(far)


@helper
def _keep_farther(
    few: Any, start: Any, some: int, panels: Any, spread: float, distance_panels: Any, gap2: float, begin: int,
    end: int, integers: Any, best: Any,
) -> None:  # fmt: skip
    """`keep_most` for all but `some` of the few, at least where their squared gaps may be above `gap2`."""
    cut = np.empty(1, np.int32)
    cut[0] = _distance_cut(gap2, spread, few.shape[1])
    by = _shortened(spread)
    for i in range(some, few.shape[0], AT_ONCE):
        first = min(i, few.shape[0] - AT_ONCE)
        for row in range(AT_ONCE):
            to_distances(few[first + row], np.float32(2) * start[first + row], by, integers[row])
        p = begin - 1
        while True:
            p = next_above(integers, distance_panels, p + 1, end, cut)
            if p == end:
                break
            keep_most(few[first:], AT_ONCE, start[first:], panels, p, p + 1, best[(p - begin) * PANEL :])
