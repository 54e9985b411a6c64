"""lipmix: a capped sparse part and a uniform part, with a gate between them.

    w = (1 - g) entmax_alpha(theta_n z) + g / n,    theta_n = smooth minimum of K and kappa n^gamma

Sparse rules cannot average over a long row: sparsemax gives weight to all n keys only if no scaled logit lies more
than about 1/n below the mean. The uniform part can, at no cost in stability, because it does not depend on the logits:

- the Jacobian is (1 - g) times that of the sparse part, so that its norm is at most (1 - g) theta_n <= (1 - g) K for
  every row and length;
- a top gap d keeps the weight (1 - g) min(1, (alpha-1) theta_n d)^(1/(alpha-1)) + g / n, whatever the length;
- the output of a head is (1 - g) times a sum over the support of the sparse part plus g times the mean of all values,
  which does not depend on the query: the sparse part decides how much work a row is. The weights themselves have no
  zeros unless g = 0.

By Theorem S (docs/theory.md) a rule with Jacobian norm at most K' = (1 - g) K gives the top logit at most
max sparsemax(K' z). With alpha = 2 the sparse part alone attains (1 - g) max sparsemax(K z).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attnscope.normalizers import _checks
from attnscope.normalizers._base import Facts, MappedNormalizer, Normalizer, RowMap, check_range, function_of, register
from attnscope.normalizers._rows import column, effective_mask, lengths, prepare, usable
from attnscope.normalizers.sparse import entmax_map, smooth_minimum


@dataclass(frozen=True, eq=False)
class _SparsePart(MappedNormalizer):
    """entmax_alpha(theta_n z)."""

    alpha: Tensor | float
    kappa: Tensor | float
    gamma: Tensor | float
    cap: Tensor | float

    name: ClassVar[str] = "lipmix"
    facts: ClassVar[Facts] = Facts(sparse=True, length_aware=True)

    def row_map(self, n: Tensor) -> RowMap:
        """Entmax at scale theta_n."""
        scale = column(self.kappa, n) * n ** column(self.gamma, n)
        return entmax_map(self.alpha, n, smooth_minimum(scale, column(self.cap, n)))


@register
@dataclass(frozen=True, eq=False)
class Lipmix(Normalizer):
    """(1 - g) entmax_alpha(theta_n z) + g / n, theta_n <= K: lipmax that can also average.

    >>> logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    >>> Lipmix(gate=0.2).weights(logits)
    tensor([0.6957, 0.2043, 0.0500, 0.0500])

    >>> Lipmix(gate=0.2).lipschitz(1_000_000)
    1.57526465708459

    The Jacobian norm is at most (1 - g) K for every row and length. All parameters are numbers or tensors
    over rows; `LearnedLipmix` learns kappa, gamma and the gate.

    Parameters
    ----------
    alpha
        1.5 to 2 (sparsemax).
    kappa
        Scale at length 1, below the cap.
    gamma
        Power of the length, 0 or more.
    cap
        K, the largest scale.
    gate
        g, the share of the uniform part, 0 to 1.
    """

    alpha: Tensor | float = 2.0
    kappa: Tensor | float = 0.5
    gamma: Tensor | float = 0.15
    cap: Tensor | float = 2.0
    gate: Tensor | float = 0.1

    name: ClassVar[str] = "lipmix"
    facts: ClassVar[Facts] = Facts(length_aware=True)

    def __post_init__(self) -> None:
        _checks.number("alpha", self.alpha, low=1.5, high=2.0)
        _checks.number("kappa", self.kappa, above=0.0)
        _checks.number("gamma", self.gamma, low=0.0)
        _checks.number("cap", self.cap, above=0.0)
        _checks.number("gate", self.gate, low=0.0, high=1.0)
        if not isinstance(self.gate, Tensor) and self.gate == 0:  # the sparse part alone
            object.__setattr__(self, "facts", _SparsePart.facts)

    @property
    def sparse_part(self) -> MappedNormalizer:
        """entmax_alpha(theta_n z)."""
        return _SparsePart(self.alpha, self.kappa, self.gamma, self.cap)

    def gate_of(self, z: Tensor) -> Tensor:
        """g for each row of z, (..., 1)."""
        if isinstance(self.gate, Tensor):
            _checks.shape("gate", self.gate, z.shape[:-1])
        return column(self.gate, z)

    def weights(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        """The mixture; a row with nothing visible gives zeros."""
        z, visible = prepare(logits, visible)
        if z.shape[-1] == 0:
            return logits.clone()
        gate, sparse = self.gate_of(z), self.sparse_part.weights(z, visible)
        if visible is None and usable(z) and bool((lengths(z, None) == z.shape[-1]).all()):  # one pass, not five
            learned = sparse.requires_grad or gate.requires_grad
            share = sparse * (1 - gate) if learned else sparse.mul_(1 - gate)  # in place, memory is mapped only once
            return share.add_(gate / z.shape[-1]).to(logits.dtype)
        present = effective_mask(z.detach(), visible).to(z.dtype)
        uniform = gate / present.sum(-1, keepdim=True).clamp(min=1) * present
        return (sparse * (1 - gate) + uniform).to(logits.dtype)

    def weight_bounds(self, length: int, low: float, high: float) -> tuple[float, float]:
        """Those of the sparse part times 1 - g, plus g / n, over all values of the parameters."""
        check_range(length, low, high)
        lower, upper = self.sparse_part.weight_bounds(length, low, high)
        gates = torch.as_tensor(self.gate, dtype=torch.float64).detach()
        ends = [float(gates.min()), float(gates.max())]
        return min((1 - g) * lower + g / length for g in ends), max((1 - g) * upper + g / length for g in ends)

    def jacobian_norm(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        """(1 - g) times that of the sparse part."""
        return self.sparse_part.jacobian_norm(logits, visible) * self._share(logits)

    def jacobian_bound(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        """(1 - g) times that of the sparse part."""
        return self.sparse_part.jacobian_bound(logits, visible) * self._share(logits)

    def _share(self, logits: Tensor) -> Tensor:
        return (1 - self.gate_of(logits)).squeeze(-1).detach()

    def lipschitz(self, length: int) -> float:
        """(1 - g) theta_n, for the smallest gate and the largest scale."""
        share = 1 - float(torch.as_tensor(self.gate, dtype=torch.float64).detach().min())
        return share * self.sparse_part.lipschitz(length)


lipmix = function_of(Lipmix)
