"""Separability of a head against what its vectors alone would give.

Two nulls on the same vectors: the head's top set with equal weights (the weights say nothing), and sets of the same
size drawn at random, with the weights the head gives them (the choice says nothing).
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

RANDOM_SETS = 1  # for each row; the mean over rows and windows is what is told


def separability_columns(
    weights: Float[Tensor, "groups rows keys"],
    visible: Bool[Tensor, "groups rows keys"],
    vectors: Float[Tensor, "groups keys dims"],
    n: int,
    generator: torch.Generator,
) -> dict[str, Float[Tensor, "groups rows"]]:
    """Separability of the top n, without the first key, and under both nulls; NaN where a row has too few keys."""
    units = unit(vectors)
    top = top_sets(weights, visible, [n])
    drawn = random_sets(visible, n, RANDOM_SETS, generator)
    own = ball(Configuration(weights, units, visible, torch.cat([top, drawn], -2))).separability
    equal = visible / visible.sum(-1, keepdim=True).clamp_min(1)
    uniform = ball(Configuration(equal.to(weights.dtype), units, visible, top)).separability
    rest = visible & (visible.cumsum(-1) > 1)
    without = torch.where(rest, weights, 0)
    no_first = ball(Configuration(without, units, rest, top_sets(without, rest, [n]))).separability
    length = visible.sum(-1)
    columns = {
        "separability": (own[..., 0], length > n),
        "null_random": (own[..., 1:].mean(-1), length > n),
        "null_uniform": (uniform[..., 0], length > n),
        "separability_without_sink": (no_first[..., 0], length > n + 1),
    }
    return {name: torch.where(defined, value, torch.nan) for name, (value, defined) in columns.items()}


def random_sets(
    visible: Bool[Tensor, "*batch keys"], n: int, count: int, generator: torch.Generator
) -> Bool[Tensor, "*batch sets keys"]:
    """Sets of n visible keys, every such set as likely as any other."""
    shape = (*visible.shape[:-1], count, visible.shape[-1])
    scores = torch.rand(shape, generator=generator, dtype=torch.float64).to(visible.device)
    scores = torch.where(visible.unsqueeze(-2), scores, -1)
    places = scores.topk(min(n, visible.shape[-1]), dim=-1).indices
    return torch.zeros(shape, dtype=torch.bool, device=visible.device).scatter_(-1, places, True) & visible.unsqueeze(
        -2
    )
