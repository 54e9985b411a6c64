"""Compiled loop: all columns of `topn.parquet` for rows of one group.

A row is taken from its weights to its columns in one go, in arrays that stay in the cache: choose the top sets, add up
their contexts, multiply them with all vectors, find d1, and sum over the keys. Nothing here asks the interpreter.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnscope.measure._kernels_pairs import farthest_across, farthest_from, walk
from attnscope.measure._kernels_products import PAIR, PANEL, multiply
from attnscope.measure._kernels_sets import (
    all_but_one,
    bounds,
    distances,
    edge,
    expectations,
    is_inside,
    nearest,
    norm2,
    printed,
    repair,
    roots,
    short_rests,
    short_sums,
    squares,
)
from attnscope.measure._kernels_top import add_up, choose, lift_of
from attnscope.normalizers._kernels import compiled

# float32 lines of whole panels of keys that `measure` works in, and one for each set.
LINES = 14
_ZERO = np.float32(0)
_ALL = np.float32(-1)  # no set: every key is outside
_FLOAT32 = 2.0**-24
_SHORT = 128  # rows up to this length are summed in float64


@compiled
def measure(
    rows: Any,  # (some,) which rows of `weights`
    weights: Any,  # (all rows, keys)
    masks: Any,  # (masks, keys)
    mask_of: Any,  # (all rows,)
    spans: Any,  # (masks, 3): the first visible key, the end, and how many
    wanted: Any,  # (sets,) N, ascending
    scale: float,  # what lengths are multiplied by in the end
    vectors: Any,  # (keys, dims) of this group
    center: Any,  # (dims,) their mean
    norms2: Any,  # (keys,)
    norms32: Any,  # (keys,) the same in float32
    units: Any,  # (keys, dims)
    unit_squares: Any,  # (keys,) float32, 1 or 0
    unit_panels: Any,
    centred_squares: Any,  # (keys,) float32
    centred_panels: Any,
    error: Any,  # bound on a squared gap of centred vectors from float32 products
    prefixes: Any,  # (lists, 2): the keys that a list of far pairs is for, and where it ends
    low: Any,  # the lists, one after another
    high: Any,
    gaps: Any,
    means: Any,  # (some, dims) xbar
    deltas: Any,  # (some,)
    lines: Any,  # (LINES + sets, keys of whole panels) scratch, float32
    products: Any,  # (2 sets + 3, keys), so are these
    few: Any,  # (as many as a set or the products need, dims rounded up to a multiple of four) scratch, float32
    direct: Any,  # (as many, keys of some panels) scratch, float32
    out: Any,  # (all rows, sets, columns)
) -> None:
    """Fill `out` for the rows."""
    sets, dims = wanted.size, vectors.shape[1]
    width = weights.shape[1]
    values = np.empty(width)
    bits = values.view(np.int64)
    keys_of, chosen, dropped = np.empty(width, np.int64), np.empty(width, np.int64), np.empty(width + 1, np.int64)
    near = np.empty(width, np.int64)
    reach = np.full(vectors.shape[0], -1, np.int8)  # the smallest set a key is in; -1 for unseen ones
    members, counts = np.empty(few.shape[0], np.int64), np.empty(sets, np.int64)
    contexts, unit_contexts = np.empty((sets, dims)), np.empty((sets, dims))
    far = np.empty(sets)
    slots, ratios = np.empty(sets, np.int64), np.empty(sets)
    own, sums = np.empty((2, few.shape[0])), np.empty((2, few.shape[0]))
    exact = np.empty((5, _SHORT))
    unit_error = np.float32((dims + 12) * _FLOAT32)
    largest2 = 0.0
    for j in range(norms2.size):
        largest2 = max(largest2, norms2[j])
    lead_error = np.float32(8 * (dims + 8) * _FLOAT32 * largest2)
    for r in range(rows.size):
        row = rows[r]
        first, last, length = spans[mask_of[row]]
        solid = last - first == length
        keys = keys_of[:length]
        weight_of, seen = weights[row], masks[mask_of[row]]
        if solid:
            part = weight_of[first:last]
            for j in range(length):
                keys[j] = first + j
            for j in range(length):
                values[j] = abs(part[j])  # no -0
        else:
            place = 0
            for j in range(first, last):
                if seen[j]:
                    keys[place] = j
                    values[place] = abs(weight_of[j])
                    place += 1
        lift = lift_of(bits[:length])
        if length < 2 or lift != lift:
            out[row] = np.nan
            continue
        begin, end = first // PANEL, -(-last // PANEL)
        base = begin * PANEL
        here = first - base

        # Lifted weights, and all that is known of y = w x without a set.
        w = lines[0, :length]
        for j in range(length):
            w[j] = values[j] * lift
        n2, unit_of = norms32[first:last], unit_squares[first:last]
        if not solid:
            n2, unit_of = lines[1, :length], lines[2, :length]
            for j in range(length):
                n2[j], unit_of[j] = norms32[keys[j]], unit_squares[keys[j]]
        zeros = np.int64(0)
        for j in range(length):
            zeros += np.int64(bits[j] == 0)
        if solid:
            part = norms2[first:last]
            for j in range(length):
                zeros += np.int64((part[j] == 0) & (bits[j] != 0))
        else:
            for j in range(length):
                zeros += np.int64((norms2[keys[j]] == 0) & (bits[j] != 0))

        # The sets, their contexts, and the products.
        for j in range(length):
            chosen[j] = keys[j]
        choose(bits[:length], chosen[:length], wanted, dropped, members, counts)
        add_up(weight_of, vectors, members, counts, contexts)
        add_up(weight_of, units, members, counts, unit_contexts)
        xbar = means[r]
        for s in range(sets):
            for k in range(dims):
                few[s, k] = contexts[s, k] * lift
        for k in range(dims):
            few[sets, k] = xbar[k] * lift
        used = sets + 1
        for s in range(sets):
            # A set of one has a single direction: one product serves its context and its unit context.
            slots[s], ratios[s] = used, 1.0
            if counts[s] == 1 and norms2[members[0]] > 0:
                slots[s], ratios[s] = s, 1 / np.sqrt(norms2[members[0]])
                continue
            for k in range(dims):
                few[used, k] = unit_contexts[s, k] * lift
            used += 1
        if used % PAIR:
            few[used] = 0
            used += 1
        few[:used, dims:] = 0
        multiply(few[:used], unit_panels, begin, end, products)

        # d1: from the list of far pairs, and where that was too short from all pairs.
        if solid:
            reach[first:last] = sets
        else:
            for j in range(length):
                reach[keys[j]] = sets
        for s in range(sets - 1, -1, -1):
            for c in range(counts[s]):
                reach[members[c]] = s
        missing = sets
        far[:] = np.nan
        if prefixes.shape[0]:
            if slots[0] == 0 and weight_of[members[0]] > 0:
                of_lead, factor32 = lines[3, : last - first], np.float32(1 / (weight_of[members[0]] * lift))
                part32 = products[0, here : here + last - first]
                for j in range(last - first):
                    of_lead[j] = part32[j] * factor32
                far[0] = farthest_from(
                    members[0], of_lead, norms32, vectors, first, reach, lead_error, lines[4, : last - first]
                )
            which = 0
            while prefixes[which, 0] < last:
                which += 1
            start, stop = prefixes[which - 1, 1] if which else 0, prefixes[which, 1]
            missing = walk(low[start:stop], high[start:stop], gaps[start:stop], reach, sets, far)
        if missing:
            needed = sets
            while far[needed - 1] == far[needed - 1]:
                needed -= 1
            farthest_across(
                vectors, center, centred_squares, centred_panels, error, begin, end, members, counts[:needed], reach,
                few, direct, lines[LINES:], far,
            )  # fmt: skip
        if solid:
            reach[first:last] = -1
        else:
            for j in range(length):
                reach[keys[j]] = -1

        # The sums over keys. A loop writes one array: with more the compiler gives up proving that they are apart.
        size, scatter, size_rest = lines[4, :length], lines[5, :length], lines[6, :length]
        square_rest, level, unit_size = lines[7, :length], lines[8, :length], lines[9, :length]
        b, yb, work, ys = lines[10, :length], lines[11, :length], lines[12, :length], lines[13, :length]
        mean2 = norm2(xbar)
        share = 1 / length
        share32 = np.float32(share)
        for j in range(length):
            unit_size[j] = w[j] * unit_of[j]
        for j in range(length):
            size[j] = w[j] * np.sqrt(n2[j])
        # y.v = |y| u.v
        if solid:
            of_mean = products[sets, here : here + length]
            for j in range(length):
                yb[j] = size[j] * of_mean[j]
            for j in range(length):
                b[j] = np.sqrt(n2[j]) * of_mean[j]
        else:
            for j in range(length):
                of_key = products[sets, keys[j] - base]
                yb[j], b[j] = size[j] * of_key, np.sqrt(n2[j]) * of_key
        for j in range(length):
            ys[j] = yb[j] * share32
        level[:] = sets
        for s in range(sets - 1, -1, -1):
            for c in range(counts[s]):
                level[members[c] - first if solid else np.searchsorted(keys, members[c])] = s
        short = length <= _SHORT
        e_work, e_size, e_scatter = exact[0, :length], exact[1, :length], exact[2, :length]
        e_size_rest, e_square_rest = exact[3, :length], exact[4, :length]
        if short:
            short_rests(weight_of, keys, vectors, norms2, xbar, e_work, e_size, e_scatter, e_size_rest, e_square_rest)
        else:
            # |y - xbar/L|^2: variances do not change with the origin, and nothing cancels when all y are alike.
            if squares(w, n2, ys, np.float32(mean2 * share * share * lift * lift), level, _ALL, scatter):
                repair(weight_of, keys, vectors, norms2, 0.0, 1.0, xbar, share, lift, scatter)
            all_but_one(scatter, work)
            fraction = np.float32(1 / (length - 1))
            for j in range(length):
                value = work[j] - scatter[j] * fraction
                scatter[j] = value if value > _ZERO else _ZERO
            for j in range(length):
                work[j] = size[j] * size[j]
            all_but_one(work, square_rest)
            all_but_one(size, size_rest)
        unlifted = np.float32(1 / lift)
        mass = largest2 = 0.0
        done = 0
        empty = zeros
        for s in range(sets):
            s32 = np.float32(s)
            count = counts[s]
            result = out[row, s]
            context = contexts[s]
            for c in range(done, count):
                key = members[c]
                weight = weight_of[key]
                mass += weight
                largest2 = max(largest2, norms2[key])
                own[0, c] = weight
                own[1, c] = weight if norms2[key] > 0 else 0.0
                empty -= own[1, c] == 0
            done = count
            left = length - count
            result[0] = mass

            # The ball of eq. (10).
            slot, ratio = slots[s], ratios[s]
            ratio32 = np.float32(ratio)
            if solid:
                of_context = products[slot, here : here + length]
                for j in range(length):
                    ys[j] = of_context[j] * ratio32
            else:
                for j in range(length):
                    ys[j] = products[slot, keys[j] - base] * ratio32
            unit_norm = np.float32(np.sqrt(norm2(unit_contexts[s])) * lift)
            close = near[: nearest(unit_size, ys, level, s32, unit_norm, unit_error, work, near)]
            for c in range(close.size):
                close[c] = keys[close[c]]
            lowest, radius = edge(weight_of, units, norms2, unit_contexts[s], close, empty)
            inside = 0
            for c in range(count):
                of_unit = np.float64(products[slot, members[c] - base]) * ratio / lift
                inside += is_inside(
                    own[1, c],
                    units[members[c]],
                    unit_contexts[s],
                    of_unit,
                    unit_norm / lift,
                    unit_error,
                    lowest,
                    radius,
                )
            result[9] = inside / count
            result[10], result[11] = radius, deltas[r]
            bounds(own[0], own[1], count, radius, deltas[r], sums, result[12:])

            n = length - 1
            p = count / n
            factor = count * (n - count) / (n * (n - 1)) if n > 1 else 0.0
            by = p / (1 + p)
            if short:
                total, total2, lower, upper, epsilon, main = short_sums(
                    weight_of, keys, vectors, context, xbar, p, factor, level, s32, e_size, e_scatter, e_size_rest,
                    e_square_rest,
                )  # fmt: skip
            else:
                if solid:
                    of_context = products[s, here : here + length]
                    for j in range(length):
                        ys[j] = size[j] * of_context[j]
                else:
                    for j in range(length):
                        ys[j] = size[j] * products[s, keys[j] - base]
                if squares(w, n2, ys, np.float32(norm2(context) * lift * lift), level, s32, work):
                    repair(weight_of, keys, vectors, norms2, 0.0, 1.0, context, 1.0, lift, work)
                total, total2 = distances(work, level, s32)
                # |(1 + p) y - p xbar|^2, over (1 + p)^2
                by32 = np.float32(by)
                for j in range(length):
                    ys[j] = yb[j] * by32
                if squares(w, n2, ys, np.float32(by * by * mean2 * lift * lift), level, _ALL, work):
                    repair(weight_of, keys, vectors, norms2, 0.0, 1.0, xbar, by, lift, work)
                lower, upper, epsilon = expectations(
                    work, scatter, size, size_rest, square_rest, np.float32(1 / (1 + p)), by32,
                    np.float32(factor / ((1 + p) * (1 + p))),
                )  # fmt: skip
                if printed(w, n2, b, unlifted, np.float32(p), np.float32(mean2), work):
                    repair(weight_of, keys, vectors, norms2, p, 1.0, xbar, 1.0, 1.0, work)
                main = roots(work)
                total, total2 = total / lift, total2 / (lift * lift)
                lower, upper, epsilon = (1 + p) * lower / lift, (1 + p) * upper / lift, epsilon / ((1 + p) * lift)
            result[1] = scale * total
            result[2] = scale * ((1 - mass) * far[s] + np.sqrt(largest2) * (mass * left - (1 - mass)))
            lower2 = 0.0
            for k in range(dims):
                value = (left + 1) * context[k] - xbar[k]
                lower2 += value * value
            result[3] = scale * np.sqrt(lower2)
            result[4] = scale * np.sqrt(left * total2)
            chance = left / length
            result[5] = scale * chance * main
            result[6], result[7] = scale * chance * lower, scale * chance * upper
            result[8] = scale * 0.5 * chance * p * epsilon
