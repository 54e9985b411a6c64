"""Normalizers that are a function of the logits times softmax, or inside it: weights and gradients from compiled loops.

    self_adjust            w = a p,  a = (z - lo) / D,  p = softmax(z)
    adaptive_temperature   w = softmax(beta(H) z),  H the entropy of softmax(z)
    share                  w = F(z) / sum F(z)

A forward loop takes (z, visible, index, kind, out, start, stop); its backward loop, named `_gradient`, takes
(z, visible, index, kind, w, g, out, start, stop) and writes J^T g. `kind` is the number of F, for `share` alone.
Between the two only z and w are kept: computing p again costs less than reading it from memory. Their definitions in
torch, and the derivations, are in `composed.py`; `compose` chooses between the two.

The definition in torch operations is the specification. It also gives what the loops do not: higher derivatives,
forward mode, transforms of torch.func, other devices, compiled models.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from attnscope._numerics import exp, helper, largest, log_one_plus, loop
from attnscope.normalizers import _arguments
from attnscope.normalizers._autograd import dual
from attnscope.normalizers._kernels import (
    BLOCK,
    block_sum,
    center,
    exponentials,
    load,
    multiply,
    product_sum,
    seen_row,
    shifted_product,
)

SOFTPLUS, ONE_PLUS_SQUARE, SIGMOID = range(3)

# Up to here, ln(1 + e^z) and 1 / (1 + e^-z) are e^z to float64's precision.
EXPONENTIAL_BELOW = -40.0

# P(H) of adaptive temperature, highest power first; up to this entropy, beta is 1.
COEFFICIENTS = (-0.037, 0.481, -2.3, 4.917, -1.791)
FROM_ENTROPY = 0.5


@helper
def _ends(source: Any, seen: Any, minus: Any) -> Any:
    """lo, hi, and the factor, exact, that keeps hi - lo finite; `minus` becomes -z, and -inf on masked keys."""
    load(source, seen, minus)
    top = largest(minus)
    hidden = minus.dtype.type(-np.inf)
    zero = minus.dtype.type(0)
    for j in range(minus.size):
        minus[j] = hidden if minus[j] == hidden else -minus[j]
    low = -max(largest(minus), zero)
    high = max(top, zero)
    half = minus.dtype.type(0.5 if max(high, -low) > 1 else 1)
    return low, high, half


@loop
def self_adjust(z: Any, visible: Any, index: Any, kind: int, out: Any, start: int, stop: int) -> None:
    """w = a p; w = p where all logits are 0."""
    zero, one = out.dtype.type(0), out.dtype.type(1)
    for r in range(start, stop):
        seen, row, source = seen_row(visible, index, r), out[r], z[r]
        low, high, half = _ends(source, seen, row)
        if not center(source, seen, one, row)[0]:
            continue
        factor = out.dtype.type(1 / exponentials(row, zero))
        if high == low:
            multiply(row, factor)
            continue
        bottom = half * low
        factor /= half * high - bottom
        for j in range(row.size):
            weight = (half * source[j] - bottom) * (row[j] * factor)
            row[j] = weight if row[j] != zero else zero


@loop
def self_adjust_gradient(
    z: Any, visible: Any, index: Any, kind: int, w: Any, g: Any, out: Any, start: int, stop: int
) -> None:
    """p (a g - sum w g) + p g / D, less sum p g (1-a) / D shared by the minima and sum p g a / D by the maxima."""
    zero, one = out.dtype.type(0), out.dtype.type(1)
    minus = np.empty(out.shape[1], out.dtype)
    for r in range(start, stop):
        seen, row, source = seen_row(visible, index, r), out[r], z[r]
        low, high, half = _ends(source, seen, minus)
        if not center(source, seen, one, row)[0]:
            continue
        multiply(row, out.dtype.type(1 / exponentials(row, zero)))
        mean = product_sum(w[r], g[r])
        if high == low:
            shifted_product(row, g[r], out.dtype.type(mean), one, row)
            continue
        bottom = half * low
        width = half * high - bottom
        slope = half / width
        lows = highs = 0
        for j in range(row.size):
            lows += minus[j] == -low
            highs += minus[j] == -high
        # Where 0 is the minimum or the maximum because all logits lie on one side of it, no key moves it.
        at_low = out.dtype.type((product_sum(row, g[r]) - mean) * slope / max(lows, 1))
        at_high = out.dtype.type(mean * slope / max(highs, 1))
        shift = out.dtype.type(mean)
        for j in range(row.size):
            a = (half * source[j] - bottom) / width
            value = row[j] * ((a + slope) * g[r, j] - shift)
            value = value if row[j] != zero else zero
            value -= at_low if minus[j] == -low else zero
            value -= at_high if minus[j] == -high else zero
            row[j] = value


@helper
def _entropy(x: Any) -> Any:
    """The entropy of softmax(x), and ln sum exp(x), of a row whose largest entry is 0."""
    hidden = x.dtype.type(-np.inf)
    zero = x.dtype.type(0)
    total = 0.0
    product = 0.0
    for first in range(0, x.size, BLOCK):
        block = x[first : first + BLOCK]
        part = zero
        products = zero
        for j in range(block.size):
            value = exp(block[j])
            part += value
            products += value * (block[j] if block[j] != hidden else zero)
        total += part
        product += products
    return np.log(total) - product / total, np.log(total)


@helper
def _beta(entropy: Any) -> Any:
    """beta and its derivative."""
    value = 0.0
    slope = 0.0
    for coefficient in COEFFICIENTS:
        slope = slope * entropy + value
        value = value * entropy + coefficient
    return (value, slope) if entropy > FROM_ENTROPY and value > 1 else (1.0, 0.0)


@loop
def adaptive_temperature(z: Any, visible: Any, index: Any, kind: int, out: Any, start: int, stop: int) -> None:
    """w = softmax(beta(H) z)."""
    for r in range(start, stop):
        row = out[r]
        if not center(z[r], seen_row(visible, index, r), out.dtype.type(1), row)[0]:
            continue
        multiply(row, out.dtype.type(_beta(_entropy(row)[0])[0]))
        multiply(row, out.dtype.type(1 / exponentials(row, out.dtype.type(0))))


@loop
def adaptive_temperature_gradient(
    z: Any, visible: Any, index: Any, kind: int, w: Any, g: Any, out: Any, start: int, stop: int
) -> None:
    """beta d - (sum d z) beta'(H) p (ln p + H), with d = w (g - sum w g) and p = softmax(z)."""
    zero = out.dtype.type(0)
    x = np.empty(out.shape[1], out.dtype)
    for r in range(start, stop):
        row = out[r]
        if not center(z[r], seen_row(visible, index, r), out.dtype.type(1), x)[0]:
            row[:] = x
            continue
        entropy, log_total = _entropy(x)
        beta, slope = _beta(entropy)
        shifted_product(w[r], g[r], out.dtype.type(product_sum(w[r], g[r])), out.dtype.type(1), row)
        through = out.dtype.type(product_sum(row, x) * slope)
        scale, lead = out.dtype.type(beta), out.dtype.type(log_total)
        offset = out.dtype.type(entropy - log_total)
        if slope == 0:
            multiply(row, scale)
            continue
        for j in range(row.size):
            p = exp(x[j] - lead)
            own = p * (x[j] + offset) if p > zero else zero
            row[j] = scale * row[j] - through * own


