"""adaptive_temperature: softmax sharpened by a polynomial of its entropy.

Velickovic et al. 2024 (arXiv 2410.01104): p = softmax(beta z), with H the entropy in nats of
softmax(z), beta = max(P(H), 1) if H > 0.5 else 1, and
P(H) = -0.037 H^4 + 0.481 H^3 - 2.3 H^2 + 4.917 H - 1.791, highest power first.

P falls below 1 for H > 5.94, and beta is then 1: on flat rows of more than about 380 keys, where
dilution is worst, this is plain softmax. The definition is implemented as published.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attnscope.normalizers import _checks
from attnscope.normalizers._autograd import apply_map
from attnscope.normalizers._base import Facts, Normalizer, check_range, function_of, register, softmax_bounds
from attnscope.normalizers._composed import COEFFICIENTS, FROM_ENTROPY, Loops, adaptive_temperature_gradient, compose
from attnscope.normalizers._composed import adaptive_temperature as adaptive_temperature_loop
from attnscope.normalizers._jacobian import dominant, eigenvalue_bound, norm_with_cross, sum_without
from attnscope.normalizers._rows import effective_mask, prepare

# The maximum of P, at H = 4.4124, rounded up.
_LARGEST_BETA = 2.4214


def _entropy(p: Tensor) -> Tensor:
    return -(p * torch.where(p > 0, p, 1.0).log()).sum(-1, keepdim=True)


def _beta(entropy: Tensor) -> Tensor:
    value = torch.zeros_like(entropy)
    for coefficient in COEFFICIENTS:
        value = value * entropy + coefficient
    return torch.where(entropy > FROM_ENTROPY, value.clamp(min=1.0), 1.0)


def _definition(z: Tensor, visible: Tensor | None) -> Tensor:
    beta = _beta(_entropy(apply_map("softmax", z, visible)))
    return apply_map("softmax", z, visible, scale=beta)


_LOOPS = Loops(adaptive_temperature_loop, adaptive_temperature_gradient)


@register
@dataclass(frozen=True, eq=False)
class AdaptiveTemperature(Normalizer):
    """softmax(beta(H) z), beta from the entropy H of softmax(z).

    >>> logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    >>> AdaptiveTemperature().weights(logits)
    tensor([0.6996, 0.2145, 0.0657, 0.0202])
    """

    name: ClassVar[str] = "adaptive_temperature"
    facts: ClassVar[Facts] = Facts()

    def weights(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        """softmax(beta z); gradients also flow through beta."""
        z, visible = prepare(logits, visible)
        if z.shape[-1] == 0:
            return logits.clone()
        return compose(_definition, _LOOPS, z, visible).to(logits.dtype)

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

    def lipschitz(self, length: int) -> float:
        """inf: no bound over all rows is known."""
        _checks.whole("length", length, least=1)
        return math.inf


adaptive_temperature = function_of(AdaptiveTemperature)
