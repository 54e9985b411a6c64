"""The objects that the statements are about: weights, vectors, and sets of tokens.

Parameters, here and in all of `attnscope.theory`. Rows of one head share their vectors, so

    weights   (..., rows, keys)          alpha_i, nonnegative, zero where a key is not visible
    vectors   (..., keys, dims)          x_i, which the weights average
    visible   (..., rows, keys)          the keys that count; L of them in a row
    selected  (..., rows, sets, keys)    I_N, several sets per row
    n                                    N, the sizes of the top sets
    c                                    all of these: a `Configuration`
    values    (..., keys)                any numbers

Distances and radii are in the unit of the vectors. Everything here is computed in the dtype it is given; the scan
uses float64. Quantities that several statements share (the contexts, products with the vectors) are computed once,
on first use, as matrix products over all rows and sets.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Bool, Float, Int
    from torch import Tensor

# Below this share of (|u| + |v|)^2, |u|^2 - 2 u.v + |v|^2 has lost ten digits or more
# and the difference is computed directly.
CANCELLATION = 1e-5


class Interval(NamedTuple):
    """A lower and an upper bound.

    >>> Interval(torch.tensor(0.2), torch.tensor(0.5)).upper
    tensor(0.5000)
    """

    lower: Tensor
    upper: Tensor


def ranks(weights: Float[Tensor, "*batch keys"], visible: Bool[Tensor, "*batch keys"]) -> Int[Tensor, "*batch keys"]:
    """Rank of each key by weight, 0 for the largest; ties go to the earlier position, invisible keys come last.

    >>> weights = torch.tensor([0.2, 0.5, 0.2, 0.1])
    >>> ranks(weights, weights > 0.15)
    tensor([1, 0, 2, 3])
    """
    order = torch.where(visible, weights, -torch.inf).argsort(dim=-1, descending=True, stable=True)
    positions = torch.arange(weights.shape[-1], device=weights.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, positions)


def top_sets(
    weights: Float[Tensor, "*batch rows keys"], visible: Bool[Tensor, "*batch rows keys"], n: Sequence[int]
) -> Bool[Tensor, "*batch rows sets keys"]:
    """Masks of the top sets I_N of each row, one for each N; only visible keys are selected.

    >>> weights = torch.tensor([[0.2, 0.5, 0.3]])
    >>> top_sets(weights, weights > 0, n=[1, 2])
    tensor([[[False,  True, False],
             [False,  True,  True]]])
    """
    rank = ranks(weights, visible)
    counts = torch.tensor(list(n), device=weights.device)
    return (rank.unsqueeze(-2) < counts[:, None]) & visible.unsqueeze(-2)


def leave_one_out(values: Float[Tensor, "*batch keys"]) -> Float[Tensor, "*batch keys"]:
    """Sum over all other entries, as prefix plus suffix sum: total minus self loses small terms next to a large one.

    >>> leave_one_out(torch.tensor([1.0, 2.0, 4.0]))
    tensor([6., 5., 3.])
    """
    zero = torch.zeros_like(values[..., :1])
    before = torch.cat([zero, values.cumsum(-1)[..., :-1]], -1)
    after = torch.cat([values.flip(-1).cumsum(-1).flip(-1)[..., 1:], zero], -1)
    return before + after


@dataclass(frozen=True)
class Configuration:
    """Weights, vectors, and sets of tokens, with the quantities that the statements share.

    >>> c = Configuration.of(torch.tensor([[0.5, 0.3, 0.2]]), torch.eye(3), n=[1, 2])
    >>> c.top_mass, c.context
    (tensor([[0.5000, 0.8000]]), tensor([[[0.5000, 0.0000, 0.0000],
             [0.5000, 0.3000, 0.0000]]]))

    | here | paper |
    |---|---|
    | `length`, `count` | L, N |
    | `mean` | xbar = sum over all of alpha_i x_i |
    | `context` | s, eq. (6) |
    | `top_mass` | abar_N |
    """

    weights: Float[Tensor, "*batch rows keys"]
    vectors: Float[Tensor, "*batch keys dims"]
    visible: Bool[Tensor, "*batch rows keys"]
    selected: Bool[Tensor, "*batch rows sets keys"]

    @classmethod
    def of(
        cls,
        weights: Float[Tensor, "*batch rows keys"],
        vectors: Float[Tensor, "*batch keys dims"],
        n: Sequence[int],
        visible: Bool[Tensor, "*batch rows keys"] | None = None,
    ) -> Configuration:
        """Rows with their top sets, one for each size; all keys are visible unless told otherwise.

        >>> c = Configuration.of(torch.tensor([[0.5, 0.3, 0.2]]), torch.eye(3), n=[1, 2])
        >>> c.context[0, 1]
        tensor([0.5000, 0.3000, 0.0000])
        """
        seen = torch.ones_like(weights, dtype=torch.bool) if visible is None else visible
        return cls(weights, vectors, seen, top_sets(weights, seen, n))

    @cached_property
    def length(self) -> Float[Tensor, "*batch rows 1"]:
        """L, the number of visible keys; the last axis is for the sets."""
        return self.visible.sum(-1, keepdim=True).to(self.weights.dtype)

    @cached_property
    def count(self) -> Float[Tensor, "*batch rows sets"]:
        """N, the number of selected keys."""
        return self.selected.sum(-1).to(self.weights.dtype)

    @cached_property
    def others(self) -> Bool[Tensor, "*batch rows sets keys"]:
        """The visible keys that are not selected."""
        return self.visible.unsqueeze(-2) & ~self.selected

    @cached_property
    def top_mass(self) -> Float[Tensor, "*batch rows sets"]:
        """abar_N, the weight on the selected keys."""
        return (self.weights.unsqueeze(-2) * self.selected).sum(-1)

    @cached_property
    def squared_norms(self) -> Float[Tensor, "*batch 1 keys"]:
        """|x_i|^2, with an axis for the rows."""
        return self.vectors.square().sum(-1).unsqueeze(-2)

    @cached_property
    def scaled_norms(self) -> Float[Tensor, "*batch rows keys"]:
        """|alpha_i x_i|."""
        return self.weights.abs() * self.squared_norms.sqrt()

    @cached_property
    def mean(self) -> Float[Tensor, "*batch rows dims"]:
        """xbar, the head's output: the weighted sum over all visible keys."""
        return self.weights @ self.vectors

    @cached_property
    def mean_products(self) -> Float[Tensor, "*batch rows keys"]:
        """x_i . xbar."""
        return self.mean @ self.vectors.mT

    @cached_property
    def context(self) -> Float[Tensor, "*batch rows sets dims"]:
        """s of eq. (6), the weighted sum over the selected keys."""
        chosen = self.weights.unsqueeze(-2) * self.selected
        return _per_set(chosen, self.vectors)

    @cached_property
    def context_products(self) -> Float[Tensor, "*batch rows sets keys"]:
        """x_i . s."""
        return _per_set(self.context, self.vectors.mT)

    @cached_property
    def context_distances(self) -> Float[Tensor, "*batch rows sets keys"]:
        """|alpha_i x_i - s| for every key."""
        return self.difference_norms(self.weights.unsqueeze(-2), self.context, self.context_products)

    def difference_norms(
        self,
        factors: Float[Tensor, "*batch rows #sets keys"],
        target: Float[Tensor, "*batch rows #sets dims"],
        products: Float[Tensor, "*batch rows #sets keys"],
    ) -> Float[Tensor, "*batch rows sets keys"]:
        """|f_i x_i - v| for factors f, a target v and the products x_i . v.

        Expanded into f^2 |x|^2 - 2 f x.v + |v|^2, so that the work is one matrix product
        for all rows and sets. Where the three terms cancel, the difference is formed directly.
        """
        norms = self.squared_norms.unsqueeze(-2)
        target_norms = target.square().sum(-1, keepdim=True)
        squared = factors.square() * norms - 2 * factors * products + target_norms
        scale = (factors.abs() * norms.sqrt() + target_norms.sqrt()).square()
        cancelled = (squared <= CANCELLATION * scale) & self.visible.unsqueeze(-2)
        if cancelled.any():
            index = cancelled.nonzero(as_tuple=True)
            exact = self.scaled_at(factors, index) - target.expand(*squared.shape[:-1], -1)[index[:-1]]
            squared[index] = exact.square().sum(-1)
        return squared.clamp_min(0).sqrt()

    def scaled_at(
        self, factors: Float[Tensor, "*batch rows #sets keys"], index: tuple[Tensor, ...]
    ) -> Float[Tensor, "points dims"]:
        """f_i x_i at the given indices (batch..., row, set, key)."""
        vectors = self.vectors[(*index[:-3], index[-1])]
        return factors.expand(self.selected.shape)[index].unsqueeze(-1) * vectors


def _per_set(
    values: Float[Tensor, "*batch rows sets inner"], matrix: Float[Tensor, "*batch inner outer"]
) -> Float[Tensor, "*batch rows sets outer"]:
    """values @ matrix, as one matrix product for all rows and sets of a head."""
    flat = values.flatten(-3, -2) @ matrix
    return flat.unflatten(-2, values.shape[-3:-1])
