"""Compiled loop: the columns of one row, from its top sets and their products with all vectors."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from attnscope._kernels_tiles import PANEL
from attnscope.measure._kernels_pairs import farthest_across, farthest_from, farthest_listed
from attnscope.measure._kernels_sets import Terms, bounds, dot, edge, is_inside, nearest, norm2, rests, set_sums
from attnscope.normalizers._kernels import helper

# float32 lines of whole panels of keys that a row needs.
LINES = 12
# float64 lines of `SHORT` keys that a short row needs, and one more for each set.
EXACT_LINES = 10
SHORT = 128  # rows up to this length are summed in float64
FLOAT32 = 2.0**-24


class Vectors(NamedTuple):
    """The vectors of a group, as `measure.layer.Group` describes them."""

    vectors: Any  # (keys, dims)
    center: Any  # (dims,) their mean
    norms2: Any  # (keys,)
    norms32: Any  # (keys,) the same in float32
    inverses: Any  # (keys,) 1 / |x|, 0 for zero
    unit_squares: Any  # (keys,) float32, 1 or 0
    unit_panels: Any
    centred_squares: Any  # (keys,) float32
    centred_panels: Any
    distance_panels: Any
    spread: float  # the largest of the centred squares
    error: Any  # bound on a squared gap of centred vectors from float32 products
    scale: float  # what lengths are multiplied by in the end
    largest2: float  # of norms2


class FarPairs(NamedTuple):
    """`measure.layer.FarPairs`."""

    prefixes: Any  # (lists,) the keys that a list of far pairs is for
    starts: Any  # (lists, keys + 1) where the partners of a key begin
    longest: Any  # (lists, keys) the distance to the first of them, -1 for none
    partners: Any  # the lists, one after another
    gaps: Any


class Row(NamedTuple):
    """One row, its top sets, and which of the products are its own."""

    weights: Any  # (all keys,)
    keys: Any  # the visible ones
    first: int  # the first of them
    last: int  # the end of them
    lift: float  # a power of two that brings the largest weight near 1
    xbar: Any  # (dims,)
    delta: float
    base: int  # the key that the products begin with
    products: Any  # with the sets' contexts, with xbar, and with the sets' unit contexts, all lifted
    members: Any  # keys, those of a smaller set first
    counts: Any  # (sets,)
    contexts: Any  # (sets, dims)
    unit_contexts: Any
    slots: Any  # (sets,) which products are the unit context's
    ratios: Any  # (sets,) and what they have to be multiplied by


class Scratch(NamedTuple):
    """Memory that rows share, its contents meaning nothing."""

    lines: Any  # (LINES, keys of whole panels) float32
    few: Any  # (members, dims) float32
    integers: Any  # (AT_ONCE, words)
    reach: Any  # (keys,) int16, -1 everywhere
    near: Any  # (keys,)
    far: Any  # (sets,)
    own: Any  # (2, members)
    sums: Any  # (2, members)
    exact: Any  # (EXACT_LINES + sets, SHORT)
    wide: Any  # (2, keys)


@helper
def _shown(row: Row, source: Any, base: int, target: Any) -> Any:
    """What stands for the visible keys in a line that begins with key `base`; copied if they are scattered."""
    if row.keys.size == row.last - row.first:
        return source[row.first - base : row.last - base]
    line = target[: row.keys.size]
    for j in range(line.size):
        line[j] = source[row.keys[j] - base]
    return line


@helper
def _mark(row: Row, value: int, reach: Any) -> None:
    """Write a number for every visible key."""
    if row.keys.size == row.last - row.first:
        reach[row.first : row.last] = value
    else:
        for j in range(row.keys.size):
            reach[row.keys[j]] = value


@helper
def _farthest(row: Row, group: Vectors, pairs: FarPairs, scratch: Scratch) -> None:
    """d1 of every set: from the list of far pairs, and where that was too short from all pairs."""
    sets = row.counts.size
    first, last, members = row.first, row.last, row.members
    reach, far, lines = scratch.reach, scratch.far, scratch.lines
    _mark(row, sets, reach)
    for s in range(sets - 1, -1, -1):
        for c in range(row.counts[s]):
            reach[members[c]] = s
    missing = sets
    far[:] = np.nan
    if pairs.prefixes.size:
        lead = row.weights[members[0]]
        if row.slots[0] == 0 and lead > 0:
            of_lead, by = lines[0, : last - first], np.float32(1 / (lead * row.lift))
            part = row.products[0, first - row.base : last - row.base]
            for j in range(last - first):
                of_lead[j] = part[j] * by
            error = np.float32(8 * (group.center.size + 8) * FLOAT32 * group.largest2)
            far[0] = farthest_from(
                members[0], of_lead, group.norms32, group.vectors, first, reach, error, lines[1, : last - first]
            )
        which = 0
        while pairs.prefixes[which] < last:
            which += 1
        missing = farthest_listed(
            pairs.starts[which], pairs.longest[which], pairs.partners, pairs.gaps, members, row.counts, reach, far
        )
    if missing:
        farthest_across(
            group.vectors, group.center, group.centred_squares, group.centred_panels, group.spread,
            group.distance_panels, group.error, first // PANEL, -(-last // PANEL), members, row.counts, reach,
            scratch.few, scratch.integers, lines[:2], far,
        )  # fmt: skip
    _mark(row, -1, reach)


@helper
def _terms(lines: Any, length: int) -> Terms:
    """Where the terms of a row are."""
    return Terms(
        lines[0, :length], lines[1, :length], lines[2, :length], lines[3, :length], lines[4, :length],
        lines[5, :length], lines[6, :length], lines[7, :length], lines[8, :length], lines[9, :length],
    )  # fmt: skip


@helper
def _fill_single(row: Row, group: Vectors, own_weights: Any, terms: Terms) -> None:
    """The terms of a row in float32, but for their levels."""
    plain, norms2, size, of_mean = terms.plain, terms.norms2, terms.size, terms.of_mean
    norms2[:] = _shown(row, group.norms32, 0, norms2)
    terms.of_unit_mean[:] = _shown(row, row.products[row.counts.size], row.base, terms.of_unit_mean)
    of_unit_mean, back = terms.of_unit_mean, np.float32(1 / row.lift)
    # A loop writes one array: with more the compiler gives up proving that they are apart.
    for j in range(size.size):
        plain[j] = own_weights[j]
    for j in range(size.size):
        size[j] = own_weights[j] * row.lift
    for j in range(size.size):
        size[j] *= np.sqrt(norms2[j])
    for j in range(size.size):
        of_mean[j] = np.sqrt(norms2[j]) * of_unit_mean[j] * back


@helper
def _fill_double(row: Row, group: Vectors, own_weights: Any, inverses: Any, level: Any, terms: Terms, of: Any) -> None:
    """The terms of a row in float64, and `of`, for every set the products of its context with unit vectors."""
    for j in range(row.keys.size):
        x, by = group.vectors[row.keys[j]], inverses[j] * row.lift
        terms.plain[j], terms.level[j], terms.norms2[j] = own_weights[j], level[j], group.norms2[row.keys[j]]
        terms.of_mean[j] = dot(x, row.xbar)
        for s in range(row.counts.size):
            of[s, j] = dot(x, row.contexts[s]) * by
        terms.of_unit_mean[j] = terms.of_mean[j] * by
        terms.size[j] = own_weights[j] * row.lift * np.sqrt(terms.norms2[j])


@helper
def fill(row: Row, group: Vectors, pairs: FarPairs, scratch: Scratch, out: Any) -> None:
    """The columns of a row; out: (columns, sets)."""
    _farthest(row, group, pairs, scratch)
    weights, keys, members, xbar = row.weights, row.keys, row.members, row.xbar
    vectors, norms2 = group.vectors, group.norms2
    sets, length, dims = row.counts.size, keys.size, xbar.size
    lift, lines = row.lift, scratch.lines
    mean2 = norm2(xbar, lift)
    own_weights, inverses = _shown(row, weights, 0, scratch.wide[0]), _shown(row, group.inverses, 0, scratch.wide[1])
    zeros = np.int64(0)
    for j in range(length):
        zeros += np.int64((own_weights[j] == 0) | (inverses[j] == 0))
    unit_size = lines[10, :length]
    shown = _shown(row, group.unit_squares, 0, lines[11])
    for j in range(length):
        unit_size[j] = own_weights[j] * lift * shown[j]
    single, double = _terms(lines, length), _terms(scratch.exact, min(length, SHORT))
    level, work = single.level, single.work
    level[:] = sets
    for s in range(sets - 1, -1, -1):
        for c in range(row.counts[s]):
            scattered = length < row.last - row.first
            level[np.searchsorted(keys, members[c]) if scattered else members[c] - row.first] = s
    short, of_contexts = length <= SHORT, scratch.exact[EXACT_LINES:, : min(length, SHORT)]
    if short:
        _fill_double(row, group, own_weights, inverses, level, double, of_contexts)
        rests(weights, keys, vectors, xbar, mean2, lift, double)
    else:
        _fill_single(row, group, own_weights, single)
        rests(weights, keys, vectors, xbar, mean2, lift, single)

    unit_error = np.float32((dims + 12) * FLOAT32)
    own = scratch.own
    mass = largest2 = 0.0
    done = 0
    for s in range(sets):
        s32 = np.float32(s)
        count, context, unit_context, result = row.counts[s], row.contexts[s], row.unit_contexts[s], out[:, s]
        for c in range(done, count):
            key = members[c]
            weight = weights[key]
            mass += weight
            largest2 = max(largest2, norms2[key])
            own[0, c] = weight
            own[1, c] = weight if group.inverses[key] > 0 else 0.0
            zeros -= own[1, c] == 0  # those outside the set remain
        done = count
        left = length - count
        result[0] = mass

        # The ball of eq. (10).
        of_unit, ratio = row.products[row.slots[s]], row.ratios[s]
        unit_norm = np.float32(np.sqrt(norm2(unit_context, lift)))
        shown = _shown(row, of_unit, row.base, lines[11])
        close = scratch.near[
            : nearest(unit_size, shown, np.float32(ratio), level, s32, unit_norm, unit_error, work, scratch.near)
        ]
        for c in range(close.size):
            close[c] = keys[close[c]]
        lowest, radius = edge(weights, vectors, group.inverses, unit_context, close, zeros)
        inside = 0
        for c in range(count):
            key = members[c]
            product = np.float64(of_unit[key - row.base]) * ratio / lift
            inside += is_inside(
                own[1, c], vectors[key], group.inverses[key], unit_context, product, unit_norm / lift, unit_error,
                lowest, radius,
            )  # fmt: skip
        result[9] = inside / count
        result[10], result[11] = radius, row.delta
        bounds(own[0], own[1], count, radius, row.delta, scratch.sums, result[12:])

        n = length - 1
        p = count / n
        factor = count * (n - count) / (n * (n - 1)) if n > 1 else 0.0
        if short:
            total, root2, lower, upper, epsilon, main = set_sums(
                weights, keys, vectors, context, of_contexts[s], xbar, mean2, p, factor, lift, s32, double
            )
        else:
            shown = _shown(row, row.products[s], row.base, lines[11])
            total, root2, lower, upper, epsilon, main = set_sums(
                weights, keys, vectors, context, shown, xbar, mean2, p, factor, lift, s32, single
            )
        scale = group.scale
        result[1] = scale * total
        result[2] = scale * ((1 - mass) * scratch.far[s] + np.sqrt(largest2) * (mass * left - (1 - mass)))
        lower2 = 0.0
        for k in range(dims):
            value = ((left + 1) * context[k] - xbar[k]) * lift
            lower2 += value * value
        result[3] = scale * np.sqrt(lower2) / lift
        result[4] = scale * np.sqrt(left) * root2
        chance = left / length
        result[5] = scale * chance * main
        result[6], result[7] = scale * chance * lower, scale * chance * upper
        result[8] = scale * 0.5 * chance * p * epsilon
