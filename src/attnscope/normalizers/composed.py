"""Normalizers that are softmax times a function of the logits, or softmax of one.

| name | weights | Jacobian norm |
|---|---|---|
| adaptive_temperature | softmax(beta(H) z), H the entropy of softmax(z) | no bound is known |
| f_normalizer | F(z) / sum F(z) for a positive F | at most max abs((ln F)') h(p_max) |
| sa_softmax | z softmax(z), or the same with z moved into [0, 1] | unbounded |

Each is defined here in torch operations; the loops of `_kernels_composed.py` compute the same faster.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from attnscope.errors import InputError
from attnscope.normalizers import _kernels_composed as _kernels
from attnscope.normalizers._arguments import check_whole, effective_mask, prepare
from attnscope.normalizers._autograd import apply_map
from attnscope.normalizers._base import Facts, Normalizer, check_range, function_of, register, softmax_bounds
from attnscope.normalizers._jacobian import dominant, eigenvalue_bound, norm_with_cross, sum_without
from attnscope.normalizers._kernels_composed import COEFFICIENTS, FROM_ENTROPY, Loops, compose

# The maximum of P, at H = 4.4124, rounded up.
_LARGEST_BETA = 2.4214


def _entropy(p: Tensor) -> Tensor:
    return -(p * torch.where(p > 0, p, 1.0).log()).sum(-1, keepdim=True)


def _beta(entropy: Tensor) -> Tensor:
    value = torch.zeros_like(entropy)
    for coefficient in COEFFICIENTS:
        value = value * entropy + coefficient
    return torch.where(entropy > FROM_ENTROPY, value.clamp(min=1.0), 1.0)


class _ComposedNormalizer(Normalizer):
    """A normalizer with a definition in torch operations, and loops that compute the same faster."""

    @abstractmethod
    def _definition(self, z: Tensor, visible: Tensor | None) -> Tensor:
        """The weights of logits that are prepared."""

    @property
    def _loops(self) -> Loops | None:
        """The loops of this definition, if there are any."""
        return None

    def weights(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        z, visible = prepare(logits, visible)
        if z.shape[-1] == 0:
            return logits.clone()
        if self._loops is None:
            return self._definition(z, visible).to(logits.dtype)
        return compose(self._definition, self._loops, z, visible).to(logits.dtype)


@register
@dataclass(frozen=True, eq=False)
class AdaptiveTemperature(_ComposedNormalizer):
    """softmax(beta(H) z), beta from the entropy H of softmax(z).

    >>> logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    >>> AdaptiveTemperature().weights(logits)
    tensor([0.6996, 0.2145, 0.0657, 0.0202])

    Velickovic et al. 2024 (arXiv 2410.01104): with H in nats, beta = max(P(H), 1) if H > 0.5 else 1, and
    P(H) = -0.037 H^4 + 0.481 H^3 - 2.3 H^2 + 4.917 H - 1.791. P falls below 1 for H > 5.94, and beta is then 1: on
    flat rows of more than about 380 keys, where dilution is worst, this is plain softmax. The definition is
    implemented as published.
    """

    name: ClassVar[str] = "adaptive_temperature"
    facts: ClassVar[Facts] = Facts()

    def _definition(self, z: Tensor, visible: Tensor | None) -> Tensor:
        beta = _beta(_entropy(apply_map("softmax", z, visible)))
        return apply_map("softmax", z, visible, scale=beta)

    @property
    def _loops(self) -> Loops:
        return Loops(_kernels.adaptive_temperature, _kernels.adaptive_temperature_gradient)

    def weight_bounds(self, length: int, low: float, high: float) -> tuple[float, float]:
        """Softmax's bounds at the largest beta: 1 / (1 + (L-1) exp(+-beta (high - low)))."""
        check_range(length, low, high)
        return softmax_bounds(length, _LARGEST_BETA * (high - low))

    def _terms(self, logits: Tensor, visible: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """beta, p = softmax(beta z), dp/dbeta = (diag p - p p^T) z, and the gradient of beta in z."""
        z, visible = prepare(logits, visible)
        z = z.detach()
        present = effective_mask(z, visible)
        z = torch.where(present, z.double(), 0.0)
        first = apply_map("softmax", z, present)
        with torch.enable_grad():
            entropy = _entropy(first).requires_grad_()
            beta = _beta(entropy)
            (slope,) = torch.autograd.grad(beta.sum(), entropy)
        beta = beta.detach()
        p = apply_map("softmax", z, present, scale=beta)
        log_first = torch.where(first > 0, first, 1.0).log()
        to_beta = -slope * first * (log_first + entropy.detach())
        to_scale: Tensor = p * (z - (p * z).sum(-1, keepdim=True))
        return beta, p, to_scale, to_beta

    def jacobian_norm(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        """The largest singular value of beta (diag p - p p^T) + ((diag p - p p^T) z) (grad beta)^T."""
        beta, p, to_scale, to_beta = self._terms(logits, visible)
        left = torch.stack([-beta * p, to_scale], dim=-1)
        right = torch.stack([p, to_beta], dim=-1)
        top = p.argmax(-1, keepdim=True)
        p_top, to_scale_top, to_beta_top = p.gather(-1, top), to_scale.gather(-1, top), to_beta.gather(-1, top)
        diagonal_top = beta * p_top * sum_without(p, top) + to_scale_top * to_beta_top
        row = (-beta * p_top * p + to_scale_top * to_beta).scatter(-1, top, diagonal_top)
        column = -beta * p * p_top + to_scale * to_beta_top
        return norm_with_cross(beta * p, left, right, dominant(p, top), row, column).to(logits.dtype)

    def jacobian_bound(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        """beta h(p_max) + |(diag p - p p^T) z| |grad beta|."""
        beta, p, to_scale, to_beta = self._terms(logits, visible)
        fixed_beta: Tensor = beta.squeeze(-1) * eigenvalue_bound(p, p.sum(-1, keepdim=True))
        through_beta: Tensor = to_scale.norm(dim=-1) * to_beta.norm(dim=-1)
        return (fixed_beta + through_beta).to(logits.dtype)


adaptive_temperature = function_of(AdaptiveTemperature)


_LINEAR_BELOW = -30.0
_GRID = 4097
_SQUARE_BELOW = 1e9


def _log_softplus(z: Tensor) -> Tensor:
    """ln ln(1 + e^z), which is z itself, to float64's precision, far below zero."""
    return torch.where(z < _LINEAR_BELOW, z, functional.softplus(z.clamp(min=_LINEAR_BELOW), threshold=40.0).log())


def _log_one_plus_square(z: Tensor) -> Tensor:
    """ln(1 + max(z, 0)^2), which is 2 ln z, to float64's precision, where z^2 could overflow."""
    near = z < _SQUARE_BELOW
    return torch.where(
        near, torch.log1p(torch.where(near, z, 0.0).relu().square()), 2 * torch.where(near, 1.0, z).log()
    )


# name -> ln F. Each F is non-decreasing with |(ln F)'| <= 1 everywhere.
_LOGARITHMS: dict[str, Callable[[Tensor], Tensor]] = {
    "exp": lambda z: z,
    "softplus": _log_softplus,
    "one_plus_square": _log_one_plus_square,
    "sigmoid": functional.logsigmoid,
}

_SHARES = {
    "softplus": Loops(_kernels.share, _kernels.share_gradient, _kernels.SOFTPLUS),
    "one_plus_square": Loops(_kernels.share, _kernels.share_gradient, _kernels.ONE_PLUS_SQUARE),
    "sigmoid": Loops(_kernels.share, _kernels.share_gradient, _kernels.SIGMOID),
}


@register
@dataclass(frozen=True, eq=False)
class FNormalizer(_ComposedNormalizer):
    """p_i = F(z_i) / sum_j F(z_j), F > 0.

    >>> logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    >>> FNormalizer(function="one_plus_square").weights(logits)
    tensor([0.5556, 0.2222, 0.1111, 0.1111])

    >>> FNormalizer(lambda z: 1 + z.square()).weights(logits)
    tensor([0.5000, 0.2000, 0.1000, 0.2000])

    The paper's equation (3), computed as softmax(ln F(z)), which neither overflows nor divides by a vanishing sum. Its
    Jacobian is (diag(p) - p p^T) diag(g), g = (ln F)'(z): a diagonal plus one rank-one term, with norm at most
    max|g| h(p_max) (J1 of docs/theory.md). For a function of a tensor the Lipschitz constant is given as inf, and
    `weight_bounds` takes its extremes on a grid of 4,097 points.

    Parameters
    ----------
    function
        F: "exp", "softplus", "one_plus_square" (1 + max(z, 0)^2), "sigmoid", or any positive elementwise
        function of a tensor.
    """

    function: str | Callable[[Tensor], Tensor] = "softplus"

    name: ClassVar[str] = "f_normalizer"
    facts: ClassVar[Facts] = Facts(shift_invariant=False)

    def __post_init__(self) -> None:
        if not callable(self.function) and self.function not in _LOGARITHMS:
            raise InputError(
                f"no function F is named {self.function!r}: choose from {', '.join(_LOGARITHMS)}, or pass a function"
            )

    def _log(self, z: Tensor) -> Tensor:
        if callable(self.function):
            return self.function(z).log()
        return _LOGARITHMS[self.function](z)

    def _definition(self, z: Tensor, visible: Tensor | None) -> Tensor:
        present = effective_mask(z, visible)
        return apply_map("softmax", self._log(torch.where(present, z, 0.0)), present)

    @property
    def _loops(self) -> Loops | None:
        return None if callable(self.function) else _SHARES.get(self.function)

    def weight_bounds(self, length: int, low: float, high: float) -> tuple[float, float]:
        """m / (m + (L-1) M) <= p_i <= M / (M + (L-1) m), m and M the extremes of F: Lemma 1, sharp."""
        check_range(length, low, high)
        grid = torch.linspace(low, high, _GRID, dtype=torch.float64)
        values = self._log(grid if callable(self.function) else grid[[0, -1]])
        return softmax_bounds(length, float(values.max() - values.min()))

    def _slopes(self, logits: Tensor, visible: Tensor | None) -> tuple[Tensor, Tensor]:
        """p and g = (ln F)'(z)."""
        z, visible = prepare(logits, visible)
        z = z.detach().double()
        present = effective_mask(z, visible)
        with torch.enable_grad():
            inputs = torch.where(present, z, 0.0).requires_grad_()
            value = self._log(inputs)
            (g,) = torch.autograd.grad(value.sum(), inputs)
        return apply_map("softmax", value.detach(), present), g

    def jacobian_norm(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        """The largest singular value of diag(p g) - p (p g)^T."""
        p, g = self._slopes(logits, visible)
        top = p.argmax(-1, keepdim=True)
        p_top, g_top = p.gather(-1, top), g.gather(-1, top)
        row = (-p_top * p * g).scatter(-1, top, p_top * g_top * sum_without(p, top))
        column = -p * p_top * g_top
        pivot = dominant(p, top)
        return norm_with_cross(p * g, -p.unsqueeze(-1), (p * g).unsqueeze(-1), pivot, row, column).to(logits.dtype)

    def jacobian_bound(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        """max|g| h(p_max), the maximum over the visible keys."""
        p, g = self._slopes(logits, visible)
        slope = torch.where(p > 0, g.abs(), 0.0).amax(-1)
        return (slope * eigenvalue_bound(p, p.sum(-1, keepdim=True))).to(logits.dtype)

    def lipschitz(self, length: int) -> float:
        """1/2 for the named functions, whose |(ln F)'| is at most 1; inf for others."""
        check_whole("length", length, least=1)
        return math.inf if callable(self.function) else 0.5


f_normalizer = function_of(FNormalizer)


# Self-adjust softmax (Zheng et al. 2025, arXiv 2502.18277) multiplies softmax by the logits themselves. Neither form
# has a bounded Jacobian.


def _filled(logits: Tensor, visible: Tensor | None) -> tuple[Tensor, Tensor]:
    """Logits with 0 on masked keys, and the effective mask."""
    z, visible = prepare(logits, visible)
    present = effective_mask(z, visible)
    return torch.where(present, z, 0.0), present


@register
@dataclass(frozen=True, eq=False)
class SelfAdjustRaw(_ComposedNormalizer):
    """w = z softmax(z): may be negative, does not preserve order, sums to the mean logit under p.

    >>> logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    >>> SelfAdjustRaw().weights(logits)
    tensor([ 1.2878,  0.2369,  0.0000, -0.0321])
    """

    name: ClassVar[str] = "sa_softmax_raw"
    facts: ClassVar[Facts] = Facts(
        sums_to_one=False, at_most_one=False, non_negative=False, sparse=True, shift_invariant=False
    )

    def _definition(self, z: Tensor, visible: Tensor | None) -> Tensor:
        z, present = _filled(z, visible)
        return z * apply_map("softmax", z, present)

    def weight_bounds(self, length: int, low: float, high: float) -> tuple[float, float]:
        """The ends of the range times softmax's bounds: still of order 1/L."""
        check_range(length, low, high)
        smallest, largest = softmax_bounds(length, high - low)
        return min(low * smallest, low * largest), max(high * smallest, high * largest)

    def jacobian_norm(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        """The largest singular value of diag(p (1 + z)) - (z p) p^T."""
        z, present = _filled(logits, visible)
        z = z.detach().double()
        p = apply_map("softmax", z, present)
        top = p.argmax(-1, keepdim=True)
        p_top, z_top = p.gather(-1, top), z.gather(-1, top)
        row = (-z_top * p_top * p).scatter(-1, top, p_top * (1 + z_top * sum_without(p, top)))
        pivot = dominant(p, top)
        norm = norm_with_cross(p * (1 + z), -(z * p).unsqueeze(-1), p.unsqueeze(-1), pivot, row, -z * p * p_top)
        return norm.to(logits.dtype)

    def jacobian_bound(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        """p_max + max|z| h(p_max)."""
        z, present = _filled(logits, visible)
        z = z.detach()
        p = apply_map("softmax", z, present).double()
        of_softmax = eigenvalue_bound(p, p.sum(-1, keepdim=True))
        return (p.amax(-1) + z.double().abs().amax(-1) * of_softmax).to(logits.dtype)

    def lipschitz(self, length: int) -> float:
        """inf: the norm grows with the logits, (1 + a)/2 at z = (a, a); 1 for a single key."""
        check_whole("length", length, least=1)
        return math.inf if length > 1 else 1.0


@register
@dataclass(frozen=True, eq=False)
class SelfAdjustScaled(_ComposedNormalizer):
    """w = (z - lo) / D softmax(z): between 0 and softmax, 0 on the smallest logit if that is not positive.

    >>> logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    >>> SelfAdjustScaled().weights(logits)
    tensor([0.6439, 0.1579, 0.0290, 0.0000])

    w = a p with p = softmax(z), a = (z - lo) / D, lo = min(z_min, 0) and D = max(z_max, 0) - lo, the minimum and
    maximum over the visible keys; w = p where D = 0. The norm of the Jacobian grows without bound as the logits
    shrink: at z = (t, 0, -t) it is 2.2, 20.6, 204 for t = 0.1, 0.01, 0.001.
    """

    name: ClassVar[str] = "sa_softmax"
    facts: ClassVar[Facts] = Facts(sums_to_one=False, sparse=True, shift_invariant=False)

    def _factors(self, z: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
        """a, and D with 0 replaced by 1."""
        low = torch.where(present, z, torch.inf).amin(-1, keepdim=True).clamp(max=0.0)
        high = torch.where(present, z, -torch.inf).amax(-1, keepdim=True).clamp(min=0.0)
        flat = high == low
        # Large logits are halved, which is exact, so that their difference does not overflow.
        half = torch.where(torch.maximum(high, -low) > 1, 0.5, 1.0).detach()
        a = (half * z - half * low) / torch.where(flat, 1.0, half * high - half * low)
        return torch.where(flat, 1.0, a), torch.where(flat, 1.0, high - low)

    def _definition(self, z: Tensor, visible: Tensor | None) -> Tensor:
        z, present = _filled(z, visible)
        adjusted = self._factors(z, present)[0] * apply_map("softmax", z, present)
        return torch.where(present, adjusted, 0.0)

    @property
    def _loops(self) -> Loops:
        return Loops(_kernels.self_adjust, _kernels.self_adjust_gradient)

    def weight_bounds(self, length: int, low: float, high: float) -> tuple[float, float]:
        """0 <= w <= p: softmax's upper bound."""
        check_range(length, low, high)
        return 0.0, softmax_bounds(length, high - low)[1]

    def _double(self, logits: Tensor, visible: Tensor | None) -> tuple[Tensor, ...]:
        z, present = _filled(logits, visible)
        z = z.detach().double()
        a, width = self._factors(z, present)
        return z, present, a, width, apply_map("softmax", z, present)

    def jacobian_norm(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        """The largest singular value; inf where D = 0, since the map is not differentiable there.

        J = diag(p (a + 1/D)) - (a p) p^T - (p (1-a) / D) e_min^T - (a p / D) e_max^T, the last two
        only where the minimum is negative and the maximum positive.
        """
        z, present, a, width, p = self._double(logits, visible)
        bottom, where_bottom = torch.where(present, z, torch.inf).min(-1, keepdim=True)
        top, where_top = torch.where(present, z, -torch.inf).max(-1, keepdim=True)
        at_bottom = torch.zeros_like(z).scatter(-1, where_bottom, 1.0) * (bottom < 0)
        at_top = torch.zeros_like(z).scatter(-1, where_top, 1.0) * (top > 0)
        # At a negative minimum, where a = 0 whatever the logits, and at a positive maximum, where a = 1,
        # 1/D and the last two terms add up to exactly 0.
        moving = p * (1 - at_bottom) * (1 - at_top) / width
        to_low = (top.clamp(min=0.0) - z) / width
        diagonal = a * p + moving
        left = torch.stack([a * p, moving * to_low, moving * a], dim=-1)
        right = -torch.stack([p, at_bottom, at_top], dim=-1)

        p_top, a_top = p.gather(-1, where_top), a.gather(-1, where_top)
        diagonal_top = a_top * p_top * sum_without(p, where_top) + moving.gather(-1, where_top)
        row = -a_top * p_top * p - moving.gather(-1, where_top) * to_low.gather(-1, where_top) * at_bottom
        column = -a * p * p_top - moving * a * at_top.gather(-1, where_top)
        row = row.scatter(-1, where_top, diagonal_top)
        norm = norm_with_cross(diagonal, left, right, dominant(p, where_top), row, column)
        return torch.where(self._flat(z, present), torch.inf, norm).to(logits.dtype)

    def jacobian_bound(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        """h(p_max) + (p_max + |p|) / D."""
        z, present, _, width, p = self._double(logits, visible)
        of_softmax = eigenvalue_bound(p, p.sum(-1, keepdim=True))
        bound = of_softmax + (p.amax(-1) + p.norm(dim=-1)) / width.squeeze(-1)
        return torch.where(self._flat(z, present), torch.inf, bound).to(logits.dtype)

    def _flat(self, z: Tensor, present: Tensor) -> Tensor:
        return present.any(-1) & (torch.where(present, z.abs(), 0.0).amax(-1) == 0)


def sa_softmax(logits: Tensor, visible: Tensor | None = None, *, variant: str = "scaled") -> Tensor:
    """Self-adjust softmax, `variant` "scaled" or "raw": see `SelfAdjustScaled` and `SelfAdjustRaw`.

    >>> logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    >>> sa_softmax(logits)
    tensor([0.6439, 0.1579, 0.0290, 0.0000])

    Parameters
    ----------
    logits
        Logits, (..., keys).
    visible
        Mask that broadcasts against the logits, False for keys that are not attended to. Default: all keys.
    variant
        "scaled" or "raw".

    Returns
    -------
    (..., keys)
        Weights, with the shape and dtype of the logits.
    """
    if variant == "scaled":
        return SelfAdjustScaled().weights(logits, visible)
    if variant == "raw":
        return SelfAdjustRaw().weights(logits, visible)
    raise InputError(f"variant must be 'scaled' or 'raw', received {variant!r}")