@helper
def _softplus(row: Any) -> None:
    """ln(1 + e^z), 0 on masked keys."""
    zero = row.dtype.type(0)
    for j in range(row.size):
        row[j] = max(row[j], zero) + log_one_plus(exp(-abs(row[j])))


@helper
def _one_plus_square(row: Any, size: Any) -> None:
    """(1 + max(z, 0)^2) / size^2, 0 on masked keys; no square overflows for size = max(1, max z)."""
    hidden = row.dtype.type(-np.inf)
    zero = row.dtype.type(0)
    least = row.dtype.type(1) / size / size
    for j in range(row.size):
        part = max(row[j], zero) / size
        row[j] = least + part * part if row[j] != hidden else zero


@helper
def _sigmoid(row: Any) -> None:
    """1 / (1 + e^-z), 0 on masked keys."""
    one = row.dtype.type(1)
    for j in range(row.size):
        small = exp(-abs(row[j]))
        row[j] = (one if row[j] > 0 else small) / (one + small)


@loop
def share(z: Any, visible: Any, index: Any, kind: int, out: Any, start: int, stop: int) -> None:
    """w = F(z) / sum F(z), with F divided by a number of its largest size first, so that the sum is finite."""
    one, zero = out.dtype.type(1), out.dtype.type(0)
    for r in range(start, stop):
        seen, row = seen_row(visible, index, r), out[r]
        open_, top = center(z[r], seen, one, row)
        if not open_:
            continue
        if kind != ONE_PLUS_SQUARE and top < EXPONENTIAL_BELOW:
            exponentials(row, zero)
        else:
            load(z[r], seen, row)
            if kind == SOFTPLUS:
                _softplus(row)
                multiply(row, one / max(top, one))
            elif kind == ONE_PLUS_SQUARE:
                _one_plus_square(row, max(top, one))
            else:
                _sigmoid(row)
        multiply(row, out.dtype.type(1 / block_sum(row)))


