"""Eq. (10) and Theorem 2 on many rows at once: the separability columns of `topn.parquet`.

Everything here works on vectors scaled to the unit sphere (M = 1), as the paper does. A zero vector cannot
be scaled and stays zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from attnscope.theory.geometry import ball, separability_certain, separability_printed
from attnscope.theory.geometry import xi as xi_of

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

    from attnscope.theory.configuration import Configuration


def unit(vectors: Float[Tensor, "*batch keys dims"]) -> Float[Tensor, "*batch keys dims"]:
    """Scale vectors to the unit sphere; zero stays zero."""
    largest = vectors.abs().amax(-1, keepdim=True)
    scaled = vectors / torch.where(largest > 0, largest, 1)  # squares neither overflow nor underflow
    norm = scaled.norm(dim=-1, keepdim=True)
    return scaled / torch.where(norm > 0, norm, 1)


def separability_columns(
    c: Configuration, scale: Float[Tensor, "*batch rows 1"], delta: Float[Tensor, "*batch rows"]
) -> dict[str, Tensor]:
    """Separability, radius and the bounds on it, for unit vectors; shape (..., rows, sets).

    c: a configuration whose weights were multiplied by `scale`.
    """
    measured = ball(c)
    chosen = torch.where(c.selected, c.weights.unsqueeze(-2), -torch.inf)
    most = int(c.count.max())
    weights, places = chosen.topk(most, dim=-1)
    members = weights > -torch.inf
    weights = weights.clamp_min(0)
    norms = c.squared_norms.unsqueeze(-2).sqrt().expand(chosen.shape).gather(-1, places)
    gap = delta.unsqueeze(-1)
    xi = xi_of(weights, gap)
    radius = measured.radius / scale
    printed = separability_printed(xi / scale.unsqueeze(-1), members, radius)
    certain = separability_certain(weights * norms, xi, members, measured.radius)
    return {
        "separability": measured.separability,
        "radius": radius,
        "delta": gap.expand_as(radius),
        "separability_lower_printed": printed.lower,
        "separability_upper_printed": printed.upper,
        "separability_lower": certain.lower,
        "separability_upper": certain.upper,
    }


def smallest_gap(
    units: Float[Tensor, "groups keys dims"], visible: Bool[Tensor, "groups rows keys"]
) -> Float[Tensor, "groups rows"]:
    """delta of Assumption 2: the smallest distance between two visible vectors, for each row; infinity for one key.

    Rows that see a prefix of the keys (causal attention) share a single pass.
    """
    length = visible.sum(-1)
    keys = torch.arange(visible.shape[-1], device=visible.device)
    prefix = (visible == (keys < length.unsqueeze(-1))).all(-1)
    gaps = prefix_gaps(units).gather(-1, (length - 1).clamp_min(0))
    for group, row in (~prefix).nonzero().tolist():
        vectors = units[group, visible[group, row]]
        gaps[group, row] = prefix_gaps(vectors)[-1] if len(vectors) else torch.inf
    return gaps


def prefix_gaps(units: Float[Tensor, "*batch keys dims"]) -> Float[Tensor, "*batch keys"]:
    """The smallest distance among the first 1, 2, ... keys, comparing one key with all keys before it at a time."""
    gaps = torch.full(units.shape[:-1], torch.inf, dtype=units.dtype, device=units.device)
    for key in range(1, units.shape[-2]):
        gaps[..., key] = (units[..., :key, :] - units[..., key : key + 1, :]).norm(dim=-1).amin(-1)
    return gaps.cummin(-1).values
