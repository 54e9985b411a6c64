"""Reference implementation of the maps in torch, for any device and dtype, without data-dependent loops.

This is the specification that the compiled loops are tested against. Unless noted, a function takes
centered rows x = c (z - z_top) <= 0, with -inf on masked keys, and returns their weights.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope.normalizers._rows import effective_mask

_NEWTON_STEPS = 24  # twice what rows of 50,001 keys needed


def center(z: Tensor, visible: Tensor | None, scale: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """x = c (z - z_top), the effective mask, and z_top (0 in an empty row).

    z_top is the logit with the largest c z: the maximum, or the minimum where c is negative.
    """
    present = effective_mask(z, visible)
    filled = torch.where(present, z, -torch.inf)
    top = filled.amax(-1, keepdim=True)
    if scale is not None:
        bottom = torch.where(present, z, torch.inf).amin(-1, keepdim=True)
        top = torch.where(scale < 0, bottom, top)
    top = torch.where(present.any(-1, keepdim=True), top, 0.0)
    x = filled - top
    if scale is not None:
        x = torch.where(present, x * scale, -torch.inf)
    return x, present, top


def finish(weights: Tensor, present: Tensor) -> Tensor:
    """The weights with exactly 0 on masked keys, also in rows that are empty or contain NaN."""
    return torch.where(present, weights, 0.0)


def softmax(x: Tensor, sink: Tensor | None = None) -> Tensor:
    """exp(x) / (exp(sink) + sum exp(x)), the sink relative to the same z_top as x."""
    if sink is None:
        e = x.exp()
        total = e.sum(-1, keepdim=True)
    else:
        lead = sink.clamp(min=0.0)
        e = (x - lead).exp()
        total = e.sum(-1, keepdim=True) + (sink - lead).exp()
    return e / total


def keep_top(x: Tensor, k: int) -> Tensor:
    """x with -inf on all but the k largest entries of each row; ties go to the earlier position."""
    order = x.argsort(dim=-1, descending=True, stable=True)
    return x.scatter(-1, order[..., k:], -torch.inf)


def sparsemax(x: Tensor) -> Tensor:
    """max(x - tau, 0), tau from the sorted row (Held, Wolfe and Crowder 1974)."""
    s = x.clamp(min=-1.0).double().sort(dim=-1, descending=True).values
    k = torch.arange(1, x.shape[-1] + 1, dtype=s.dtype, device=x.device)
    tau = (s.cumsum(-1) - 1) / k
    size = (s > tau).sum(-1, keepdim=True).clamp(min=1)
    return (x - tau.gather(-1, size - 1).to(x.dtype)).clamp(min=0)


def entmax15(x: Tensor) -> Tensor:
    """max(x/2 - tau, 0)^2: the quadratic of every prefix of the sorted row (Peters et al. 2019).

    For a prefix of k entries with mean m and squared deviations v, tau = m - sqrt((1 - v)/k).
    """
    s = (x / 2).clamp(min=-1.0).double().sort(dim=-1, descending=True).values
    k = torch.arange(1, x.shape[-1] + 1, dtype=s.dtype, device=x.device)
    mean = s.cumsum(-1) / k
    deviation = s.square().cumsum(-1) - k * mean.square()
    tau = mean - ((1 - deviation) / k).clamp(min=0).sqrt()
    size = (s > tau).sum(-1, keepdim=True).clamp(min=1)
    return (x / 2 - tau.gather(-1, size - 1).to(x.dtype)).clamp(min=0).square()


def entmax(x: Tensor, alpha: Tensor) -> Tensor:
    """max((alpha-1) x - tau, 0)^q, q = 1/(alpha-1), by Newton's method on the q-norm.

    N(tau) = ||max((alpha-1) x - tau, 0)||_q is convex and decreasing, so that Newton's method
    from tau = -1, where N >= 1, converges to N = 1 without overshooting. With delta = 1 - y and
    y = (alpha-1) x - tau, ln w = q ln(1 - delta) stays accurate as alpha tends to 1. At alpha = 1
    it is softmax.
    """
    beta = (alpha - 1).double()
    at_one = beta <= 0
    beta = torch.where(at_one, 0.5, beta)
    exponent = 1 / beta
    delta = -beta * x.double().clamp(min=-1e300)
    step = torch.zeros_like(delta[..., :1])
    for _ in range(_NEWTON_STEPS):
        d = (delta + step).clamp(max=1.0)
        power = ((exponent - 1) * torch.log1p(-d)).exp()
        # 0^0 at alpha = 2: an entry outside the support adds neither to the sum nor to the slope.
        power = torch.where(d < 1, power, 0.0)
        total = (power * (1 - d)).sum(-1, keepdim=True)
        step = step + (total - total ** (1 - beta)) / power.sum(-1, keepdim=True)
    d = (delta + step).clamp(max=1.0)
    weights = (exponent * torch.log1p(-d)).exp()
    weights = weights / weights.sum(-1, keepdim=True)
    return torch.where(at_one, softmax(x), weights.to(x.dtype))


def sigmoid(z: Tensor, scale: Tensor | None, sink: Tensor) -> Tensor:
    """1 / (1 + exp(sink - c z)): each key competes with the sink only."""
    return torch.sigmoid((z if scale is None else z * scale) - sink)
