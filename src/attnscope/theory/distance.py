"""Theorem 1 and its corrections: the distance between the context and the rest.

The quantity is eq. (7), d~ = sum over i not in I_N of |alpha_i x_i - s|. Below, y_i = alpha_i x_i,
n = L - 1 and p = N / n.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from attnscope.theory.configuration import Configuration


def distance(c: Configuration) -> Float[Tensor, "*batch rows sets"]:
    """Eq. (7): d~, the summed distance of the tokens left out to the context."""
    return torch.where(c.others, c.context_distances, 0).sum(-1)


def fixed_set_upper_printed(
    c: Configuration, farthest: Float[Tensor, "*batch rows sets"]
) -> Float[Tensor, "*batch rows sets"]:
    """Theorem 1(1) as printed.

    d~ <= (1 - abar) d1 + max_{j in I} |x_j| [abar (L - N) - (1 - abar)], where `farthest` is d1, the
    largest distance |x_i - x_j| between a selected and an unselected token.

    True for the top-N set, where abar >= alpha_i for every i left out, and weights that sum to one.
    For an arbitrary fixed set it fails: alpha = (0, 1), x = (1, 1), I = {1} has d~ = 1 and bound -1.
    """
    largest = torch.where(c.selected, c.squared_norms.unsqueeze(-2), 0).amax(-1).sqrt()
    rest = 1 - c.top_mass
    return rest * farthest + largest * (c.top_mass * (c.length - c.count) - rest)


def fixed_set_upper(c: Configuration) -> Float[Tensor, "*batch rows sets"]:
    """B3, the corrected upper bound: d~ <= sqrt((L - N) D2).

    D2 = sum over i not in I of |y_i - s|^2. Cauchy-Schwarz; holds for any set and any weights.
    """
    squares = torch.where(c.others, c.context_distances.square(), 0).sum(-1)
    return ((c.length - c.count) * squares).sqrt()


def fixed_set_lower(c: Configuration) -> Float[Tensor, "*batch rows sets"]:
    """B4, the lower bound: d~ >= |(L - N + 1) s - xbar|.

    The sum of the vectors y_i - s over i not in I is (xbar - s) - (L - N) s; a sum of norms is at least
    the norm of the sum. Together with B3 it pins d~ down: B3^2 - B4^2 <= (L - N) sum of |y_i|^2.
    """
    remaining = (c.length - c.count + 1).unsqueeze(-1)
    return (remaining * c.context - c.mean.unsqueeze(-2)).norm(dim=-1)


def random_set_main_printed(c: Configuration) -> Float[Tensor, "*batch rows sets"]:
    """Theorem 1(2), main term as printed: (1 - N/L) sum_i |(alpha_i + p) x_i - xbar|.

    A misprint: N/(L-1) multiplies x_i where it should multiply xbar - y_i. For x_i = 1 and uniform
    weights with L = 4, N = 3 it gives 0.25, and the true expectation is 0.5.
    """
    factors = c.weights.unsqueeze(-2) + _share(c).unsqueeze(-1)
    norms = c.difference_norms(factors, c.mean.unsqueeze(-2), c.mean_products.unsqueeze(-2))
    return _left_out(c) * torch.where(c.visible.unsqueeze(-2), norms, 0).sum(-1)


def random_set_lower(c: Configuration) -> Float[Tensor, "*batch rows sets"]:
    """E1, left side, the corrected main term: (1 - N/L) sum_i |mu_i| <= E.

    Given that i is left out, the set is a uniform N-subset of the other n tokens, so
    mu_i = E[y_i - s] = (1 + p) y_i - p xbar, and Jensen's inequality gives |mu_i| <= E|y_i - s|.
    """
    return _left_out(c) * _mean_norms(c).sum(-1)


def random_set_upper(c: Configuration) -> Float[Tensor, "*batch rows sets"]:
    """E1, right side: E <= (1 - N/L) sum_i min{ sqrt(|mu_i|^2 + V_i), |y_i| + p sum_{j != i} |y_j| }.

    V_i = N (n - N) / (n (n - 1)) [ sum_{j != i} |y_j|^2 - |xbar - y_i|^2 / n ] is the exact variance of s
    given that i is left out (simple random sampling). The first branch is E|Y| <= sqrt(E|Y|^2), the second
    the triangle inequality.
    """
    n = (c.length - 1).unsqueeze(-1)
    size = c.count.unsqueeze(-1)
    # Taken about the mean of all y: V_i does not change, and nothing cancels when they are alike.
    centre = c.mean / c.length
    products = c.mean_products / c.length
    squares = c.difference_norms(c.weights.unsqueeze(-2), centre.unsqueeze(-2), products.unsqueeze(-2)).square()
    squares = torch.where(c.visible.unsqueeze(-2), squares, 0)
    scatter = (leave_one_out(squares) - squares / n).clamp_min(0)
    variance = torch.where(n > 1, size * (n - size) / (n * (n - 1).clamp_min(1)), 0) * scatter
    by_moments = (_mean_norms(c).square() + variance).sqrt()
    norms = c.scaled_norms.unsqueeze(-2)
    by_triangle = norms + _share(c).unsqueeze(-1) * leave_one_out(norms)
    least = torch.minimum(by_moments, by_triangle)
    return _left_out(c) * torch.where(c.visible.unsqueeze(-2), least, 0).sum(-1)


def random_set_epsilon_printed(c: Configuration) -> Float[Tensor, "*batch rows sets"]:
    """Theorem 1(2), the printed bound on epsilon.

    (1/2)(1 - N/L) sum_i p sum_{j != i} |y_j|^2 / |y_i - p sum_{j != i} y_j|. The denominator is |mu_i|, which
    shows that the printed main term is a misprint of E1's left side; with that main term the bound is
    true. Infinite where some mu_i is zero; a term 0/0 counts as zero.
    """
    others = leave_one_out(c.scaled_norms.square().unsqueeze(-2))
    terms = torch.where(others > 0, others / _mean_norms(c), 0)
    total = torch.where(c.visible.unsqueeze(-2), terms, 0).sum(-1)
    return 0.5 * _left_out(c) * _share(c) * total


def leave_one_out(values: Float[Tensor, "*batch keys"]) -> Float[Tensor, "*batch keys"]:
    """Sum over the others, as prefix plus suffix: total minus self loses small terms beside a large one."""
    zero = torch.zeros_like(values[..., :1])
    before = torch.cat([zero, values.cumsum(-1)[..., :-1]], -1)
    after = torch.cat([values.flip(-1).cumsum(-1).flip(-1)[..., 1:], zero], -1)
    return before + after


def _share(c: Configuration) -> Float[Tensor, "*batch rows sets"]:
    """p = N / (L - 1)."""
    return c.count / (c.length - 1)


def _left_out(c: Configuration) -> Float[Tensor, "*batch rows sets"]:
    """1 - N/L, the probability that a token is left out."""
    return (c.length - c.count) / c.length


def _mean_norms(c: Configuration) -> Float[Tensor, "*batch rows sets keys"]:
    """|mu_i| = |(1 + p) y_i - p xbar|, zero for keys that are not visible."""
    share = _share(c).unsqueeze(-1)
    target = share * c.mean.unsqueeze(-2)
    products = share * c.mean_products.unsqueeze(-2)
    norms = c.difference_norms((1 + share) * c.weights.unsqueeze(-2), target, products)
    return torch.where(c.visible.unsqueeze(-2), norms, 0)
