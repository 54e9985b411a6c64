"""Lemma 2 and Corollary 3: the Jacobian of the softmax, exactly and bounded.

J = Sigma / T with Sigma = diag(alpha) - alpha alpha^T. Its spectral norm is the largest eigenvalue of Sigma
over the temperature.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

# Newton needs about six steps; halving alone, its guard, needs 53 from a bracket a factor of two wide.
_STEPS = 60
_CONVERGED = 4e-16


def jacobian_norm(weights: Float[Tensor, "*batch keys"]) -> Float[Tensor, "*batch"]:
    """Largest eigenvalue of diag(alpha) - alpha alpha^T, for non-negative weights, zero where unseen.

    The root lam of 1 - sum_i alpha_i^2 / (alpha_i - lam) = 0 above the second largest weight. The bracket is
    max{alpha_(2), alpha_(1) rest} <= lam <= min{alpha_(1), 2 alpha_(1) rest} with rest = 1 - alpha_(1)
    (interlacing; diagonal entry; Gershgorin), where 1 - alpha_(1) is the sum of the other weights plus
    what the row leaves over if it sums to less than one.
    """
    first, second, others, left_over = largest_and_rest(weights)
    rest = others.sum(-1, keepdim=True) + left_over
    low = torch.maximum(second, first * rest)
    high = torch.minimum(first, 2 * first * rest).maximum(low)
    lam = (low + high) / 2
    for _ in range(_STEPS):
        value, slope = _secular(lam, first, others, left_over)
        high = torch.where(value > 0, lam, high)
        low = torch.where(value > 0, low, lam)
        # Newton on the equation times (first - lam)(lam - second), which has no poles at the ends.
        step = 1 / (slope / value - 1 / (first - lam) + 1 / (lam - second))
        newton = lam - step
        following = torch.where((newton > low) & (newton < high), newton, (low + high) / 2)
        change, lam = (following - lam).abs(), following
        if (change <= _CONVERGED * lam).all():
            break
    return lam.squeeze(-1)


def jacobian_bound(weights: Float[Tensor, "*batch keys"]) -> Float[Tensor, "*batch"]:
    """h(alpha_max) with h(u) = u for u <= 1/2 and 2 u (1 - u) above: the exact supremum given alpha_max.

    Corrects Corollary 3, printed as min{1/(4T), sqrt 2}: the spectral norm reaches 1/(2T) at a tie of two.
    """
    first, _, others, left_over = largest_and_rest(weights)
    rest = others.sum(-1, keepdim=True) + left_over
    return torch.where(first <= 0.5, first, 2 * first * rest).squeeze(-1)


def largest_and_rest(weights: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The largest weight, the second, the row without the largest, and what the row lacks to one."""
    first, place = weights.max(-1, keepdim=True)
    others = weights.scatter(-1, place, 0)
    left_over = (1 - weights.sum(-1, keepdim=True)).clamp_min(0)
    # A softmax row sums to one up to rounding; only a real remainder (a sink) counts.
    left_over = torch.where(left_over > 1e-12, left_over, 0)
    return first, others.amax(-1, keepdim=True), others, left_over


def _secular(lam: Tensor, first: Tensor, others: Tensor, left_over: Tensor) -> tuple[Tensor, Tensor]:
    """Value and slope of a function that grows with lam on the bracket and vanishes at the eigenvalue.

    sum_i alpha_i / (alpha_i - lam) = left_over / lam, rewritten from the characteristic equation so that
    nothing cancels when one weight is nearly one.
    """
    gaps = lam - others
    terms = torch.where(others > 0, others / gaps, 0)
    value = first / (first - lam) - terms.sum(-1, keepdim=True) - left_over / lam
    slope = first / (first - lam).square() + (terms / gaps).sum(-1, keepdim=True) + left_over / lam.square()
    return value, slope
