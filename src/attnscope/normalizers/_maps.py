"""The maps that normalizers are built from: their weights and Jacobian-vector products, in torch and in compiled loops.

This is the specification that the compiled loops are tested against. Unless noted, a function takes
centered rows x = c (z - z_top) <= 0, with -inf on masked keys, and returns their weights.

A map takes the logits z of a row, a scale c and further parameters to weights w:

    softmax     w = exp(c z) / (exp(sink) + sum exp(c z))      u = w
    topk        softmax over the k largest                     u = w
    sparsemax   w = max(c z - tau, 0)                          u = 1 on the support
    entmax      w = max((alpha-1) c z - tau, 0)^(1/(alpha-1))  u = w^(2-alpha) on the support
    sigmoid     w = 1 / (1 + exp(sink - c z))                  u = w (1-w)

and its Jacobian is J = c (diag(u) - u u^T / U) with U = sum(u) (softmax: U = 1, the remainder
being the sink's weight; sigmoid: no second term). J is never built: J v takes one pass.

`_autograd.py` makes them differentiable. Scale, alpha and sink have one value per row, (..., 1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from attnscope.normalizers import _arguments, _kernels, _kernels_sparse
from attnscope.normalizers._arguments import effective_mask

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


Kind = Literal["softmax", "topk", "sparsemax", "entmax15", "entmax", "sigmoid"]

_FORWARD: dict[Kind, Callable[..., None]] = {
    "softmax": _kernels.softmax,
    "topk": _kernels.topk,
    "sparsemax": _kernels_sparse.sparsemax,
    "entmax15": _kernels_sparse.entmax15,
    "entmax": _kernels_sparse.entmax,
    "sigmoid": _kernels.sigmoid,
}
_BACKWARD: dict[Kind, Callable[..., None]] = {
    "softmax": _kernels.softmax_product,
    "topk": _kernels.softmax_product,
    "sparsemax": _kernels.sparsemax_product,
    "entmax15": _kernels.entmax15_product,
    "entmax": _kernels.entmax_product,
    "sigmoid": _kernels.sigmoid_product,
}


def weights_of(
    kind: Kind,
    k: int,
    z: Tensor,
    visible: Tensor | None,
    scale: Tensor | None,
    alpha: Tensor | None,
    sink: Tensor | None,
) -> Tensor:
    """Weights of a map, from the compiled loops where they can run, else from the torch reference."""
    if _arguments.usable(z, visible, scale, alpha, sink):
        extra: tuple[Any, ...] = ()
        if kind in ("softmax", "sigmoid"):
            extra = (_arguments.row_values(sink, z, -np.inf),)
        elif kind == "topk":
            extra = (k,)
        elif kind == "entmax":
            extra = (_arguments.row_values(alpha, z, 1.0),)
        out = torch.empty_like(z, memory_format=torch.contiguous_format)
        rows, scales = _arguments.rows(z), _arguments.row_values(scale, z, 1.0)
        mask, index = _arguments.mask_rows(visible, z.shape)
        _arguments.run(_FORWARD[kind], z, rows, mask, index, scales, *extra, _arguments.rows(out))
        return out
    x, present, top = center(z, visible, scale)
    if kind == "sigmoid":
        assert sink is not None
        weights = sigmoid(torch.where(present, z, 0.0), scale, sink)
    elif kind == "sparsemax":
        weights = sparsemax(x)
    elif kind == "entmax15":
        weights = entmax15(x)
    elif kind == "entmax":
        assert alpha is not None
        weights = entmax(x, alpha)
    elif kind == "topk":
        weights = softmax(keep_top(x, k))
    else:
        height = top if scale is None else top * scale
        weights = softmax(x, None if sink is None else sink - height)
    return finish(weights, present)


def power_on_support(w: Tensor, alpha: Tensor) -> Tensor:
    """w^(2-alpha) on the support and 0 off it; NaN stays NaN."""
    inside = w != 0
    return torch.where(inside, torch.where(inside, w, 1.0) ** (2 - alpha), 0.0)


def factors(kind: Kind, w: Tensor, alpha: Tensor | None) -> Tensor:
    """The vector u of the map's Jacobian, from its weights."""
    if kind == "sigmoid":
        return w * (1 - w)
    if kind == "sparsemax":
        return torch.where(w != 0, w.detach() / w.detach(), 0.0)
    if kind == "entmax15":
        return power_on_support(w, torch.tensor(1.5, dtype=w.dtype, device=w.device))
    if kind == "entmax":
        assert alpha is not None
        return power_on_support(w, alpha)
    return w


def deviation(kind: Kind, u: Tensor, v: Tensor) -> Tensor:
    """v - sum(u v)/U on the support, 0 off it: J v = c u times this."""
    inside = u != 0
    v = torch.where(inside, v, 0.0)
    if kind == "sigmoid":
        return v
    mean = (u * v).sum(-1, keepdim=True)
    if kind not in ("softmax", "topk"):
        total = u.sum(-1, keepdim=True)
        mean = mean / torch.where(total == 0, 1.0, total)
    return torch.where(inside, v - mean, 0.0)


def _product(kind: Kind, w: Tensor, v: Tensor, scale: Tensor | None, alpha: Tensor | None) -> Tensor:
    """J v in torch operations."""
    u = factors(kind, w, alpha)
    result = u * deviation(kind, u, v)
    return result if scale is None else result * scale


def product_of(kind: Kind, w: Tensor, v: Tensor, scale: Tensor | None, alpha: Tensor | None) -> Tensor:
    """J v, from the compiled loops where they can run, else from the torch reference."""
    if not (_arguments.usable(w, v, scale, alpha) and v.dtype == w.dtype):
        return _product(kind, w, v, scale, alpha)
    out = torch.empty_like(w, memory_format=torch.contiguous_format)
    extra = (_arguments.row_values(alpha, w, 1.0),) if kind == "entmax" else ()
    scales = _arguments.row_values(scale, w, 1.0)
    _arguments.run(_BACKWARD[kind], w, _arguments.rows(w), _arguments.rows(v), scales, *extra, _arguments.rows(out))
    return out
