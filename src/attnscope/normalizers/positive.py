"""f_normalizer: F(z) / sum F(z) for any positive F, the paper's equation (3).

Computed as softmax(log F(z)), which neither overflows nor divides by a vanishing sum. Its
Jacobian is (diag(p) - p p^T) diag(g), g = (ln F)'(z): a diagonal plus one rank-one term, with norm
at most max|g| h(p_max) (J1 of docs/theory.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from attnscope.errors import InputError
from attnscope.normalizers import _checks
from attnscope.normalizers._autograd import apply_map
from attnscope.normalizers._base import Facts, Normalizer, check_range, function_of, register, softmax_bounds
from attnscope.normalizers._composed import ONE_PLUS_SQUARE, SIGMOID, SOFTPLUS, Loops, compose, share, share_gradient
from attnscope.normalizers._jacobian import dominant, eigenvalue_bound, norm_with_cross, sum_without
from attnscope.normalizers._rows import effective_mask, prepare

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

_LOOPS = {
    name: Loops(share, share_gradient, kind)
    for name, kind in {"softplus": SOFTPLUS, "one_plus_square": ONE_PLUS_SQUARE, "sigmoid": SIGMOID}.items()
}


@register
@dataclass(frozen=True, eq=False)
class FNormalizer(Normalizer):
    """p_i = F(z_i) / sum_j F(z_j), F > 0.

    >>> logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    >>> FNormalizer(function="one_plus_square").weights(logits)
    tensor([0.5556, 0.2222, 0.1111, 0.1111])

    >>> FNormalizer(lambda z: 1 + z.square()).weights(logits)
    tensor([0.5000, 0.2000, 0.1000, 0.2000])

    For a function of a tensor the Lipschitz constant is given as inf, and `weight_bounds` takes its
    extremes on a grid of 4,097 points.

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

    def weights(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        """softmax(ln F(z))."""
        z, visible = prepare(logits, visible)
        if z.shape[-1] == 0:
            return logits.clone()
        loops = None if callable(self.function) else _LOOPS.get(self.function)
        weights = self._definition(z, visible) if loops is None else compose(self._definition, loops, z, visible)
        return weights.to(logits.dtype)

    def _definition(self, z: Tensor, visible: Tensor | None) -> Tensor:
        present = effective_mask(z, visible)
        return apply_map("softmax", self._log(torch.where(present, z, 0.0)), present)

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
        _checks.whole("length", length, least=1)
        return math.inf if callable(self.function) else 0.5


f_normalizer = function_of(FNormalizer)
