"""The CPU loops of the backward pass: the Jacobian of each map applied to a vector.

One formula for the family: J v = u (v - sum(u v) / sum(u)), with u = w^(2 - alpha) on the
support. It is symmetric, so that the same loop serves forward and reverse mode. Keys without
weight give exactly 0 whatever v holds there; a NaN weight gives NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnscope._numerics import exp, helper, log, loop
from attnscope.normalizers._kernels import BLOCK, block_sum


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
def softmax(w: Any, v: Any, scale: Any, out: Any, start: int, stop: int) -> None:
    """c w (v - sum(w v)): the total of the weights is one, or the rest lies on a sink."""
    for r in range(start, stop):
        mean = out.dtype.type(product_sum(w[r], v[r]))
        shifted_product(w[r], v[r], mean, scale[r], out[r])


@loop
def sigmoid(w: Any, v: Any, scale: Any, out: Any, start: int, stop: int) -> None:
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
def sparsemax(w: Any, v: Any, scale: Any, out: Any, start: int, stop: int) -> None:
    """c (v - mean of v over the support), on the support."""
    for r in range(start, stop):
        _subtract_mean(w[r], v[r], scale[r], out[r])


@loop
def entmax15(w: Any, v: Any, scale: Any, out: Any, start: int, stop: int) -> None:
    """u = sqrt(w)."""
    u = np.empty(out.shape[1], out.dtype)
    for r in range(start, stop):
        for j in range(u.size):
            u[j] = np.sqrt(w[r, j])
        _apply(u, v[r], scale[r], out[r])


@loop
def entmax(w: Any, v: Any, scale: Any, alpha: Any, out: Any, start: int, stop: int) -> None:
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
