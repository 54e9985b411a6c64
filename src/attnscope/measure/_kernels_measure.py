"""Compiled loop: all columns of `topn.parquet` for rows of one group.

Rows are taken from their weights to their columns in small batches: choose the top sets and add up their contexts;
multiply the contexts of the batch with all vectors, which are then read from far memory once for all its rows; and sum
over the keys of one row after another, in arrays that stay in the cache. Nothing here asks the interpreter.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnscope._kernels_tiles import PANEL
from attnscope.measure._kernels_columns import EXACT_LINES, SHORT, FarPairs, Row, Scratch, Vectors, fill
from attnscope.measure._kernels_products import AT_ONCE, average, multiply
from attnscope.measure._kernels_top import add_up, choose, lift_of
from attnscope.normalizers._kernels import compiled, helper

BATCH = 4
_SMALL = 1e-50  # of a squared length, below which products in float32 lose digits


def products_of(sets: int) -> int:
    """How many products a row can need: of the contexts, of the unit contexts, and of xbar."""
    return 2 * sets + 1


@compiled
def measure(
    rows: Any,  # (some,) which rows of `weights`
    weights: Any,  # (all rows, keys)
    masks: Any,  # (masks, keys)
    mask_of: Any,  # (all rows,)
    spans: Any,  # (masks, 3): the first visible key, the end, and how many
    wanted: Any,  # (sets,) N, ascending
    scale: float,  # from here on: `Vectors`
    vectors: Any,
    center: Any,
    norms2: Any,
    norms32: Any,
    inverses: Any,
    unit_squares: Any,
    unit_panels: Any,
    centred_squares: Any,
    centred_panels: Any,
    distance_panels: Any,
    spread: float,
    error: Any,
    prefixes: Any,  # from here on: `FarPairs`
    starts: Any,
    longest: Any,
    partners: Any,
    gaps: Any,
    deltas: Any,  # (some,)
    lines: Any,  # (LINES, keys of whole panels) scratch, float32
    products: Any,  # (BATCH * products_of(sets), keys of whole panels), so are these
    few: Any,  # (as many as a set or the products need, dims)
    integers: Any,  # (AT_ONCE, words of a vector that tells distances)
    out: Any,  # (columns, all rows, sets)
) -> None:
    """Fill `out` for the rows."""
    sets, dims, width, size = wanted.size, vectors.shape[1], weights.shape[1], few.shape[0]
    largest2 = 0.0
    for j in range(norms2.size):
        largest2 = max(largest2, norms2[j])
    group = Vectors(
        vectors, center, norms2, norms32, inverses, unit_squares, unit_panels, centred_squares, centred_panels,
        distance_panels, spread, error, scale, largest2,
    )  # fmt: skip
    pairs = FarPairs(prefixes, starts, longest, partners, gaps)
    scratch = Scratch(
        lines, few, integers, np.full(vectors.shape[0], -1, np.int16), np.empty(width, np.int64), np.empty(sets),
        np.empty((2, size)), np.empty((2, size)), np.empty((EXACT_LINES + sets, SHORT)), np.empty((2, width)),
    )  # fmt: skip
    values = np.empty(width)
    room, dropped = np.empty(width, np.int64), np.empty(width + 1, np.int64)
    every = np.arange(width)
    keys_of = np.empty((BATCH, width), np.int64)
    members, counts = np.empty((BATCH, size), np.int64), np.empty((BATCH, sets), np.int64)
    contexts, unit_contexts = np.empty((BATCH, sets, dims)), np.empty((BATCH, sets, dims))
    slots, ratios = np.empty((BATCH, sets), np.int64), np.empty((BATCH, sets))
    lifts, own = np.empty(BATCH), np.empty(BATCH, np.int64)
    means, side_by_side = np.empty((rows.size, dims)), np.empty((AT_ONCE, width))
    sums = np.empty((AT_ONCE, dims))
    ends = np.empty(rows.size, np.int64)
    for r in range(rows.size):
        ends[r] = spans[mask_of[rows[r]], 1]
    average(weights, rows, ends, vectors, side_by_side, sums, means)
    r = 0
    while r < rows.size:
        batch, begin, end = _batch(rows[r:], mask_of, spans)
        used = 0
        for b in range(batch):
            row = rows[r + b]
            first, last, length = spans[mask_of[row]]
            keys = every[first:last]
            if last - first > length:
                keys = keys_of[b, :length]
                _list(masks[mask_of[row]], first, keys)
                for j in range(length):
                    values[j] = weights[row, keys[j]]
            else:
                values[:length] = weights[row, first:last]
            negative = np.int64(0)
            for j in range(length):
                negative += np.int64(values[j] < 0)
                values[j] = abs(values[j])  # no -0
            bits = values[:length].view(np.int64)
            lifts[b] = lift_of(bits) if negative == 0 else np.nan  # a row without sets
            own[b] = used
            if length < 2 or lifts[b] != lifts[b]:
                continue
            room[:length] = keys
            choose(bits, room[:length], wanted, dropped, members[b], counts[b])
            add_up(weights[row], vectors, inverses, members[b], counts[b], contexts[b], unit_contexts[b])
            used += _collect(
                contexts[b], unit_contexts[b], means[r + b], members[b], counts[b], norms2, lifts[b], slots[b],
                ratios[b], few[used:],
            )  # fmt: skip
        multiply(few, used, unit_panels, begin, end, products)
        for b in range(batch):
            row = rows[r + b]
            first, last, length = spans[mask_of[row]]
            if length < 2 or lifts[b] != lifts[b]:
                out[:, row] = np.nan
                continue
            keys = every[first:last] if last - first == length else keys_of[b, :length]
            of_row = Row(
                weights[row], keys, first, last, lifts[b], means[r + b], deltas[r + b], begin * PANEL,
                products[own[b] :], members[b], counts[b], contexts[b], unit_contexts[b], slots[b], ratios[b],
            )  # fmt: skip
            fill(of_row, group, pairs, scratch, out[:, row])
        r += batch


@helper
def _batch(rows: Any, mask_of: Any, spans: Any) -> tuple[int, int, int]:
    """How many rows to take together, and the panels that they see; rows that see much else would pay for it."""
    first, last, _ = spans[mask_of[rows[0]]]
    begin, end = first // PANEL, -(-last // PANEL)
    together = end - begin
    count = 1
    while count < min(BATCH, rows.size):
        first, last, _ = spans[mask_of[rows[count]]]
        own_begin, own_end = first // PANEL, -(-last // PANEL)
        together += own_end - own_begin
        if 8 * (max(end, own_end) - min(begin, own_begin)) * (count + 1) > 9 * together:
            break
        begin, end = min(begin, own_begin), max(end, own_end)
        count += 1
    return count, begin, end


@helper
def _list(seen: Any, first: int, keys: Any) -> None:
    """The visible keys."""
    place = 0
    for j in range(first, seen.size):
        if seen[j]:
            keys[place] = j
            place += 1


@helper
def _collect(
    contexts: Any, unit_contexts: Any, xbar: Any, members: Any, counts: Any, norms2: Any, lift: float, slots: Any,
    ratios: Any, few: Any,
) -> int:  # fmt: skip
    """Put what a row is multiplied with into `few`; how many they are."""
    sets = counts.size
    for s in range(sets):
        for k in range(xbar.size):
            few[s, k] = contexts[s, k] * lift
    for k in range(xbar.size):
        few[sets, k] = xbar[k] * lift
    used = sets + 1
    for s in range(sets):
        # A set of one has a single direction: one product serves its context and its unit context.
        slots[s], ratios[s] = used, 1.0
        if counts[s] == 1 and norms2[members[0]] > _SMALL:
            slots[s], ratios[s] = s, 1 / np.sqrt(norms2[members[0]])
            continue
        for k in range(xbar.size):
            few[used, k] = unit_contexts[s, k] * lift
        used += 1
    return used
