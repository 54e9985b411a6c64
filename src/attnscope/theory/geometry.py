"""Theorem 2 and its correction: how many selected tokens stay apart from the rest.

Vectors lie on a sphere of radius M = 1. With s the context of the top set, a selected token i is counted
when |alpha_i x_i - s| < r, strictly: with r the distance of the nearest token left out, the printed closed
ball would contain that token. Since alpha_i x_i - s = -W_i with W_i = sum over the other selected j of
alpha_j x_j, x_i itself drops out.

`weights` below are those of one set, (..., sets, members), zero-padded behind the set's `count` members.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from attnscope.theory.distance import leave_one_out

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


ROUNDING = 1e-12


class Interval(NamedTuple):
    """A lower and an upper bound."""

    lower: Tensor
    upper: Tensor


def spread(
    weights: Float[Tensor, "*batch sets members"], delta: Float[Tensor, "*batch #sets"]
) -> Float[Tensor, "*batch sets members"]:
    """Eq. (12): xi_i, for M = 1.

    xi_i^2 = sum_{j != i} alpha_j^2 + (1 - delta^2/2) sum_{j != k, both != i} alpha_j alpha_k
           = (delta^2/2) sum_{j != i} alpha_j^2 + (1 - delta^2/2) (sum_{j != i} alpha_j)^2.

    If no two vectors are nearer than delta, x_j . x_k <= 1 - delta^2/2, hence |W_i| <= xi_i for sure,
    not only on average.
    """
    half = (delta.square() / 2).unsqueeze(-1)
    squares = leave_one_out(weights.square())
    sums = leave_one_out(weights)
    return (half * squares + (1 - half) * sums.square()).clamp_min(0).sqrt()


def separability_printed(
    spread: Float[Tensor, "*batch sets members"],
    members: Bool[Tensor, "*batch sets members"],
    radius: Float[Tensor, "*batch sets"],
) -> Interval:
    """Theorem 2 as printed: 1 - sum xi_i / (r N) <= E[N_s]/N <= (1/N) sum exp(-(r - xi_i)^2 / 16).

    The lower side is true (Markov) and often vacuous. The upper side is false: for N = 1 the share is 1
    and the bound below 1; and with the radius the paper uses it never falls below exp(-1/16) = 0.939.
    """
    count = members.sum(-1).to(radius.dtype)
    total = torch.where(members, spread, 0).sum(-1)
    penalty = torch.where(total > 0, total / (radius * count), 0)
    tails = torch.exp(-(radius.unsqueeze(-1) - spread).square() / 16)
    return Interval(1 - penalty, torch.where(members, tails, 0).sum(-1) / count)


def separability_certain(
    sizes: Float[Tensor, "*batch sets members"],
    spread: Float[Tensor, "*batch sets members"],
    members: Bool[Tensor, "*batch sets members"],
    radius: Float[Tensor, "*batch sets"],
) -> Interval:
    """T2a, the corrected two-sided bound, true for every configuration.

    With m_i the largest and A_i the sum of the other selected sizes |alpha_j x_j| (the weights themselves on
    the sphere, zero for a zero vector), (2 m_i - A_i)_+ <= |W_i| <= xi_i.
    So token i is counted for sure if xi_i < r, and never if (2 m_i - A_i)_+ >= r. The left inequality is
    the triangle inequality: the largest term can be cancelled by at most all the others.

    Ties are common (N = 2, identical vectors), so each comparison gives way by `ROUNDING`: the bounds stay
    bounds in floating point.
    """
    count = members.sum(-1).to(radius.dtype)
    first, second = _two_largest(sizes)
    largest_other = torch.where(_first_largest(sizes), second, first)
    least = (2 * largest_other - leave_one_out(sizes)).clamp_min(0)
    ball = radius.unsqueeze(-1)
    return Interval(
        ((spread < ball * (1 - ROUNDING)) & members).sum(-1) / count,
        ((least < ball * (1 + ROUNDING)) & members).sum(-1) / count,
    )


def _two_largest(weights: Float[Tensor, "*batch members"]) -> tuple[Tensor, Tensor]:
    if weights.shape[-1] == 1:
        return weights, torch.zeros_like(weights)
    top = weights.topk(2, dim=-1).values
    return top[..., :1], top[..., 1:]


def _first_largest(weights: Float[Tensor, "*batch members"]) -> Bool[Tensor, "*batch members"]:
    places = torch.arange(weights.shape[-1], device=weights.device)
    return places == weights.argmax(-1, keepdim=True)
