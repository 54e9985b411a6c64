"""The maps that normalizers are built from: their weights, and their Jacobian-vector products.

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

from attnscope.normalizers import _kernels, _kernels_backward, _kernels_sparse, _loops, _reference

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
    "softmax": _kernels_backward.softmax,
    "topk": _kernels_backward.softmax,
    "sparsemax": _kernels_backward.sparsemax,
    "entmax15": _kernels_backward.entmax15,
    "entmax": _kernels_backward.entmax,
    "sigmoid": _kernels_backward.sigmoid,
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
    if _loops.usable(z, visible, scale, alpha, sink):
        return _weights_by_loop(kind, k, z, visible, scale, alpha, sink)
    x, present, top = _reference.center(z, visible, scale)
    if kind == "sigmoid":
        assert sink is not None
        weights = _reference.sigmoid(torch.where(present, z, 0.0), scale, sink)
    elif kind == "sparsemax":
        weights = _reference.sparsemax(x)
    elif kind == "entmax15":
        weights = _reference.entmax15(x)
    elif kind == "entmax":
        assert alpha is not None
        weights = _reference.entmax(x, alpha)
    elif kind == "topk":
        weights = _reference.softmax(_reference.keep_top(x, k))
    else:
        height = top if scale is None else top * scale
        weights = _reference.softmax(x, None if sink is None else sink - height)
    return _reference.finish(weights, present)


def _weights_by_loop(
    kind: Kind,
    k: int,
    z: Tensor,
    visible: Tensor | None,
    scale: Tensor | None,
    alpha: Tensor | None,
    sink: Tensor | None,
) -> Tensor:
    out = torch.empty_like(z, memory_format=torch.contiguous_format)
    extra: tuple[Any, ...] = ()
    if kind in ("softmax", "sigmoid"):
        extra = (_loops.per_row(sink, z, -np.inf),)
    elif kind == "topk":
        extra = (k,)
    elif kind == "entmax":
        extra = (_loops.per_row(alpha, z, 1.0),)
    mask, index = _loops.mask_rows(visible, z.shape)
    scales = _loops.per_row(scale, z, 1.0)
    _loops.run(_FORWARD[kind], z, _loops.rows(z), mask, index, scales, *extra, _loops.rows(out))
    return out


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
    if not (_loops.usable(w, v, scale, alpha) and v.dtype == w.dtype):
        return _product(kind, w, v, scale, alpha)
    out = torch.empty_like(w, memory_format=torch.contiguous_format)
    extra = (_loops.per_row(alpha, w, 1.0),) if kind == "entmax" else ()
    scales = _loops.per_row(scale, w, 1.0)
    _loops.run(_BACKWARD[kind], w, _loops.rows(w), _loops.rows(v), scales, *extra, _loops.rows(out))
    return out
