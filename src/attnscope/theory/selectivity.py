"""Theorem S: at a given Jacobian budget, how much weight any normalizer can put on its largest logit.

Not in the paper: it answers the paper's third open problem, a rule that is "length-adaptive, sparse, and
gradient-stable". Below, f maps L logits z to nonnegative weights with sum at most one, is permutation-equivariant,
and is K-Lipschitz in the Euclidean norm (K bounds the norm of its Jacobian).

| here | statement |
|---|---|
| `logits`, `length` | z, (..., keys); L |
| `lipschitz` | K |
| `logit_gap`, `difference` | the difference of two logits, and that of two weights, Dp |
| `logit_range` | R, the largest minus the smallest logit |
| `weight`, `gap` | w, of the largest logit, and how far it lies above the others |
| `alpha` | the parameter of entmax, above 1 and at most 2 |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


def sparsemax_top_weight(logits: Float[Tensor, "*batch keys"]) -> Float[Tensor, "*batch"]:
    """The largest weight of sparsemax, in closed form: min_m { 1/m + z_(1) - mean of the m largest z }.

    >>> sparsemax_top_weight(torch.tensor([1.0, 0.8, -2.0]))
    tensor(0.6000)

    Sparsemax is [z - tau]_+ with sum 1. For the m largest logits the weights sum to at most 1, hence
    m tau >= sum z_(j) - 1 and the top weight z_(1) - tau is at most the m-th expression; the size of the support
    attains it.
    """
    below = logits.amax(-1, keepdim=True) - logits.sort(-1, descending=True).values
    sizes = torch.arange(1, logits.shape[-1] + 1, dtype=logits.dtype, device=logits.device)
    return ((1 + below.cumsum(-1)) / sizes).amin(-1)


def top_weight_cap(logits: Float[Tensor, "*batch keys"], lipschitz: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """Theorem S: the top weight of f is at most min_m { 1/m + K (z_(1) - mean of the m largest z) }.

    >>> top_weight_cap(torch.tensor([1.0, 0.8, -2.0]), lipschitz=torch.tensor(0.5))
    tensor(0.5500)

    That is the top weight of sparsemax(K z): at every z and every budget K sparsemax is the most selective rule.

    Proof: sum f_1 - f_j <= K (z_1 - z_j), which is `weight_difference_cap`, over the m largest logits and use that
    their weights sum to at most one.
    """
    return sparsemax_top_weight(logits * lipschitz.unsqueeze(-1))


def weight_difference_cap(
    logit_gap: Float[Tensor, "*batch"], lipschitz: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    """Theorem S, for two tokens: |f_i - f_j| <= K |z_i - z_j|.

    >>> weight_difference_cap(torch.tensor(0.5), lipschitz=torch.tensor(0.5))
    tensor(0.2500)

    Proof: let z' be z with i and j exchanged. Then |z - z'| = sqrt 2 |z_i - z_j|, and since f is equivariant
    |f(z) - f(z')| = sqrt 2 |f_i - f_j|.
    """
    return lipschitz * logit_gap.abs()


def lipschitz_for_range(
    weight: Float[Tensor, "*batch"], length: Float[Tensor, "*batch"], logit_range: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    """Impossibility 1: top weight w on L equispaced logits of range R needs K >= w^2 (L-1) / (2 R), if L >= 2/w.

    >>> lipschitz_for_range(torch.tensor(0.5), length=torch.tensor(1025.0), logit_range=torch.tensor(10.0))
    tensor(12.8000)

    So no equivariant normalizer has both a Jacobian bounded in L and weights that never vanish on bounded rows, unless
    a gap is assumed. Proof: the m largest lie on average R (m-1) / (2 (L-1)) below the first;
    take m = ceil(2/w) in Theorem S, where 1/m <= w/2 and m - 1 < 2/w.
    """
    return weight.square() * (length - 1) / (2 * logit_range)


def lipschitz_for_difference(
    difference: Float[Tensor, "*batch"], logit_gap: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    """Impossibility 2: a weight difference Dp between two tokens at a logit gap gamma needs K >= Dp / gamma.

    >>> lipschitz_for_difference(torch.tensor(0.5), logit_gap=torch.tensor(2.0))
    tensor(0.2500)

    A bounded Jacobian and the resolution of arbitrarily small gaps exclude each other; a cap K is a resolution
    gamma_min = Dp / K. It is `weight_difference_cap` solved for K.
    """
    return difference / logit_gap


def sparsemax_budget(
    weight: Float[Tensor, "*batch"], length: Float[Tensor, "*batch"], gap: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    """The K at which sparsemax(K z) gives weight w to one logit `gap` above L - 1 tied ones: (wL - 1) / ((L-1) gap).

    >>> sparsemax_budget(torch.tensor(0.5), length=torch.tensor(1025.0), gap=torch.tensor(2.0))
    tensor(0.2498)

    Tends to w / gap: it does not grow with length, and by Theorem S no other rule needs a smaller K.
    """
    return (weight * length - 1) / ((length - 1) * gap)


def entmax_budget(
    weight: Float[Tensor, "*batch"], gap: Float[Tensor, "*batch"], alpha: float
) -> Float[Tensor, "*batch"]:
    """A K that suffices for alpha-entmax(K z), 1 < alpha <= 2, at every length: w^(alpha-1) / ((alpha-1) gap).

    >>> entmax_budget(torch.tensor(0.5), gap=torch.tensor(2.0), alpha=1.5)
    tensor(0.7071)

    alpha-entmax is 1-Lipschitz there and its top weight is at least ((alpha-1) K gap)^(1/(alpha-1)).
    """
    return weight ** (alpha - 1) / ((alpha - 1) * gap)


def softmax_budget(
    weight: Float[Tensor, "*batch"], length: Float[Tensor, "*batch"], gap: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    """The K = 1/(2T) at which softmax(z/T) gives weight w to the same logit: (ln(L-1) + ln(w/(1-w))) / (2 gap).

    >>> softmax_budget(torch.tensor(0.5), length=torch.tensor(1025.0), gap=torch.tensor(2.0))
    tensor(1.7329)

    Grows with ln L: the logarithm is the price of full support, not of length.
    """
    return (torch.log(length - 1) + torch.logit(weight)) / (2 * gap)
