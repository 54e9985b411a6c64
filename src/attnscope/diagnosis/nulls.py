"""Separability of a head compared with null models.

Two null models on the same vectors: the head's top set with equal weights (the weights carry no information), and
random sets of the same size with the weights that the head gives them (the choice carries no information).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from attnscope.measure.separability import unit
from attnscope.theory.configuration import Configuration, top_sets
from attnscope.theory.geometry import ball

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

RANDOM_SETS = 1  # for each row; means over rows and windows are reported


def separability_columns(
    weights: Float[Tensor, "groups rows keys"],
    visible: Bool[Tensor, "groups rows keys"],
    vectors: Float[Tensor, "groups keys dims"],
    n: int,
    generator: torch.Generator,
) -> dict[str, Float[Tensor, "groups rows"]]:
    """Separability of the top n, without the first key, and under both nulls.

    NaN where no other key is left, or fewer than n keys get weight: keys of weight zero fill up a top set by position.
    """
    units = unit(vectors)
    top = top_sets(weights, visible, [n])
    measured = ball(Configuration(weights, units, visible, top)).separability
    equal = visible / visible.sum(-1, keepdim=True).clamp_min(1)
    uniform = ball(Configuration(equal.to(weights.dtype), units, visible, top)).separability
    rest = visible & (visible.cumsum(-1) > 1)
    without = torch.where(rest, weights, 0)
    no_first = ball(Configuration(without, units, rest, top_sets(without, rest, [n]))).separability
    defined = (visible.sum(-1) > n) & ((weights > 0).sum(-1) >= n)
    columns = {
        "separability": (measured[..., 0], defined),
        "null_random": (random_separability(weights, visible, vectors, n, generator), defined),
        "null_uniform": (uniform[..., 0], defined),
        "separability_without_sink": (no_first[..., 0], (rest.sum(-1) > n) & ((without > 0).sum(-1) >= n)),
    }
    return {name: torch.where(where, value, torch.nan) for name, (value, where) in columns.items()}


def random_separability(
    weights: Float[Tensor, "groups rows keys"],
    visible: Bool[Tensor, "groups rows keys"],
    vectors: Float[Tensor, "groups keys dims"],
    n: int,
    generator: torch.Generator,
) -> Float[Tensor, "groups rows"]:
    """Separability of random sets of n keys with the weights that the head gives them.

    NaN where no other key is left, or fewer than n keys get weight.
    """
    drawn = random_sets(visible, n, RANDOM_SETS, generator)
    separability = ball(Configuration(weights, unit(vectors), visible, drawn)).separability.mean(-1)
    defined = (visible.sum(-1) > n) & ((weights > 0).sum(-1) >= n)
    return torch.where(defined, separability, torch.nan)


def random_sets(
    visible: Bool[Tensor, "*batch keys"], n: int, count: int, generator: torch.Generator
) -> Bool[Tensor, "*batch sets keys"]:
    """Uniformly random sets of n visible keys."""
    shape = (*visible.shape[:-1], count, visible.shape[-1])
    scores = torch.rand(shape, generator=generator, dtype=torch.float64).to(visible.device)
    scores = torch.where(visible.unsqueeze(-2), scores, -1)
    keys = scores.topk(min(n, visible.shape[-1]), dim=-1).indices
    chosen = torch.zeros(shape, dtype=torch.bool, device=visible.device).scatter_(-1, keys, True)
    return chosen & visible.unsqueeze(-2)
