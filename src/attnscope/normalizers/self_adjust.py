"""Self-adjust softmax: softmax multiplied by the logits themselves (Zheng et al. 2025, arXiv 2502.18277).

    raw      w = z p,                                              p = softmax(z)
    scaled   w = a p,  a = (z - lo) / D,  lo = min(z_min, 0),  D = max(z_max, 0) - lo

with the minimum and maximum over the visible keys, and w = p where D = 0.

Neither has a bounded Jacobian. The raw form's norm grows with the logits, the scaled form's as the
logits shrink: at z = (t, 0, -t) it is 2.2, 20.6, 204 for t = 0.1, 0.01, 0.001.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attnscope.errors import InputError
from attnscope.normalizers import _checks
from attnscope.normalizers._autograd import apply_map
from attnscope.normalizers._base import Facts, Normalizer, check_range, register, softmax_bounds
from attnscope.normalizers._composed import Loops, compose, self_adjust, self_adjust_gradient
from attnscope.normalizers._jacobian import dominant, eigenvalue_bound, norm_with_cross, sum_without
from attnscope.normalizers._rows import effective_mask, prepare

_LOOPS = Loops(self_adjust, self_adjust_gradient)


def _filled(logits: Tensor, visible: Tensor | None) -> tuple[Tensor, Tensor]:
    """Logits with 0 on masked keys, and the effective mask."""
    z, visible = prepare(logits, visible)
    present = effective_mask(z, visible)
    return torch.where(present, z, 0.0), present


@register
@dataclass(frozen=True, eq=False)
class SelfAdjustRaw(Normalizer):
    """w = z softmax(z): may be negative, does not preserve order, sums to the mean logit under p.

    >>> logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    >>> SelfAdjustRaw().weights(logits)
    tensor([ 1.2878,  0.2369,  0.0000, -0.0321])
    """

    name: ClassVar[str] = "sa_softmax_raw"
    facts: ClassVar[Facts] = Facts(
        sums_to_one=False, at_most_one=False, non_negative=False, sparse=True, shift_invariant=False
    )

    def weights(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        """z softmax(z)."""
        z, present = _filled(logits, visible)
        if z.shape[-1] == 0:
            return logits.clone()
        return (z * apply_map("softmax", z, present)).to(logits.dtype)

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
        _checks.whole("length", length, least=1)
        return math.inf if length > 1 else 1.0


@register
@dataclass(frozen=True, eq=False)
class SelfAdjustScaled(Normalizer):
    """w = (z - lo) / D softmax(z): between 0 and softmax, 0 on the smallest logit if that is not positive.

    >>> logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    >>> SelfAdjustScaled().weights(logits)
    tensor([0.6439, 0.1579, 0.0290, 0.0000])
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

    def weights(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        """a softmax(z)."""
        z, visible = prepare(logits, visible)
        if z.shape[-1] == 0:
            return logits.clone()
        return compose(self._definition, _LOOPS, z, visible).to(logits.dtype)

    def _definition(self, z: Tensor, visible: Tensor | None) -> Tensor:
        z, present = _filled(z, visible)
        adjusted = self._factors(z, present)[0] * apply_map("softmax", z, present)
        return torch.where(present, adjusted, 0.0)

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

    def lipschitz(self, length: int) -> float:
        """inf: the norm grows without bound as the logits shrink."""
        _checks.whole("length", length, least=1)
        return math.inf


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
