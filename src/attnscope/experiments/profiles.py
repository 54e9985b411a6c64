"""Distance and expectation at every N, from which the critical N is computed.

A row's keys are sorted once and added to the top set one by one. Each step changes the products x_i . s by one row of
K = X X^T, so all N together cost O(L^2) per row, whatever the dimension of the vectors.

With y_i = alpha_i x_i, a_i = |y_i|^2, b_i = y_i . xbar and c = |xbar|^2, every term of Theorem 1(2), printed or
corrected, is the square root of a quadratic form in (a_i, b_i, c): O(1) per token and N.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope._numerics import loop

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

PROFILE = ("distance", "expected_printed", "expected_lower", "expected_upper")


def products(vectors: Float[Tensor, "groups keys dims"]) -> Float[np.ndarray, "groups keys keys"]:
    """The Gram matrix K = X X^T of each group."""
    return (vectors @ vectors.mT).numpy()


def profiles(
    weights: Float[Tensor, "groups rows keys"],
    vectors: Float[Tensor, "groups keys dims"],
    gram: Float[np.ndarray, "groups keys keys"],
) -> Float[np.ndarray, "groups rows columns n"]:
    """The columns of `PROFILE` for N = 1 ... L-1; every key is visible, and the rows of a group share their vectors.

    `gram` is the result of `products`.
    """
    mean_products = (weights @ vectors @ vectors.mT).numpy()
    values = np.ascontiguousarray(weights.numpy())
    order = np.argsort(-values, axis=-1, kind="stable")
    profile = np.empty((*values.shape[:2], len(PROFILE), values.shape[2] - 1))
    for at in np.ndindex(*values.shape[:2]):
        _profile(values[at], gram[at[0]], mean_products[at], order[at], profile[at])
    return profile


@loop
def _profile(weights: Any, gram: Any, mean_products: Any, order: Any, profile: Any) -> None:
    keys = weights.size
    size = np.empty(keys)  # |x_i|^2
    squares = np.empty(keys)  # a
    along = np.empty(keys)  # b
    whole = 0.0  # c
    total = 0.0
    lengths = 0.0
    for i in range(keys):
        size[i] = gram[i, i]
        squares[i] = weights[i] * weights[i] * size[i]
        along[i] = weights[i] * mean_products[i]
        whole += along[i]
        total += squares[i]
        lengths += np.sqrt(squares[i])
    whole = max(whole, 0.0)
    products = np.zeros(keys)  # y_i . s
    outside = np.ones(keys)  # 1 for tokens outside the top set
    context = 0.0  # |s|^2
    others = keys - 1.0
    for k in range(keys - 1):
        key = order[k]
        weight = weights[key]
        row = gram[key]
        context = max(context + 2 * products[key] + squares[key], 0.0)
        outside[key] = 0.0
        for i in range(keys):
            products[i] += weight * weights[i] * row[i]
        count = k + 1.0
        share = count / others
        distance = 0.0
        printed = 0.0
        lower = 0.0
        upper = 0.0
        factor = count * (others - count) / (others * (others - 1)) if others > 1 else 0.0
        for i in range(keys):
            a = squares[i]
            b = along[i]
            distance += outside[i] * np.sqrt(max(a - 2 * products[i] + context, 0.0))
            # |(alpha + p) x - xbar|: b / alpha is x . xbar
            scale = weights[i] + share
            printed += np.sqrt(max(scale * scale * size[i] - 2 * scale * mean_products[i] + whole, 0.0))
            grown = 1 + share
            mu = max(grown * grown * a - 2 * grown * share * b + share * share * whole, 0.0)
            rest = max(whole - 2 * b + a, 0.0)
            variance = factor * max(total - a - rest / others, 0.0)
            length = np.sqrt(a)
            lower += np.sqrt(mu)
            upper += min(np.sqrt(mu + variance), length + share * (lengths - length))
        out = (keys - count) / keys
        profile[0, k] = distance
        profile[1, k] = out * printed
        profile[2, k] = out * lower
        profile[3, k] = out * upper
