"""The CPU loops: one compiled loop over rows for each way of making weights.

Every loop works on rows `start <= r < stop` and holds no interpreter lock, so that several threads can share a tensor.
Each copies its row into the output first and works there: a row stays in the nearest cache, and nothing the size of the
tensor is ever allocated.

Decisions:

- masked keys are -inf inside a row, and the compiler may therefore not assume finite numbers;
- a row is centered on its largest logit before it is scaled: c (z - max z) keeps the digits that c z - max c z loses
  when the logits are large;
- loops run from 0 over a slice: with any other start the compiler has to check for negative indices, and no longer
  vectorizes;
- sums of float32 run in blocks that are added up in float64, so that a row of 1e5 keys sums as well as a short one;
- a row that holds NaN or +inf gives NaN on its visible keys and touches no other row.

The loops of the backward pass, `_product`, apply the Jacobian of a map to a vector. One formula for the family:
J v = u (v - sum(u v) / sum(u)), with u = w^(2 - alpha) on the support. It is symmetric, so that the same loop serves
forward and reverse mode. Keys without weight give exactly 0 whatever v holds there; a NaN weight gives NaN.

The sparse maps' forward loops are in `_kernels_sparse.py`, those of other normalizers in `_kernels_composed.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnscope._numerics import empty_keys, exp, helper, largest, log, loop, order_keys, top_level

BLOCK = 1024


@helper
def load(source: Any, seen: Any, target: Any) -> Any:
    """Copy a row, -inf on what is not visible; an empty `seen` sees all. Returns the NaN count."""
    broken = np.int32(0)  # a count of 32 bits fits the lanes of the numbers it counts
    hidden = source.dtype.type(-np.inf)
    if seen.size:
        for j in range(source.size):
            value = source[j] if seen[j] else hidden
            target[j] = value
            broken = np.int32(broken + np.int32(value != value))
    else:
        for j in range(source.size):
            value = source[j]
            target[j] = value
            broken = np.int32(broken + np.int32(value != value))
    return broken


@helper
def _smallest_visible(row: Any) -> Any:
    bottom = row.dtype.type(np.inf)
    for j in range(row.size):
        value = row[j]
        if value < bottom and value > -np.inf:
            bottom = value
    return bottom


@helper
def _fill(row: Any, value: Any) -> None:
    """Write `value` on the visible keys of a row and 0 on the others."""
    hidden = row.dtype.type(-np.inf)
    zero = row.dtype.type(0)
    for j in range(row.size):
        row[j] = zero if row[j] == hidden else value


@helper
def center(source: Any, seen: Any, scale: Any, row: Any) -> Any:
    """Fill `row` with x = scale (z - z_top) <= 0; False if the row is finished already.

    z_top is the logit that the scale makes largest: the maximum, or the minimum where the
    scale is negative. Also returns z_top, for rows that compete with a sink.
    """
    broken = load(source, seen, row)
    top = largest(row) if scale >= 0 else _smallest_visible(row)
    if broken or scale != scale or (top == np.inf and largest(row) == np.inf):
        _fill(row, row.dtype.type(np.nan))
        return False, top
    if top == -np.inf or top == np.inf:
        _fill(row, row.dtype.type(0))
        return False, top
    hidden = row.dtype.type(-np.inf)
    if scale > 0:
        for j in range(row.size):
            row[j] = (row[j] - top) * scale
    else:  # 0 * -inf and a negative factor would make masked keys visible
        for j in range(row.size):
            row[j] = hidden if row[j] == hidden else (row[j] - top) * scale
    return True, top


@helper
def seen_row(visible: Any, index: Any, r: Any) -> Any:
    return visible[index[r]] if visible.shape[0] else visible.reshape(-1)


@helper
def _end(seen: Any) -> int:
    """The end of the visible keys: in causal attention, half of all keys come after it."""
    end = seen.size
    while end > 0 and not seen[end - 1]:
        end -= 1
    return end


@helper
def exponentials(row: Any, lead: Any) -> Any:
    """Replace x by exp(x - lead) and return the sum."""
    total = 0.0
    for first in range(0, row.size, BLOCK):
        block = row[first : first + BLOCK]
        part = row.dtype.type(0)
        for j in range(block.size):
            value = exp(block[j] - lead)
            block[j] = value
            part += value
        total += part
    return total


@helper
def block_sum(row: Any) -> Any:
    total = 0.0
    for first in range(0, row.size, BLOCK):
        block = row[first : first + BLOCK]
        part = row.dtype.type(0)
        for j in range(block.size):
            part += block[j]
        total += part
    return total


@helper
def multiply(row: Any, factor: Any) -> None:
    for j in range(row.size):
        row[j] *= factor


@loop
def softmax(z: Any, visible: Any, index: Any, scale: Any, sink: Any, out: Any, start: int, stop: int) -> None:
    """w = exp(c z) / (exp(sink) + sum exp(c z)); a sink of -inf is no sink."""
    one = out.dtype.type(1)
    for r in range(start, stop):
        seen = seen_row(visible, index, r)
        end = _end(seen) if seen.size else z.shape[1]
        row = out[r, :end]
        out[r, end:] = 0
        open_, top = center(z[r, :end], seen[:end], scale[r], row)
        if not open_:
            continue
        ahead = sink[r] - top * scale[r]
        lead = out.dtype.type(max(ahead, 0.0))
        total = exponentials(row, lead) + np.exp(float(ahead - lead))
        multiply(row, out.dtype.type(one / total))


@loop
def sigmoid(z: Any, visible: Any, index: Any, scale: Any, sink: Any, out: Any, start: int, stop: int) -> None:
    """w_i = exp(c z_i) / (exp(sink) + exp(c z_i)): every key competes with the sink alone."""
    one = out.dtype.type(1)
    zero = out.dtype.type(0)
    hidden = out.dtype.type(-np.inf)
    for r in range(start, stop):
        row = out[r]
        load(z[r], seen_row(visible, index, r), row)
        factor = scale[r]
        bias = sink[r]
        for j in range(row.size):
            raw = row[j]
            ahead = (zero if raw == hidden else raw) * factor - bias
            small = exp(-abs(ahead))
            value = (one if ahead >= zero else small) / (one + small)
            value = value if ahead == ahead else ahead
            row[j] = zero if raw == hidden else value


@helper
def _keep_top(row: Any, k: Any, keys: Any) -> None:
    """Mask all but the k largest entries; of equal ones the first in position stay."""
    order_keys(row, keys)
    level, ties = top_level(keys, k)
    hidden = row.dtype.type(-np.inf)
    for j in range(row.size):
        if keys[j] < level or (keys[j] == level and ties == 0):
            row[j] = hidden
        elif keys[j] == level:
            ties -= 1


@helper
def _count_equal(row: Any, value: Any) -> Any:
    count = 0
    for j in range(row.size):
        count += row[j] == value
    return count


@loop
def topk(z: Any, visible: Any, index: Any, scale: Any, k: int, out: Any, start: int, stop: int) -> None:
    """Softmax over the k largest logits of a row, exactly k of them even at ties."""
    one = out.dtype.type(1)
    hidden = out.dtype.type(-np.inf)
    keys = empty_keys(out)
    for r in range(start, stop):
        row = out[r]
        if not center(z[r], seen_row(visible, index, r), scale[r], row)[0]:
            continue
        if row.size - _count_equal(row, hidden) > k:
            _keep_top(row, k, keys)
        total = exponentials(row, out.dtype.type(0))
        multiply(row, out.dtype.type(one / total))


@loop
def lengths(z: Any, visible: Any, index: Any, out: Any, start: int, stop: int) -> None:
    """Count the visible keys of each row: neither masked nor -inf."""
    hidden = z.dtype.type(-np.inf)
    for r in range(start, stop):
        count = 0
        seen = seen_row(visible, index, r)
        if seen.size:
            for j in range(z.shape[1]):
                count += seen[j] and z[r, j] != hidden
        else:
            for j in range(z.shape[1]):
                count += z[r, j] != hidden
        out[r] = count


@helper
def shifted_product(u: Any, v: Any, mean: Any, scale: Any, out: Any) -> None:
    zero = out.dtype.type(0)
    for j in range(out.size):
        value = scale * u[j] * (v[j] - mean)
        out[j] = value if u[j] != zero else zero


@helper
def product_sum(u: Any, v: Any) -> Any:
    """The sum of u v over the keys where u is not 0."""
    zero = u.dtype.type(0)
    products = 0.0
    for first in range(0, u.size, BLOCK):
        part = u[first : first + BLOCK]
        other = v[first : first + BLOCK]
        product = zero
        for j in range(part.size):
            product += part[j] * other[j] if part[j] != zero else zero
        products += product
    return products


@helper
def _apply(u: Any, v: Any, scale: Any, out: Any) -> None:
    """c u (v - sum(u v) / sum(u)); a row without weight has u = 0 throughout."""
    total = block_sum(u)
    product = product_sum(u, v)
    mean = out.dtype.type(product / total) if total > 0 else out.dtype.type(product)
    shifted_product(u, v, mean, scale, out)


@loop
def softmax_product(w: Any, v: Any, scale: Any, out: Any, start: int, stop: int) -> None:
    """c w (v - sum(w v)): the total of the weights is one, or the rest lies on a sink."""
    for r in range(start, stop):
        mean = out.dtype.type(product_sum(w[r], v[r]))
        shifted_product(w[r], v[r], mean, scale[r], out[r])


@loop
def sigmoid_product(w: Any, v: Any, scale: Any, out: Any, start: int, stop: int) -> None:
    """c w (1 - w) v, key by key."""
    one = out.dtype.type(1)
    zero = out.dtype.type(0)
    for r in range(start, stop):
        factor = scale[r]
        for j in range(w.shape[1]):
            weight = w[r, j]
            value = factor * weight * (one - weight) * v[r, j]
            out[r, j] = value if weight != zero else zero


@helper
def _subtract_mean(w: Any, v: Any, scale: Any, out: Any) -> None:
    zero = out.dtype.type(0)
    count = np.int32(0)
    products = 0.0
    broken = zero
    for first in range(0, w.size, BLOCK):
        part = w[first : first + BLOCK]
        other = v[first : first + BLOCK]
        product = zero
        for j in range(part.size):
            inside = part[j] != zero
            count = np.int32(count + np.int32(inside))
            product += other[j] if inside else zero
            broken += part[j] * zero
        products += product
    mean = out.dtype.type(products / (count if count > 0 else 1)) + broken
    for j in range(out.size):
        out[j] = scale * (v[j] - mean) if w[j] != zero else zero


@loop
def sparsemax_product(w: Any, v: Any, scale: Any, out: Any, start: int, stop: int) -> None:
    """c (v - mean of v over the support), on the support."""
    for r in range(start, stop):
        _subtract_mean(w[r], v[r], scale[r], out[r])


@loop
def entmax15_product(w: Any, v: Any, scale: Any, out: Any, start: int, stop: int) -> None:
    """u = sqrt(w)."""
    u = np.empty(out.shape[1], out.dtype)
    for r in range(start, stop):
        for j in range(u.size):
            u[j] = np.sqrt(w[r, j])
        _apply(u, v[r], scale[r], out[r])


@loop
def entmax_product(w: Any, v: Any, scale: Any, alpha: Any, out: Any, start: int, stop: int) -> None:
    """u = w^(2 - alpha) on the support."""
    one = out.dtype.type(1)
    zero = out.dtype.type(0)
    u = np.empty(out.shape[1], out.dtype)
    for r in range(start, stop):
        power = one + one - alpha[r]
        for j in range(u.size):
            weight = w[r, j]
            value = exp(power * log(weight if weight > zero else one))
            u[j] = value if weight > zero else weight
        _apply(u, v[r], scale[r], out[r])
