"""Lemma 2, Corollary 3 and the example of section 2.3: the Jacobian of a normalizer, its norm, and finite steps.

For softmax J = Sigma / T with Sigma = diag(alpha) - alpha alpha^T; its spectral norm is the largest eigenvalue of
Sigma over the temperature. For a separable normalizer alpha_i = F(l_i) / S, S = sum_j F(l_j), it is
J = Sigma diag(g) with g_j = (ln F)'(l_j).

| here | paper |
|---|---|
| `weights` | alpha_i, (..., keys), nonnegative |
| `values`, `slopes` | F(l_i), positive, and F'(l_i) |
| `log_slopes` | g_i = F'(l_i) / F(l_i); 1/T for softmax |
| `temperature` | T; the functions without it have T = 1, for another one divide by T |
| `step` | epsilon, the length of a step in the logits |
| `logit_range`, `length` | R, the largest minus the smallest logit; L |
| `height` | a, of the two competing logits of section 2.3 |

The paper writes |.|_2 for the largest entry ("|F|_2 = max_i |F|"), so each printed bound has two readings, the
largest entry of J or its spectral norm.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from attnscope._secular import largest_and_rest, largest_eigenvalue
from attnscope.theory.configuration import Interval, leave_one_out

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

PRINTED_CAP = math.sqrt(2)


def jacobian_norm(weights: Float[Tensor, "*batch keys"]) -> Float[Tensor, "*batch"]:
    """|J|_2 at T = 1, exact: the largest eigenvalue of Sigma.

    >>> weights = torch.tensor([0.6, 0.3, 0.1])
    >>> jacobian_norm(weights)
    tensor(0.4075)

    Sigma is a diagonal minus a rank-one matrix, so it is the root lam of sum_i alpha_i / (alpha_i - lam) = 0
    between the two largest weights.
    """
    return largest_eigenvalue(weights)


def jacobian_bound(weights: Float[Tensor, "*batch keys"]) -> Float[Tensor, "*batch"]:
    """h(alpha_max) with h(u) = u for u <= 1/2 and 2 u (1 - u) above: the exact supremum given alpha_max.

    >>> weights = torch.tensor([0.6, 0.3, 0.1])
    >>> jacobian_bound(weights), jacobian_norm(weights)
    (tensor(0.4800), tensor(0.4075))

    Corrects Corollary 3, printed as min{1/(4T), sqrt 2}: the spectral norm reaches 1/(2T) at a tie of two.
    """
    first, _, others, left_over = largest_and_rest(weights)
    rest = others.sum(-1, keepdim=True) + left_over
    return torch.where(first <= 0.5, first, 2 * first * rest).squeeze(-1)


def jacobian_lower(weights: Float[Tensor, "*batch keys"]) -> Float[Tensor, "*batch"]:
    """max{ alpha_(2), alpha_(1)(1 - alpha_(1)) } <= |Sigma|_2: interlacing, and the largest diagonal entry.

    >>> weights = torch.tensor([0.6, 0.3, 0.1])
    >>> jacobian_lower(weights), jacobian_norm(weights)
    (tensor(0.3000), tensor(0.4075))
    """
    first, second, others, left_over = largest_and_rest(weights)
    return torch.maximum(second, first * (others.sum(-1, keepdim=True) + left_over)).squeeze(-1)


def jacobian(
    values: Float[Tensor, "*batch keys"], slopes: Float[Tensor, "*batch keys"]
) -> Float[Tensor, "*batch keys keys"]:
    """d alpha_i / d l_j = (F'_j / S)(delta_ij - alpha_i), the full matrix, rows i and columns j.

    >>> exponentials = torch.tensor([2.0, 1.0]).exp()
    >>> jacobian(exponentials, exponentials)
    tensor([[ 0.1966, -0.1966],
            [-0.1966,  0.1966]])
    """
    total = values.sum(-1, keepdim=True)
    weights = values / total
    identity = torch.eye(values.shape[-1], dtype=values.dtype, device=values.device)
    return (identity - weights.unsqueeze(-1)) * (slopes / total).unsqueeze(-2)


def lemma_2_printed(values: Float[Tensor, "*batch keys"], slopes: Float[Tensor, "*batch keys"]) -> Tensor:
    """Lemma 2, first term as printed: max|F'| [ 1 / (L min F) + max F / (L^2 min F^2) ].

    >>> exponentials = torch.tensor([2.0, 1.0]).exp()
    >>> lemma_2_printed(exponentials, exponentials)
    tensor(3.2064)

    True for the largest entry: |delta_ij - alpha_i| <= 1 and S >= L min F. For the spectral norm true if F' is
    proportional to F, and false in general: F(l) = l with values (L/2, 1, ..., 1) exceeds it like 0.148 sqrt L. The
    printed minimum with `PRINTED_CAP` is false in both: two tied logits with T = 0.1 have entry 2.5 and norm 5.
    """
    length = values.shape[-1]
    least, most = values.amin(-1), values.amax(-1)
    return slopes.abs().amax(-1) * (1 / (length * least) + most / (length * least).square())


def separable_bound(weights: Float[Tensor, "*batch keys"], log_slopes: Float[Tensor, "*batch keys"]) -> Tensor:
    """J1, Lemma 2 corrected: |J|_2 <= max|g| h(alpha_max) <= max|g| / 2, with h of `jacobian_bound`.

    >>> weights = torch.tensor([0.6, 0.3, 0.1])
    >>> separable_bound(weights, torch.ones(3))
    tensor(0.4800)

    J = Sigma diag(g), and |Sigma|_2 <= h(alpha_max). A vanishing minimum of F alone does not make J large: the logistic
    sigmoid has F -> 0 and |g| <= 1.
    """
    return log_slopes.abs().amax(-1) * jacobian_bound(weights)


def separable_bound_projector(values: Float[Tensor, "*batch keys"], slopes: Float[Tensor, "*batch keys"]) -> Tensor:
    """J2: |J|_2 <= sqrt(L) |alpha|_2 max|F'| / S; the oblique projectors I - alpha 1^T, alpha 1^T have equal norms.

    >>> exponentials = torch.tensor([2.0, 1.0]).exp()
    >>> separable_bound_projector(exponentials, exponentials)
    tensor(0.8053)
    """
    total = values.sum(-1)
    norm = (values / total.unsqueeze(-1)).norm(dim=-1)
    return math.sqrt(values.shape[-1]) * norm * slopes.abs().amax(-1) / total


def separable_bound_frobenius(
    weights: Float[Tensor, "*batch keys"], log_slopes: Float[Tensor, "*batch keys"]
) -> Tensor:
    """J3: |J|_2 <= max|g| sqrt(q (1 - q)), q = sum alpha^2.

    >>> weights = torch.tensor([0.6, 0.3, 0.1])
    >>> separable_bound_frobenius(weights, torch.ones(3))
    tensor(0.4984)

    |Sigma|_F^2 = q - 2 sum alpha^3 + q^2 <= q - q^2, since sum alpha^3 >= q^2 (Jensen).
    """
    _, _, _, left_over = largest_and_rest(weights)
    rest = leave_one_out(weights) + left_over
    # 1 - q = sum alpha_i (1 - alpha_i) + left_over, without cancellation.
    complement = (weights * rest).sum(-1) + left_over.squeeze(-1)
    return log_slopes.abs().amax(-1) * (weights.square().sum(-1) * complement).sqrt()


def separable_bound_entry(log_slopes: Float[Tensor, "*batch keys"]) -> Tensor:
    """J4: every entry of J is at most max|g| / 4: alpha_i (1 - alpha_i) and alpha_i alpha_j are at most 1/4.

    >>> separable_bound_entry(torch.ones(3))
    tensor(0.2500)
    """
    return log_slopes.abs().amax(-1) / 4


def softmax_bound_printed(temperature: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """Corollary 3 as printed: |J| <= min{ 1/(4T), sqrt 2 }.

    >>> softmax_bound_printed(torch.tensor(0.5))
    tensor(0.5000)

    1/(4T) bounds the largest entry, not the spectral norm; sqrt 2 bounds neither. Nor does it follow from Lemma 2,
    which gives 3/(4T) for two tied logits.
    """
    return (1 / (4 * temperature)).clamp_max(PRINTED_CAP)


def softmax_bound(temperature: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """Corollary 3 corrected: |J|_2 <= 1/(2T), attained by two tied logits and approached at every length.

    >>> softmax_bound(torch.tensor(0.5))
    tensor(1.)

    h(alpha_max) / T is at most this; see `jacobian_bound`.
    """
    return 1 / (2 * temperature)


def softmax_bound_of_range(
    logit_range: Float[Tensor, "*batch"], temperature: Float[Tensor, "*batch"], length: Float[Tensor, "*batch"]
) -> Interval:
    """Bounds on the supremum of |J|_2 over all rows of L logits within a range R.

    >>> softmax_bound_of_range(torch.tensor(4.0), torch.tensor(1.0), torch.tensor(100.0))
    Interval(lower=tensor(0.2635), upper=tensor(0.3555))

    1 / (2 + (L-2) e^{-R/T}) <= T sup|J|_2 <= min{ 1/2, 1 / (1 + (L-1) e^{-R/T}) }: two tied logits at the top, the
    others R below, have |J|_2 = alpha_max; and |Sigma|_2 <= alpha_max, which the sharp Lemma 1 bounds.
    """
    low = torch.exp(-logit_range / temperature)
    upper = (1 / (1 + (length - 1) * low)).clamp_max(0.5)
    return Interval(1 / (2 + (length - 2) * low) / temperature, upper / temperature)


def finite_difference_bound(temperature: Float[Tensor, "*batch"], step: Float[Tensor, "*batch"]) -> Tensor:
    """The exact supremum of g(T, eps) = |alpha(l + eps D) - alpha(l)| / eps over l, L >= 2 and unit D.

    >>> finite_difference_bound(torch.tensor(1.0), torch.tensor(0.1))
    tensor(0.4998)

    (sqrt 2 / eps) tanh(eps / (2 sqrt 2 T)) <= min{ 1/(2T), sqrt 2 / eps }. Printed (Fig. 4): min{ 1/(4T), sqrt 2 }.

    Proof: alpha' is alpha times e^w, normalized, and w has oscillation at most sqrt 2 eps / T. The log odds of a set
    move by at most that, so the total variation is at most tanh(osc / 4), and a zero-sum vector has
    |v|_2 <= |v|_1 / sqrt 2. Equality: L = 2, D = (1, -1)/sqrt 2, l = -eps D / 2.
    """
    root = math.sqrt(2)
    return root / step * torch.tanh(step / (2 * root * temperature))


def random_direction_bounds(weights: Float[Tensor, "*batch keys"]) -> Interval:
    """The mean of |J v| at T = 1 over v uniform on the unit sphere: c_L |J|_F <= mean <= |J|_F / sqrt L.

    >>> weights = torch.tensor([0.6, 0.3, 0.1])
    >>> random_direction_bounds(weights)
    Interval(lower=tensor(0.2142), upper=tensor(0.2474))

    c_L = Gamma(L/2) / (sqrt(pi) Gamma((L+1)/2)), between sqrt(2/(pi L)) and 1/sqrt L. Algorithm 5 averages over random
    directions and takes the result for |J|_2; it is smaller by about sqrt L unless many logits compete.

    Proof: E|J v|^2 = |J|_F^2 / L, and Jensen gives the right side. With the singular values s_i, E|J v| is the mean of
    sqrt(sum s_i^2 v_i^2), concave in the s_i^2; on the simplex sum s_i^2 = |J|_F^2 it is least at a corner, where it is
    |J|_F E|v_1| = c_L |J|_F: attained by two live logits.
    """
    length = weights.shape[-1]
    rest = leave_one_out(weights)  # 1 - alpha_i without cancellation
    squares = weights.square()
    frobenius = (squares * rest.square() + squares * leave_one_out(squares)).sum(-1).sqrt()
    least = math.exp(math.lgamma(length / 2) - math.lgamma((length + 1) / 2)) / math.sqrt(math.pi)
    return Interval(least * frobenius, frobenius / math.sqrt(length))


# The example of section 2.3: two competing logits, and how far a small step moves their weights.


def two_logit_rows(
    height: Float[Tensor, "*batch"], step: Float[Tensor, "*batch"], length: int
) -> tuple[Float[Tensor, "*batch keys"], Float[Tensor, "*batch keys"]]:
    """The example of section 2.3: (0, ..., 0, a, a + eps) and (0, ..., 0, a + 2 eps, a), sqrt 5 eps apart.

    >>> two_logit_rows(torch.tensor(5.0), torch.tensor(0.1), length=4)
    (tensor([0.0000, 0.0000, 5.0000, 5.1000]), tensor([0.0000, 0.0000, 5.2000, 5.0000]))
    """
    rest = torch.zeros(*height.shape, length - 2, dtype=height.dtype, device=height.device)
    first = torch.cat([rest, torch.stack([height, height + step], -1)], -1)
    second = torch.cat([rest, torch.stack([height + 2 * step, height], -1)], -1)
    return first, second


def two_logit_response_printed(step: Float[Tensor, "*batch"], temperature: Float[Tensor, "*batch"]) -> Tensor:
    """Section 2.3 as printed: |alpha1 - alpha2| ~ sqrt 2 eps / T.

    >>> two_logit_response_printed(torch.tensor(0.1), torch.tensor(1.0))
    tensor(0.1414)

    Impossible as a slope: the Lipschitz constant 1/(2T) allows at most (sqrt 5 / 2) eps / T = 1.118 eps / T. The
    number sqrt 2 is the saturation value as T -> 0, the diameter of the simplex.
    """
    return PRINTED_CAP * step / temperature


def two_logit_response(step: Float[Tensor, "*batch"], temperature: Float[Tensor, "*batch"]) -> Tensor:
    """Section 2.3, exactly, for a >> T ln L: sqrt 2 [sigma(eps/T) - sigma(-2 eps/T)].

    >>> two_logit_response(torch.tensor(0.1), torch.tensor(1.0))
    tensor(0.1058)

    To first order (3 sqrt 2 / 4) eps / T = 1.0607 eps / T, which by itself exceeds what Corollary 3 allows,
    (sqrt 5 / 4) eps / T. Proof: with two live logits J = (1/4T) [[1, -1], [-1, 1]] and the step is (-2 eps, eps).
    """
    reach = step / temperature
    return math.sqrt(2) * (torch.sigmoid(reach) - torch.sigmoid(-2 * reach))
