"""Largest eigenvalue of diag(alpha) - alpha alpha^T: the Jacobian of softmax and, rescaled, of sparsemax and entmax.

Used by `theory.gradient` and by the Jacobian norms of the normalizers.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Newton needs about six steps; halving alone, its guard, needs 53 from a bracket a factor of two wide.
_STEPS = 60
# A Newton step this small is rounding: it may leave the bracket, and halving the bracket would lose the root.
_CONVERGED = 2e-15
# A row sums to one up to rounding; only a real remainder (a sink) counts.
ROUNDING = 1e-12


def largest_eigenvalue(weights: Tensor) -> Tensor:
    """Largest eigenvalue of diag(alpha) - alpha alpha^T in each row, alpha >= 0 with a sum of at most one.

    The root lam of 1 - sum_i alpha_i^2 / (alpha_i - lam) = 0 above the second largest weight. The bracket is
    max{alpha_(2), alpha_(1) rest} <= lam <= min{alpha_(1), 2 alpha_(1) rest} with rest = 1 - alpha_(1)
    (interlacing; diagonal entry; Gershgorin), where 1 - alpha_(1) is the sum of the other weights plus
    what the row lacks to one (a sink): relative accuracy is kept where one weight is nearly one.
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
        settled = step.abs() <= _CONVERGED * lam
        following = torch.where(((newton > low) & (newton < high)) | settled, newton, (low + high) / 2)
        change, lam = (following - lam).abs(), following
        if not (change > _CONVERGED * lam).any():
            break
    return lam.squeeze(-1)


def largest_and_rest(weights: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Largest weight, second largest, the row with its largest set to 0, and one minus the row's sum."""
    first, argmax = weights.max(-1, keepdim=True)
    others = weights.scatter(-1, argmax, 0)
    left_over = (1 - weights.sum(-1, keepdim=True)).clamp_min(0)
    left_over = torch.where(left_over > ROUNDING, left_over, 0)
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
