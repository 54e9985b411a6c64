"""Normalizers with exact zeros: topk, sparsemax, entmax, entmax with a scale that depends on n, and lipmix.

| name | weights | alpha | scale c |
|---|---|---|---|
| topk | softmax over the k largest | - | 1 |
| sparsemax | max(z - tau, 0) | 2 | 1 |
| entmax15 | max(z/2 - tau, 0)^2 | 1.5 | 1 |
| entmax | max((alpha-1) z - tau, 0)^(1/(alpha-1)) | given | 1 |
| asentmax | entmax_alpha(c z) | given | delta + beta (ln n)^gamma |
| lipmax | entmax_alpha(c z) | given | smooth minimum of K and kappa ln n |

tau makes a row sum to one. For 1 < alpha <= 2 entmax is 1-Lipschitz, so that a scale c bounds the Jacobian norm of all
but topk, which jumps where ranks k and k+1 tie. lipmix mixes lipmax, with a power of n as its scale, and equal weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attnscope.normalizers._arguments import (
    check_number,
    check_shape,
    check_whole,
    column,
    effective_mask,
    lengths,
    prepare,
    usable,
)
from attnscope.normalizers._base import Facts, MappedNormalizer, Normalizer, RowMap, check_range, function_of, register

_SPARSE = Facts(sparse=True)
_SPARSE_LENGTH_AWARE = Facts(sparse=True, length_aware=True)


@register
@dataclass(frozen=True, eq=False)
class TopK(MappedNormalizer):
    """Softmax over exactly k logits, the largest; ties go to the earlier position.

    >>> logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    >>> TopK(k=2).weights(logits)
    tensor([0.7311, 0.2689, 0.0000, 0.0000])

    Rows of fewer than k keys keep them all. The choice among equals depends on position, so that
    the map is not permutation-equivariant at a tie of ranks k and k + 1, and jumps there by up to
    sqrt(2) / k: it has no Lipschitz constant, and `jacobian_norm` is exact away from ties.

    Parameters
    ----------
    k
        How many keys keep weight.
    """

    k: int = 64

    name: ClassVar[str] = "topk"
    facts: ClassVar[Facts] = Facts(sparse=True, permutation_equivariant=False)

    def __post_init__(self) -> None:
        check_whole("k", self.k, least=1)

    def row_map(self, n: Tensor) -> RowMap:
        """Softmax over the k largest."""
        return RowMap("topk", k=self.k)

    def weight_bounds(self, length: int, low: float, high: float) -> tuple[float, float]:
        """Bounds of softmax over min(length, k) keys; the lower one is 0 where a key can be left out."""
        lower, upper = super().weight_bounds(min(length, self.k), low, high)
        return (lower if length <= self.k else 0.0), upper


topk = function_of(TopK)


@register
@dataclass(frozen=True, eq=False)
class Sparsemax(MappedNormalizer):
    """The Euclidean projection of z on the simplex, max(z - tau, 0) (Martins and Astudillo 2016).

    >>> logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    >>> Sparsemax().weights(logits)
    tensor([1., 0., 0., 0.])

    The largest weight is min over m of 1/m + z_(1) - mean of the m largest. At a given Jacobian
    budget no permutation-equivariant normalizer has a larger one (Theorem S, docs/theory.md).
    """

    name: ClassVar[str] = "sparsemax"
    facts: ClassVar[Facts] = _SPARSE

    def row_map(self, n: Tensor) -> RowMap:
        """Sparsemax."""
        return RowMap("sparsemax")


sparsemax = function_of(Sparsemax)


@register
@dataclass(frozen=True, eq=False)
class Entmax15(MappedNormalizer):
    """1.5-entmax, max(z/2 - tau, 0)^2 (Peters, Niculae and Martins 2019).

    >>> logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    >>> Entmax15().weights(logits)
    tensor([0.8307, 0.1693, 0.0000, 0.0000])
    """

    name: ClassVar[str] = "entmax15"
    facts: ClassVar[Facts] = _SPARSE

    def row_map(self, n: Tensor) -> RowMap:
        """1.5-entmax, by its special-case implementation."""
        return RowMap("entmax15")


entmax15 = function_of(Entmax15)


# For alpha this close to 1 entmax is computed as softmax: they differ by less than alpha - 1.
_SOFTMAX_WITHIN = 1e-3


def entmax_map(alpha: Tensor | float, n: Tensor, scale: Tensor | None) -> RowMap:
    """The map of alpha-entmax at a scale, specialized where alpha is 1, 1.5 or 2."""
    if isinstance(alpha, Tensor):
        orders = column(alpha, n)
        # Changes the value but not the gradient: a learned alpha that reaches 1 must be able to leave it.
        ones = torch.where(orders.detach() - 1 <= _SOFTMAX_WITHIN, 1 - orders.detach(), 0.0)
        return RowMap("entmax", scale, alpha=orders + ones)
    if alpha - 1 <= _SOFTMAX_WITHIN:
        return RowMap("softmax", scale)
    if alpha in (1.5, 2):
        return RowMap("entmax15" if alpha == 1.5 else "sparsemax", scale)
    return RowMap("entmax", scale, alpha=column(alpha, n))


@register
@dataclass(frozen=True, eq=False)
class Entmax(MappedNormalizer):
    """alpha-entmax, max((alpha-1) z - tau, 0)^(1/(alpha-1)), 1 <= alpha <= 2 (Peters et al. 2019).

    >>> logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    >>> Entmax(alpha=1.3).weights(logits)
    tensor([7.6880e-01, 2.0780e-01, 2.3398e-02, 4.0735e-06])

    Gradients flow through a tensor alpha (Correia et al. 2019). Within 1e-3 of 1 it is softmax, with the
    gradient in alpha of the limit.

    Parameters
    ----------
    alpha
        1 (softmax) to 2 (sparsemax), a number or a tensor over rows.
    """

    alpha: Tensor | float = 1.5

    name: ClassVar[str] = "entmax"
    facts: ClassVar[Facts] = _SPARSE

    def __post_init__(self) -> None:
        check_number("alpha", self.alpha, low=1.0, high=2.0)  # above 2 the Jacobian is unbounded

    def row_map(self, n: Tensor) -> RowMap:
        """Entmax at alpha."""
        return entmax_map(self.alpha, n, None)


entmax = function_of(Entmax)


@register
@dataclass(frozen=True, eq=False)
class ASEntmax(MappedNormalizer):
    """Adaptive-scale entmax, entmax_alpha((delta + beta (ln n)^gamma) z).

    >>> logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    >>> ASEntmax(alpha=1.5, beta=0.5).weights(logits)
    tensor([0.9795, 0.0205, 0.0000, 0.0000])

    Vasylenko et al. 2025 (arXiv 2506.16640). `LearnedASEntmax` computes beta and gamma from the
    layer's input. A row of one key has weight 1 at any scale; its ln n = 0, whose negative
    powers are infinite, is replaced by 1.

    Parameters
    ----------
    alpha
        1 (softmax) to 2 (sparsemax), a number or a tensor over rows.
    beta
        Scale of the power of the logarithm, a number or a tensor over rows.
    gamma
        Power of the logarithm, a number or a tensor over rows.
    delta
        Constant part of the scale.
    """

    alpha: Tensor | float = 1.5
    beta: Tensor | float = 1.0
    gamma: Tensor | float = 1.0
    delta: Tensor | float = 1.0

    name: ClassVar[str] = "asentmax"
    facts: ClassVar[Facts] = _SPARSE_LENGTH_AWARE

    def __post_init__(self) -> None:
        check_number("alpha", self.alpha, low=1.0, high=2.0)  # above 2 the Jacobian is unbounded
        for name in ("beta", "gamma", "delta"):
            check_number(name, getattr(self, name))

    def row_map(self, n: Tensor) -> RowMap:
        """Entmax at scale delta + beta (ln n)^gamma."""
        log_n = torch.where(n > 1, n.log(), 1.0)
        scale = column(self.delta, n) + column(self.beta, n) * log_n ** column(self.gamma, n)
        return entmax_map(self.alpha, n, scale)


asentmax = function_of(ASEntmax)


# Order of the smooth minimum: the larger, the closer to the hard minimum.
_SMOOTH_MIN_ORDER = 4


def smooth_minimum(scale: Tensor, cap: Tensor) -> Tensor:
    """K x / (K^4 + x^4)^(1/4) for x >= 0: below both K and x, and increasing in x.

    A hard minimum would leave the parameters of x without a gradient as soon as the cap is reached.
    """
    return cap * scale / (cap**_SMOOTH_MIN_ORDER + scale**_SMOOTH_MIN_ORDER) ** (1 / _SMOOTH_MIN_ORDER)


@register
@dataclass(frozen=True, eq=False)
class Lipmax(MappedNormalizer):
    """Capped length-adaptive entmax, entmax_alpha(theta_n z), theta_n the smooth minimum of K and kappa ln n.

    >>> logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    >>> Lipmax().weights(logits)
    tensor([0.6732, 0.3268, 0.0000, 0.0000])

    >>> Lipmax().lipschitz(1_000_000)
    1.9474287192543316

    The Jacobian norm is at most K for every row and every
    length; a top gap g keeps the weight min(1, (alpha-1) theta_n g)^(1/(alpha-1)) whatever the
    length; alpha = 2 has the largest top weight that K allows (Theorem S, docs/theory.md).

    K limits how finely logits can be distinguished, so it is meaningful only when their size is
    fixed: normalize queries and keys, as `LearnedLipmax.logits` does.

    Parameters
    ----------
    alpha
        1 (softmax) to 2 (sparsemax), a number or a tensor over rows.
    kappa
        Scale of the logarithm below the cap.
    cap
        K, the largest scale: a bound on the Jacobian norm.
    """

    alpha: Tensor | float = 2.0
    kappa: Tensor | float = 0.25
    cap: Tensor | float = 2.0

    name: ClassVar[str] = "lipmax"
    facts: ClassVar[Facts] = _SPARSE_LENGTH_AWARE

    def __post_init__(self) -> None:
        check_number("alpha", self.alpha, low=1.5, high=2.0)
        check_number("kappa", self.kappa, above=0.0)
        check_number("cap", self.cap, above=0.0)

    def row_map(self, n: Tensor) -> RowMap:
        """Entmax at scale theta_n."""
        return entmax_map(self.alpha, n, smooth_minimum(column(self.kappa, n) * n.log(), column(self.cap, n)))


lipmax = function_of(Lipmax)


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

    theta_n is the smooth minimum of K and kappa n^gamma. Sparse rules cannot average over a long row: sparsemax gives
    weight to all n keys only if no scaled logit lies more than about 1/n below the mean. The uniform part can, at no
    cost in stability, because it does not depend on the logits:

    - the Jacobian is (1 - g) times that of the sparse part, so that its norm is at most (1 - g) theta_n <= (1 - g) K
      for every row and length;
    - a top gap d keeps the weight (1 - g) min(1, (alpha-1) theta_n d)^(1/(alpha-1)) + g / n, whatever the length;
    - the output of a head is (1 - g) times a sum over the support of the sparse part plus g times the mean of all
      values, which does not depend on the query: the sparse part decides how much work a row is. The weights
      themselves have no zeros unless g = 0.

    By Theorem S (docs/theory.md) a rule with Jacobian norm at most K' = (1 - g) K gives the top logit at most
    max sparsemax(K' z). With alpha = 2 the sparse part alone attains (1 - g) max sparsemax(K z).

    All parameters are numbers or tensors
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
        check_number("alpha", self.alpha, low=1.5, high=2.0)
        check_number("kappa", self.kappa, above=0.0)
        check_number("gamma", self.gamma, low=0.0)
        check_number("cap", self.cap, above=0.0)
        check_number("gate", self.gate, low=0.0, high=1.0)
        if not isinstance(self.gate, Tensor) and self.gate == 0:  # the sparse part alone
            object.__setattr__(self, "facts", _SparsePart.facts)

    @property
    def sparse_part(self) -> MappedNormalizer:
        """entmax_alpha(theta_n z)."""
        return _SparsePart(self.alpha, self.kappa, self.gamma, self.cap)

    def gate_of(self, z: Tensor) -> Tensor:
        """g for each row of z, (..., 1)."""
        if isinstance(self.gate, Tensor):
            check_shape("gate", self.gate, z.shape[:-1])
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