@loop
def share_gradient(
    z: Any, visible: Any, index: Any, kind: int, w: Any, g: Any, out: Any, start: int, stop: int
) -> None:
    """(ln F)'(z) w (g - sum w g)."""
    one, zero = out.dtype.type(1), out.dtype.type(0)
    for r in range(start, stop):
        row, source = out[r], z[r]
        shifted_product(w[r], g[r], out.dtype.type(product_sum(w[r], g[r])), one, row)
        for j in range(row.size):
            x = source[j]
            small = exp(-abs(x))
            share = (one if x > zero else small) / (one + small)  # the sigmoid of z
            slope = one - share
            if kind == SOFTPLUS:
                value = max(x, zero) + log_one_plus(small)
                slope = share / value if value > zero else one
            elif kind == ONE_PLUS_SQUARE:
                part = max(x, zero)
                slope = (one + one) / (part + one / part) if part > zero else zero
            row[j] = slope * row[j] if row[j] != zero else zero


Definition = Callable[[Tensor, Tensor | None], Tensor]


class Loops(NamedTuple):
    """The two loops of a normalizer, with the arguments described above."""

    forward: Callable[..., None]
    backward: Callable[..., None]
    kind: int = 0


def compose(definition: Definition, loops: Loops, z: Tensor, visible: Tensor | None) -> Tensor:
    """The weights of logits z, by the loops where they can run."""
    if not _arguments.usable(z, visible) or dual(z):
        return definition(z, visible)
    weights: Tensor = Composed.apply(definition, loops, z, visible)  # type: ignore[no-untyped-call]
    return weights


class Composed(torch.autograd.Function):
    """z -> weights; where a derivative is to be differentiated again, it is that of the definition."""

    @staticmethod
    def forward(ctx: Any, definition: Definition, loops: Loops, z: Tensor, visible: Tensor | None) -> Tensor:
        out = torch.empty_like(z, memory_format=torch.contiguous_format)
        mask, index = _arguments.mask_rows(visible, z.shape)
        _arguments.run(loops.forward, z, _arguments.rows(z), mask, index, loops.kind, _arguments.rows(out))
        ctx.definition, ctx.loops, ctx.visible = definition, loops, visible
        ctx.save_for_backward(z, out)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        z, w = ctx.saved_tensors
        (g,) = gradients
        differentiated_again = torch.is_grad_enabled()
        if differentiated_again or not _arguments.usable(z, w, g, ctx.visible) or g.dtype != z.dtype:
            with torch.enable_grad():
                weights = ctx.definition(z, ctx.visible)
                (to_z,) = torch.autograd.grad(weights, z, g, create_graph=differentiated_again)
            return None, None, to_z, None
        out = torch.empty_like(z, memory_format=torch.contiguous_format)
        mask, index = _arguments.mask_rows(ctx.visible, z.shape)
        rows = [_arguments.rows(tensor) for tensor in (w, g, out)]
        _arguments.run(ctx.loops.backward, z, _arguments.rows(z), mask, index, ctx.loops.kind, *rows)
        return None, None, out, None
