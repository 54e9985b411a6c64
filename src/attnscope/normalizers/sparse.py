"""Normalizers with exact zeros: topk, sparsemax, entmax, and entmax with a scale that depends on n.

| name | weights | alpha | scale c |
|---|---|---|---|
| topk | softmax over the k largest | - | 1 |
| sparsemax | max(z - tau, 0) | 2 | 1 |
| entmax15 | max(z/2 - tau, 0)^2 | 1.5 | 1 |
| entmax | max((alpha-1) z - tau, 0)^(1/(alpha-1)) | given | 1 |
| asentmax | entmax_alpha(c z) | given | delta + beta (ln n)^gamma |
| lipmax | entmax_alpha(c z) | given | smooth minimum of K and kappa ln n |

tau makes a row sum to one. For 1 < alpha <= 2 entmax is 1-Lipschitz, so
that a scale c bounds the Jacobian norm of all but topk, which jumps where ranks k and k+1 tie.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attnscope.normalizers import _checks
from attnscope.normalizers._base import Facts, MappedNormalizer, RowMap, function_of, register
from attnscope.normalizers._rows import column

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
        _checks.whole("k", self.k, least=1)

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


def _check_alpha(alpha: Tensor | float) -> None:
    """Raise `InputError` for alpha above 2, where the Jacobian is unbounded, or below 1."""
    _checks.number("alpha", alpha, low=1.0, high=2.0)


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
        _check_alpha(self.alpha)

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
        _check_alpha(self.alpha)
        for name in ("beta", "gamma", "delta"):
            _checks.number(name, getattr(self, name))

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


def capped_scale(n: Tensor, kappa: Tensor | float, cap: Tensor | float) -> Tensor:
    """theta_n: the smooth minimum of K and kappa ln n."""
    return smooth_minimum(column(kappa, n) * n.log(), column(cap, n))


@register
@dataclass(frozen=True, eq=False)
class Lipmax(MappedNormalizer):
    """Capped length-adaptive entmax, entmax_alpha(theta_n z), theta_n <= K.

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
        _checks.number("alpha", self.alpha, low=1.5, high=2.0)
        _checks.number("kappa", self.kappa, above=0.0)
        _checks.number("cap", self.cap, above=0.0)

    def row_map(self, n: Tensor) -> RowMap:
        """Entmax at scale theta_n."""
        return entmax_map(self.alpha, n, capped_scale(n, self.kappa, self.cap))


lipmax = function_of(Lipmax)
