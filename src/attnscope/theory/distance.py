"""Theorem 1 and its corrections: the distance between the context and the rest.

The quantity is eq. (7), d~ = sum over i not in I_N of |alpha_i x_i - s|. Below, y_i = alpha_i x_i,
n = L - 1 and p = N / n.

| here | paper |
|---|---|
| `farthest` | d1, the largest distance |x_i - x_j| between a selected and an unselected token |
| `largest_share` | C2: no weight is above C2 / L |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from attnscope.theory.configuration import Configuration


def distance(c: Configuration) -> Float[Tensor, "*batch rows sets"]:
    """Eq. (7): d~, the summed distance of the tokens left out to the context.

    >>> c = Configuration.of(torch.tensor([[0.5, 0.3, 0.2]]), torch.eye(3), n=[1, 2])
    >>> distance(c)
    tensor([[1.1216, 0.6164]])
    """
    return torch.where(c.others, c.context_distances, 0).sum(-1)


def fixed_set_upper_printed(
    c: Configuration, farthest: Float[Tensor, "*batch rows sets"]
) -> Float[Tensor, "*batch rows sets"]:
    """Theorem 1(1) as printed.

    >>> c = Configuration.of(torch.tensor([[0.5, 0.3, 0.2]]), torch.eye(3), n=[1, 2])
    >>> fixed_set_upper_printed(c, farthest(c)), distance(c)
    (tensor([[1.2071, 0.8828]]), tensor([[1.1216, 0.6164]]))

    d~ <= (1 - abar) d1 + max_{j in I} |x_j| [abar (L - N) - (1 - abar)], where the function `farthest` computes d1.

    True for the top-N set, where abar >= alpha_i for every i left out, and weights that sum to one.
    For an arbitrary fixed set it fails: alpha = (0, 1), x = (1, 1), I = {1} has d~ = 1 and bound -1.
    """
    rest = 1 - c.top_mass
    return rest * farthest + _longest_selected(c) * (c.top_mass * (c.length - c.count) - rest)


def fixed_set_upper(c: Configuration) -> Float[Tensor, "*batch rows sets"]:
    """B3, the corrected upper bound: d~ <= sqrt((L - N) D2).

    >>> c = Configuration.of(torch.tensor([[0.5, 0.3, 0.2]]), torch.eye(3), n=[1, 2])
    >>> fixed_set_upper(c), distance(c)
    (tensor([[1.1225, 0.6164]]), tensor([[1.1216, 0.6164]]))

    D2 = sum over i not in I of |y_i - s|^2. Cauchy-Schwarz; holds for any set and any weights.
    """
    squares = torch.where(c.others, c.context_distances.square(), 0).sum(-1)
    return ((c.length - c.count) * squares).sqrt()


def fixed_set_lower(c: Configuration) -> Float[Tensor, "*batch rows sets"]:
    """B4, the lower bound: d~ >= |(L - N + 1) s - xbar|.

    >>> c = Configuration.of(torch.tensor([[0.5, 0.3, 0.2]]), torch.eye(3), n=[1, 2])
    >>> fixed_set_lower(c), distance(c)
    (tensor([[1.0630, 0.6164]]), tensor([[1.1216, 0.6164]]))

    The sum of the vectors y_i - s over i not in I is (xbar - s) - (L - N) s; a sum of norms is at least
    the norm of the sum. Together with B3 it brackets d~: B3^2 - B4^2 <= (L - N) sum of |y_i|^2.
    """
    remaining = (c.length - c.count + 1).unsqueeze(-1)
    return (remaining * c.context - c.mean.unsqueeze(-2)).norm(dim=-1)


def fixed_set_upper_any(
    c: Configuration, farthest: Float[Tensor, "*batch rows sets"]
) -> Float[Tensor, "*batch rows sets"]:
    """Theorem 1(1) corrected: d~ <= (A - abar) d1 + max_{j in I} |x_j| sum_{i not in I} |abar - alpha_i|.

    >>> c = Configuration.of(torch.tensor([[0.5, 0.3, 0.2]]), torch.eye(3), n=[1, 2])
    >>> fixed_set_upper_any(c, farthest(c)), distance(c)
    (tensor([[1.2071, 0.8828]]), tensor([[1.1216, 0.6164]]))

    For any set, and nonnegative weights with any total A. With xhat = s / abar, a convex combination of the selected
    vectors, y_i - s = alpha_i (x_i - xhat) - (abar - alpha_i) xhat, and |x_i - xhat| <= d1, |xhat| <= max |x_j|. The
    printed form replaces the last sum by abar (L-N) - (1-abar), its value if no token left out outweighs the set.
    """
    weights = c.weights.unsqueeze(-2)
    rest = torch.where(c.others, weights, 0).sum(-1)
    excess = torch.where(c.others, (c.top_mass.unsqueeze(-1) - weights).abs(), 0).sum(-1)
    return rest * farthest + _longest_selected(c) * excess


def fixed_set_upper_split(c: Configuration) -> Float[Tensor, "*batch rows sets"]:
    """B1: d~ <= sum_{i not in I} [ alpha_i |x_i - xhat| + |abar - alpha_i| |xhat| ], xhat = s / abar.

    >>> c = Configuration.of(torch.tensor([[0.5, 0.3, 0.2]]), torch.eye(3), n=[1, 2])
    >>> fixed_set_upper_split(c), distance(c)
    (tensor([[1.2071, 0.6848]]), tensor([[1.1216, 0.6164]]))

    The corrected Theorem 1(1) before its two maxima are taken. With abar = 0 the set has no weight, s = 0, and
    the sum is that of |y_i|.
    """
    weights = c.weights.unsqueeze(-2)
    mass = c.top_mass.unsqueeze(-1)
    scale = 1 / torch.where(mass > 0, mass, torch.inf)
    # alpha_i |x_i - xhat| = |alpha_i x_i - (alpha_i / abar) s|: formed directly, as L x d differences.
    scaled = weights.unsqueeze(-1) * c.vectors[..., None, None, :, :]
    convex = (weights * scale).unsqueeze(-1) * c.context.unsqueeze(-2)
    first = (scaled - convex).norm(dim=-1)
    second = (mass - weights).abs() * scale * c.context.norm(dim=-1, keepdim=True)
    return torch.where(c.others, first + second, 0).sum(-1)


def fixed_set_upper_triangle(c: Configuration) -> Float[Tensor, "*batch rows sets"]:
    """B2: d~ <= sum_{i not in I} |y_i| + (L-N) |s|, the triangle inequality.

    >>> c = Configuration.of(torch.tensor([[0.5, 0.3, 0.2]]), torch.eye(3), n=[1, 2])
    >>> fixed_set_upper_triangle(c), distance(c)
    (tensor([[1.5000, 0.7831]]), tensor([[1.1216, 0.6164]]))
    """
    rest = torch.where(c.others, c.scaled_norms.unsqueeze(-2), 0).sum(-1)
    return rest + (c.length - c.count) * c.context.norm(dim=-1)


def fixed_set_gap(c: Configuration) -> Float[Tensor, "*batch rows sets"]:
    """Bound on the gap between B3 and B4: B3^2 - B4^2 <= (L-N) sum_{i not in I} |y_i|^2.

    >>> c = Configuration.of(torch.tensor([[0.5, 0.3, 0.2]]), torch.eye(3), n=[1, 2])
    >>> fixed_set_upper(c) ** 2 - fixed_set_lower(c) ** 2, fixed_set_gap(c)
    (tensor([[0.1300, 0.0000]]), tensor([[0.2600, 0.0400]]))

    The difference is (L-N) times the sum of squares of the y_i left out about their mean.
    """
    squares = torch.where(c.others, c.scaled_norms.square().unsqueeze(-2), 0).sum(-1)
    return (c.length - c.count) * squares


def growth_lower(c: Configuration) -> Float[Tensor, "*batch rows sets"]:
    """d~ >= (L-N+1) |s| - |xbar|: the distance grows with L - N as long as the context does not vanish.

    >>> c = Configuration.of(torch.tensor([[0.5, 0.3, 0.2]]), torch.eye(3), n=[1, 2])
    >>> growth_lower(c), distance(c)
    (tensor([[0.8836, 0.5497]]), tensor([[1.1216, 0.6164]]))

    B4 and the triangle inequality; negative where it says nothing. It refutes "once N grows proportionally to L, the
    distance must collapse": for x_i = e, uniform weights and N = L/2 the distance is L/4 - 1/2.
    """
    remaining = c.length - c.count + 1
    return remaining * c.context.norm(dim=-1) - c.mean.norm(dim=-1, keepdim=True)


def vanishing_upper(c: Configuration, largest_share: Float[Tensor, "*batch rows"]) -> Float[Tensor, "*batch rows sets"]:
    """d~ <= (1 + N C2) max_i |x_i| when every weight is at most C2 / L, C2 = `largest_share`.

    >>> c = Configuration.of(torch.tensor([[0.5, 0.3, 0.2]]), torch.eye(3), n=[1, 2])
    >>> vanishing_upper(c, torch.tensor([1.5])), distance(c)
    (tensor([[2.5000, 4.0000]]), tensor([[1.1216, 0.6164]]))

    Under the hypothesis of Lemma 1 the distance is bounded in L, so a distance that grows linearly in L is evidence
    against vanishing weights. Proof: B2, with |s| <= N C2 max|x| / L and the weights summing to at most one.
    """
    norms = torch.where(c.visible, c.squared_norms, 0).amax(-1, keepdim=True).sqrt()
    return (1 + c.count * largest_share.unsqueeze(-1)) * norms


def farthest(c: Configuration) -> Float[Tensor, "*batch rows sets"]:
    """d1 of Theorem 1(1) by its definition: the largest |x_i - x_j| with j selected and i not, for any sets.

    >>> c = Configuration.of(torch.tensor([[0.5, 0.3, 0.2]]), torch.eye(3), n=[1, 2])
    >>> farthest(c)
    tensor([[1.4142, 1.4142]])

    Builds all keys x keys distances; `attnscope.measure.specification` avoids that matrix.
    """
    pairs = (c.vectors.unsqueeze(-2) - c.vectors.unsqueeze(-3)).norm(dim=-1)
    across = c.others.unsqueeze(-1) & c.selected.unsqueeze(-2)
    return torch.where(across, pairs[..., None, None, :, :], 0).amax((-2, -1))


def _longest_selected(c: Configuration) -> Float[Tensor, "*batch rows sets"]:
    """max_{j in I} |x_j|."""
    return torch.where(c.selected, c.squared_norms.unsqueeze(-2), 0).amax(-1).sqrt()
