"""Lemma 1 and Corollary 1: how small a weight must become as the row grows longer.

A separable normalizer gives alpha_i = F(l_i) / sum_j F(l_j) with F > 0, eq. (3). Softmax has F(l) = exp(l / T).

| here | paper |
|---|---|
| `smallest`, `largest` | min F and max F over [-a, a], m and Mx below |
| `length` | L, at least 2 |
| `delta` | Delta = max_j |q| |k_j| of Corollary 1 |
| `temperature` | T |
| `logits` | l_i, (..., keys) |
| `weight` | w, between 0 and 1 |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from attnscope.theory.configuration import Interval, leave_one_out

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


def weight_bounds_printed(
    smallest: Float[Tensor, "*batch"], largest: Float[Tensor, "*batch"], length: Float[Tensor, "*batch"]
) -> Interval:
    """Lemma 1 as printed: C1 / L <= alpha_i <= C2 / L, with the best constants free of L.

    >>> weight_bounds_printed(torch.tensor(1.0), torch.tensor(2.0), torch.tensor(10.0))
    Interval(lower=tensor(0.0500), upper=tensor(0.2000))

    C1 = m / Mx and C2 = Mx / m. True if F is positive and neither the range a nor the parameters of F depend on L.
    Positivity is needed: F(l) = l^2 on (1, 0, ..., 0) puts weight 1 on the first token at every length. Proof: each of
    the L terms of the sum lies between m and Mx.
    """
    return Interval(smallest / largest / length, largest / smallest / length)


def weight_bounds(
    smallest: Float[Tensor, "*batch"], largest: Float[Tensor, "*batch"], length: Float[Tensor, "*batch"]
) -> Interval:
    """Lemma 1, sharp: m / (m + (L-1) Mx) <= alpha_i <= Mx / (Mx + (L-1) m), both attained at every length.

    >>> weight_bounds(torch.tensor(1.0), torch.tensor(2.0), torch.tensor(10.0))
    Interval(lower=tensor(0.0526), upper=tensor(0.1818))

    Proof: alpha_i grows with F_i and falls with every other F_j, so the extremes are F_i = Mx with F_j = m, and the
    reverse. Always below 1, which Mx / (m L) is not.
    """
    ratio = largest / smallest
    others = length - 1
    return Interval(1 / (1 + others * ratio), 1 / (1 + others / ratio))


def softmax_weight_bounds_printed(
    delta: Float[Tensor, "*batch"], temperature: Float[Tensor, "*batch"], length: Float[Tensor, "*batch"]
) -> Interval:
    """Corollary 1 as printed: exp(-2 Delta / T) / L <= alpha_i <= exp(2 Delta / T) / L, Delta = |q| |k|.

    >>> softmax_weight_bounds_printed(torch.tensor(1.0), torch.tensor(1.0), torch.tensor(10.0))
    Interval(lower=tensor(0.0135), upper=tensor(0.7389))

    The paper does not say which key enters Delta. With the longest key of the row the bound is true; with the key of
    token i it is false: q = 1, k = (0, 10), T = 1 gives Delta_1 = 0, hence alpha_1 = 1/2, and alpha_1 is 4.5e-5. The
    upper bound is vacuous (above 1) once Delta / T >= ln(L) / 2.
    """
    reach = 2 * delta / temperature
    return Interval(torch.exp(-reach) / length, torch.exp(reach) / length)


def softmax_weight_bounds(
    delta: Float[Tensor, "*batch"], temperature: Float[Tensor, "*batch"], length: Float[Tensor, "*batch"]
) -> Interval:
    """Corollary 1, sharp: 1 / (1 + (L-1) e^{2 Delta/T}) <= alpha_i <= 1 / (1 + (L-1) e^{-2 Delta/T}).

    >>> softmax_weight_bounds(torch.tensor(1.0), torch.tensor(1.0), torch.tensor(10.0))
    Interval(lower=tensor(0.0148), upper=tensor(0.4509))

    Delta = |q| max_j |k_j|. This is the sharp Lemma 1 with Mx / m = e^{2 Delta / T}; attained when the query is
    parallel to one key of that length and opposed to all others.
    """
    reach = 2 * delta / temperature
    log_others = torch.log(length - 1)
    return Interval(torch.sigmoid(-reach - log_others), torch.sigmoid(reach - log_others))


def logit_sandwich(logits: Float[Tensor, "*batch keys"], temperature: Float[Tensor, "*batch"]) -> Interval:
    """Bounds on each softmax weight by its logit alone, (..., keys); no norms needed, never above 1.

    >>> logits = torch.tensor([2.0, 1.0, 0.0])
    >>> bounds = logit_sandwich(logits, torch.tensor(1.0))
    >>> bounds.lower, logits.softmax(-1), bounds.upper
    (tensor([0.5761, 0.1554, 0.0634]), tensor([0.6652, 0.2447, 0.0900]), tensor([0.6914, 0.3333, 0.1004]))

    sigma((l_i - max_{j != i} l_j)/T - ln(L-1)) <= alpha_i <= sigma((l_i - mean_{j != i} l_j)/T - ln(L-1)).

    Proof: alpha_i = 1 / (1 + sum_{j != i} e^{(l_j - l_i)/T}). Each term is at most the largest; by Jensen the sum
    is at least (L-1) times the exponential of the mean.
    """
    scaled = logits / temperature.unsqueeze(-1)
    others = logits.shape[-1] - 1
    log_others = torch.log(torch.tensor(float(others), dtype=logits.dtype, device=logits.device))
    first, argmax = scaled.max(-1, keepdim=True)
    second = scaled.scatter(-1, argmax, -torch.inf).amax(-1, keepdim=True)
    is_first = torch.arange(logits.shape[-1], device=logits.device) == argmax
    rival = torch.where(is_first, second, first)
    # Centered on the largest logit, so that a common offset costs no digits.
    mean = first + leave_one_out(scaled - first) / others
    return Interval(torch.sigmoid(scaled - rival - log_others), torch.sigmoid(scaled - mean - log_others))


def required_gap(
    weight: Float[Tensor, "*batch"], length: Float[Tensor, "*batch"], temperature: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    """The logit gap needed for weight w on token i: l_i - mean_{j != i} l_j >= T [ln(L-1) + ln(w / (1-w))].

    >>> required_gap(torch.tensor(0.5), torch.tensor(1025.0), torch.tensor(1.0))
    tensor(6.9315)

    The converse of the right side of `logit_sandwich`: nothing forces a weight to vanish, but keeping it takes
    a gap that grows like ln L. Equality holds when the other logits are equal.
    """
    return temperature * (torch.log(length - 1) + torch.logit(weight))
