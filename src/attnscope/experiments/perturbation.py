"""g(T, eps) of section 3.3: how far a step of length eps in the logits moves the weights at temperature T.

g(T, eps) = |softmax((l + eps D) / T) - softmax(l / T)|_2 / eps for a unit vector D. The paper does not say which D, and a
random one sees |J|_F / sqrt L, up to sqrt L times less than the norm that the bound speaks of. Both are taken: a random
direction, and the worst one, the eigenvector of the largest eigenvalue of the Jacobian, with either sign.

Two readings of T: "scaled" takes l = q.k / sqrt d, what the model's softmax gets, so that T = 1 is the model itself;
"raw" takes l = q.k as eq. (2) does, so that T = sqrt d is the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from attnscope.theory.gradient import jacobian_norm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float
    from torch import Tensor

DIRECTIONS = ("random", "worst")


def responses(
    logits: Float[Tensor, "rows keys"],
    temperatures: Sequence[float],
    steps: Sequence[float],
    generator: torch.Generator,
) -> Float[Tensor, "rows temperatures steps directions"]:
    """g(T, eps) of each row in the directions of `DIRECTIONS`, and every key visible."""
    random = torch.randn(logits.shape, generator=generator, dtype=logits.dtype)
    random = random / random.norm(dim=-1, keepdim=True)
    found = torch.empty(len(logits), len(temperatures), len(steps), len(DIRECTIONS), dtype=logits.dtype)
    for t, temperature in enumerate(temperatures):
        weights = torch.softmax(logits / temperature, -1)
        worst = worst_direction(weights)
        for e, step in enumerate(steps):
            found[:, t, e, 0] = _response(logits, weights, random, temperature, step)
            signs = [_response(logits, weights, sign * worst, temperature, step) for sign in (1, -1)]
            found[:, t, e, 1] = torch.maximum(*signs)
    return found


def worst_direction(weights: Float[Tensor, "rows keys"]) -> Float[Tensor, "rows keys"]:
    """The unit eigenvector of diag(alpha) - alpha alpha^T with the largest eigenvalue lam: alpha_i / (alpha_i - lam).

    Two equal largest weights have lam equal to them, and the eigenvector is their difference.
    """
    top = weights.topk(2, dim=-1)
    lam = jacobian_norm(weights).unsqueeze(-1)
    gaps = weights - lam
    direction = torch.where(gaps != 0, weights / torch.where(gaps != 0, gaps, 1), 0)
    pair = torch.zeros_like(weights).scatter(-1, top.indices[:, :1], 1.0).scatter(-1, top.indices[:, 1:], -1.0)
    tied = (top.values[:, :1] - top.values[:, 1:]) <= 1e-12 * top.values[:, :1]
    direction = torch.where(tied | ~direction.isfinite().all(-1, keepdim=True), pair, direction)
    return direction / direction.norm(dim=-1, keepdim=True)


def _response(logits: Tensor, weights: Tensor, direction: Tensor, temperature: float, step: float) -> Tensor:
    moved = torch.softmax((logits + step * direction) / temperature, -1)
    change = moved - weights
    # A weight near one has no digits left for its change; the changes sum to zero.
    place = weights.argmax(-1, keepdim=True)
    change = change.scatter(-1, place, 0)
    change = change.scatter(-1, place, -change.sum(-1, keepdim=True))
    return change.norm(dim=-1) / step
