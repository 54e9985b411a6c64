"""Compiled loops: the top sets of many rows and their contexts.

The sets are nested and only membership counts, so no row is sorted: a selection gives the largest set, another
inside it the next smaller one, and so on. Ties go to the earlier key, as `theory.configuration.top_sets` says.

A selection looks for a number that separates the members from the rest. Weights are not negative (rows where one is are
left out), so they are in the order of their bits; halving the range of bits and counting takes a dozen passes without a
branch on any weight.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from attnscope.normalizers._kernels import helper

_MOST = 1000  # so that 1 / lift is a normal number too
_INFINITY_BITS = np.int64(0x7FF0000000000000)


@helper
def _at_least(bits: Any, least: Any) -> Any:
    count = np.int64(0)
    for j in range(bits.size):
        count += np.int64(bits[j] >= least)
    return count


@helper
def _keep_top(bits: Any, keys: Any, count: Any, low: Any, high: Any, dropped: Any) -> None:
    """Move the `count` largest to the front, in their order; the keys of the others go to `dropped`.

    All are below `high`, and none is below `low` that is not zero.
    """
    ties: Any = np.int64(0)  # how many of those equal to `low` are members
    above = _at_least(bits, low)
    if above < count:
        low, ties = np.int64(0), count - above
    # At least `count` are not below low, fewer are not below high.
    while above != count and ties == 0:
        if high - low == 1:
            ties = count - _at_least(bits, high)
            break
        middle = low + (high - low) // 2
        above = _at_least(bits, middle)
        if above >= count:
            low = middle
        else:
            high = middle
    least = low if ties == 0 else low + 1
    kept = left = 0
    for j in range(bits.size):
        value, key = bits[j], keys[j]
        taken = value >= least
        if ties > 0 and value == low:
            taken = True
            ties -= 1
        bits[kept], keys[kept] = value, key
        kept += taken
        dropped[left] = key
        left += not taken


@helper
def lift_of(bits: Any) -> float:
    """The power of two that brings the largest of some weights near 1; NaN if one of them is no number."""
    high = np.int64(0)
    for j in range(bits.size):
        high = bits[j] if bits[j] > high else high
    if high >= _INFINITY_BITS:
        return np.nan
    top = np.int64(high).view(np.float64)
    return math.ldexp(1.0, max(-_MOST, min(_MOST, -math.frexp(top)[1]))) if top > 0 else 1.0


@helper
def choose(bits: Any, keys: Any, wanted: Any, dropped: Any, members: Any, counts: Any) -> None:
    """The top sets of a row, from the bits of its weights and their keys, which end up in another order.

    wanted: N for every set, ascending; members: keys, those of a smaller set first; counts: N, or the row's length
    where that is less; dropped: scratch of one more than the row.
    """
    sets = wanted.size
    high = np.int64(0)
    for j in range(bits.size):
        high = bits[j] if bits[j] > high else high
    low = high
    for j in range(bits.size):
        low = bits[j] if bits[j] < low else low
    low = max(low, np.int64(1))
    left = bits.size
    for s in range(sets - 1, -1, -1):
        count = counts[s] = min(wanted[s], bits.size)
        if count < left:
            _keep_top(bits[:left], keys[:left], count, low, high + 1, dropped)
            if s < sets - 1:
                for c in range(left - count):
                    members[count + c] = dropped[c]
        left = count
    for c in range(left):
        members[c] = keys[c]


@helper
def add_up(
    weights: Any, vectors: Any, inverses: Any, members: Any, counts: Any, contexts: Any, unit_contexts: Any
) -> None:
    """The sums of the weighted vectors of every set, and of its weighted unit vectors; four vectors at a time."""
    total, unit_total = contexts[counts.size - 1], unit_contexts[counts.size - 1]
    total[:] = 0
    unit_total[:] = 0
    done = 0
    for s in range(counts.size):
        whole = done + (counts[s] - done) // 4 * 4
        for c in range(done, whole, 4):
            i, j, m, n = members[c], members[c + 1], members[c + 2], members[c + 3]
            w_i, w_j, w_m, w_n = weights[i], weights[j], weights[m], weights[n]
            x_i, x_j, x_m, x_n = vectors[i], vectors[j], vectors[m], vectors[n]
            for k in range(total.size):
                total[k] += (w_i * x_i[k] + w_j * x_j[k]) + (w_m * x_m[k] + w_n * x_n[k])
            v_i, v_j, v_m, v_n = inverses[i], inverses[j], inverses[m], inverses[n]
            for k in range(total.size):
                unit_total[k] += (w_i * (v_i * x_i[k]) + w_j * (v_j * x_j[k])) + (
                    w_m * (v_m * x_m[k]) + w_n * (v_n * x_n[k])
                )
        for c in range(whole, counts[s]):
            weight, inverse, x = weights[members[c]], inverses[members[c]], vectors[members[c]]
            for k in range(total.size):
                total[k] += weight * x[k]
            for k in range(total.size):
                unit_total[k] += weight * (inverse * x[k])
        done = counts[s]
        contexts[s] = total
        unit_contexts[s] = unit_total
