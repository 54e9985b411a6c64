"""The maps as autograd functions, differentiable to any order in forward and reverse mode.

`Weights` has as derivative the Jacobian J of its map, which is symmetric, in both modes.
`Product` is (w, v) -> J v; its derivatives are torch operations, so that autograd computes
higher orders. No derivative passes through the search for a threshold.

In alpha: dw/dalpha = J q with q = f((alpha-1) ln w) / (alpha-1)^2, f(x) = e^x - 1 - x e^x, from
differentiating w^(alpha-1) = (alpha-1) z - tau; it tends to -ln(w)^2 / 2 as alpha tends to 1.
Correia, Niculae and Martins (2019) give the same derivative in another form.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from attnscope.normalizers._arguments import usable
from attnscope.normalizers._maps import Kind, deviation, factors, power_on_support, product_of, weights_of

_SERIES_BELOW = 0.5
_SERIES_TERMS = 16


def apply_map(
    kind: Kind,
    z: Tensor,
    visible: Tensor | None = None,
    scale: Tensor | None = None,
    alpha: Tensor | None = None,
    sink: Tensor | None = None,
    k: int = 0,
) -> Tensor:
    """Weights of logits z; scale, alpha and sink have one value per row, shape (..., 1)."""
    if not torch.is_grad_enabled() and usable(z, visible, scale, alpha, sink) and not dual(z, scale, alpha, sink):
        return weights_of(kind, k, z, visible, scale, alpha, sink)
    function = Weights if torch.compiler.is_compiling() else TransformableWeights
    weights: Tensor = function.apply(kind, k, z, visible, scale, alpha, sink)  # type: ignore[no-untyped-call]
    return weights


def dual(*tensors: Tensor | None) -> bool:
    """Whether any tensor carries a forward-mode tangent."""
    return any(unpack_dual(tensor).tangent is not None for tensor in tensors if tensor is not None)


def _alpha_direction(w: Tensor, alpha: Tensor) -> Tensor:
    """q with dw/dalpha = J q: f((alpha-1) ln w)/(alpha-1)^2, from its series where that cancels."""
    log_w = torch.where(w != 0, w, 1.0).log()
    beta = alpha - 1
    x = beta * log_w
    near = x.abs() < _SERIES_BELOW
    # f(x)/x^2 = -sum over j >= 2 of (j-1)/j! x^(j-2)
    small = torch.where(near, x, 0.0)
    series = torch.zeros_like(x)
    factorial = 1.0
    terms = []
    for j in range(2, _SERIES_TERMS + 2):
        factorial *= j
        terms.append((j - 1) / factorial)
    for term in reversed(terms):
        series = series * small + term
    large = torch.where(near, 1.0, x)
    direct = (large.expm1() - large * large.exp()) / large.square()
    return torch.where(near, -series, direct) * log_w.square()


def _to_front(tensor: Tensor | None, dim: int | None, size: int) -> Tensor | None:
    """The argument of a vmap with its batch dimension first; an unbatched one is expanded."""
    if tensor is None:
        return None
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


class Weights(torch.autograd.Function):
    """(z, scale, alpha, sink) -> w, with dw = J (c dz + z dc + q dalpha) + (dw/dsink) dsink."""

    @staticmethod
    def forward(
        kind: Kind,
        k: int,
        z: Tensor,
        visible: Tensor | None,
        scale: Tensor | None,
        alpha: Tensor | None,
        sink: Tensor | None,
    ) -> Tensor:
        return weights_of(kind, k, z, visible, scale, alpha, sink)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        kind, _, z, _, scale, alpha, sink = inputs
        ctx.kind = kind
        saved = (output, None if scale is None else z, scale, alpha, sink)
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = gradients
        w, z, scale, alpha, sink = ctx.saved_tensors
        _, _, need_z, _, need_scale, need_alpha, need_sink = ctx.needs_input_grad
        to_z = to_scale = to_alpha = to_sink = None
        if need_scale or need_alpha:
            plain = _apply_product(ctx.kind, w, g, None, alpha)
            if need_z:
                to_z = plain if scale is None else plain * scale
            if need_scale:
                to_scale = (plain * torch.where(w != 0, z, 0.0)).sum(-1, keepdim=True)
            if need_alpha:
                to_alpha = (plain * _alpha_direction(w, alpha)).sum(-1, keepdim=True)
        elif need_z:
            to_z = _apply_product(ctx.kind, w, g, scale, alpha)
        if need_sink:
            to_sink = (_sink_slope(ctx.kind, w, sink) * g).sum(-1, keepdim=True)
        return None, None, to_z, None, to_scale, to_alpha, to_sink


class TransformableWeights(Weights):
    """`Weights` with forward mode and vmap, which torch.compile cannot trace."""

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        w, z, scale, alpha, sink = ctx.saved_tensors
        _, _, dz, _, dscale, dalpha, dsink = tangents
        direction = torch.zeros_like(w)
        if dz is not None:
            direction = direction + (dz if scale is None else dz * scale)
        if dscale is not None:
            direction = direction + torch.where(w != 0, z, 0.0) * dscale
        if dalpha is not None:
            direction = direction + _alpha_direction(w, alpha) * dalpha
        result = _apply_product(ctx.kind, w, direction, None, alpha)
        return result if dsink is None else result + _sink_slope(ctx.kind, w, sink) * dsink

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], kind: Kind, k: int, *tensors: Any) -> tuple[Tensor, int]:
        moved = [_to_front(t, d, info.batch_size) for t, d in zip(tensors, in_dims[2:], strict=True)]
        return TransformableWeights.apply(kind, k, *moved), 0  # type: ignore[no-untyped-call]


def _sink_slope(kind: Kind, w: Tensor, sink: Tensor) -> Tensor:
    """dw/dsink: minus each weight times the weight of the sink (sigmoid: times 1 - w)."""
    if kind == "sigmoid":
        return -w * (1 - w)
    rest = torch.where(sink == -torch.inf, 0.0, 1 - w.sum(-1, keepdim=True))
    return -w * rest


def _apply_product(kind: Kind, w: Tensor, v: Tensor, scale: Tensor | None, alpha: Tensor | None) -> Tensor:
    function = Product if torch.compiler.is_compiling() else TransformableProduct
    result: Tensor = function.apply(kind, w, v, scale, alpha)  # type: ignore[no-untyped-call]
    return result


class Product(torch.autograd.Function):
    """(w, v, scale, alpha) -> J v, differentiable in each argument."""

    @staticmethod
    def forward(kind: Kind, w: Tensor, v: Tensor, scale: Tensor | None, alpha: Tensor | None) -> Tensor:
        return product_of(kind, w, v, scale, alpha)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        kind, *saved = inputs
        ctx.kind = kind
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (h,) = gradients
        w, v, scale, alpha = ctx.saved_tensors
        _, need_w, need_v, need_scale, need_alpha = ctx.needs_input_grad
        to_w = to_v = to_scale = to_alpha = None
        if need_v:
            to_v = _apply_product(ctx.kind, w, h, scale, alpha)
        if need_scale:
            to_scale = (h * _apply_product(ctx.kind, w, v, None, alpha)).sum(-1, keepdim=True)
        if need_w or need_alpha:
            to_u = _factor_gradient(ctx.kind, w, v, h, alpha)
            to_u = to_u if scale is None else to_u * scale
            if need_w:
                to_w = to_u * _factor_slope(ctx.kind, w, alpha)
            if need_alpha:
                to_alpha = (to_u * _factor_alpha_slope(w, alpha)).sum(-1, keepdim=True)
        return None, to_w, to_v, to_scale, to_alpha


class TransformableProduct(Product):
    """`Product` with forward mode and vmap."""

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        w, v, scale, alpha = ctx.saved_tensors
        _, dw, dv, dscale, dalpha = tangents
        result = torch.zeros_like(w)
        if dw is not None or dalpha is not None:
            du = torch.zeros_like(w)
            if dw is not None:
                du = du + dw * _factor_slope(ctx.kind, w, alpha)
            if dalpha is not None:
                du = du + dalpha * _factor_alpha_slope(w, alpha)
            result = result + _factor_tangent(ctx.kind, w, v, du, alpha)
        if dv is not None:
            result = result + _apply_product(ctx.kind, w, dv, None, alpha)
        if scale is not None:
            result = result * scale
        if dscale is not None:
            result = result + dscale * _apply_product(ctx.kind, w, v, None, alpha)
        return result

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], kind: Kind, *tensors: Any) -> tuple[Tensor, int]:
        moved = [_to_front(t, d, info.batch_size) for t, d in zip(tensors, in_dims[1:], strict=True)]
        return TransformableProduct.apply(kind, *moved), 0  # type: ignore[no-untyped-call]


def _factor_slope(kind: Kind, w: Tensor, alpha: Tensor | None) -> Tensor:
    """du/dw on the support."""
    if kind == "sigmoid":
        return 1 - 2 * w
    if kind == "sparsemax":
        return torch.zeros_like(w)
    if kind in ("softmax", "topk"):
        return torch.ones_like(w)
    order: Tensor | float = 1.5 if alpha is None else alpha
    inside = w != 0
    return torch.where(inside, (2 - order) * torch.where(inside, w, 1.0) ** (1 - order), 0.0)


def _factor_alpha_slope(w: Tensor, alpha: Tensor) -> Tensor:
    """du/dalpha = -u ln w on the support."""
    inside = w != 0
    return torch.where(inside, -power_on_support(w, alpha) * torch.where(inside, w, 1.0).log(), 0.0)


def _factor_gradient(kind: Kind, w: Tensor, v: Tensor, h: Tensor, alpha: Tensor | None) -> Tensor:
    """The gradient in u of h . J v (c = 1): (v - mean v)(h - mean h), the means under u/U."""
    u = factors(kind, w, alpha)
    dv, dh = deviation(kind, u, v), deviation(kind, u, h)
    if kind in ("softmax", "topk"):  # U = 1 does not depend on u
        mean_product = (torch.where(u != 0, v, 0.0) - dv) * (torch.where(u != 0, h, 0.0) - dh)
        return dv * dh - mean_product
    return dv * dh


def _factor_tangent(kind: Kind, w: Tensor, v: Tensor, du: Tensor, alpha: Tensor | None) -> Tensor:
    """The change of J v (c = 1) when u changes by du."""
    u = factors(kind, w, alpha)
    dv = deviation(kind, u, v)
    if kind == "sigmoid":
        return du * dv
    if kind in ("softmax", "topk"):
        return du * dv - u * (du * torch.where(u != 0, v, 0.0)).sum(-1, keepdim=True)
    total = u.sum(-1, keepdim=True)
    return du * dv - u * (du * dv).sum(-1, keepdim=True) / torch.where(total == 0, 1.0, total)
