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

# Squared gaps of unit vectors below this have lost too many digits in the product to tell which pair is nearest.
NEAR_DUPLICATE = 1e-9
_GAP_BLOCK = 256


def unit(vectors: Float[Tensor, "*batch keys dims"]) -> Float[Tensor, "*batch keys dims"]:
    """Scale vectors to the unit sphere; zero stays zero."""
    largest = vectors.abs().amax(-1, keepdim=True)
    scaled = vectors / torch.where(largest > 0, largest, 1)  # squares neither overflow nor vanish
    norm = scaled.norm(dim=-1, keepdim=True)
    return scaled / torch.where(norm > 0, norm, 1)


def separability_columns(c: Configuration, delta: Float[Tensor, "*batch rows"]) -> dict[str, Tensor]:
    """Separability, radius and the bounds on it, for unit vectors; shape (..., rows, sets)."""
    measured = ball(c)
    chosen = torch.where(c.selected, c.weights.unsqueeze(-2), -torch.inf)
    most = int(c.count.max())
    weights, places = chosen.topk(most, dim=-1)
    members = weights > -torch.inf
    weights = weights.clamp_min(0)
    norms = c.squared_norms.unsqueeze(-2).sqrt().expand(chosen.shape).gather(-1, places)
    gap = delta.unsqueeze(-1)
    xi = xi_of(weights, gap)
    printed = separability_printed(xi, members, measured.radius)
    certain = separability_certain(weights * norms, xi, members, measured.radius)
    return {
        "separability": measured.separability,
        "radius": measured.radius,
        "delta": gap.expand_as(measured.radius),
        "separability_lower_printed": printed.lower,
        "separability_upper_printed": printed.upper,
        "separability_lower": certain.lower,
        "separability_upper": certain.upper,
    }


def smallest_gap(
    units: Float[Tensor, "*batch keys dims"], visible: Bool[Tensor, "*batch rows keys"]
) -> Float[Tensor, "*batch rows"]:
    """delta of Assumption 2: the smallest distance between two visible vectors, for each row.

    Rows that see a prefix of the keys (causal attention) share one pass; infinity for fewer than two keys.
    """
    length = visible.sum(-1)
    places = torch.arange(visible.shape[-1], device=visible.device)
    prefix = (visible == (places < length.unsqueeze(-1))).all(-1)
    gaps = prefix_gaps(units).gather(-1, (length - 1).clamp_min(0))
    for index in (~prefix).nonzero():
        row = tuple(index.tolist())
        seen = units[row[:-1]][visible[row]]
        gaps[row] = prefix_gaps(seen)[-1] if len(seen) else torch.inf
    return gaps


def prefix_gaps(units: Float[Tensor, "*batch keys dims"]) -> Float[Tensor, "*batch keys"]:
    """The smallest gap among the first 1, 2, ... keys, by blocks of keys: no keys x keys matrix."""
    blocks = [
        _nearest_before(units, start, min(start + _GAP_BLOCK, units.shape[-2]))
        for start in range(0, units.shape[-2], _GAP_BLOCK)
    ]
    return torch.cat(blocks, -1).cummin(-1).values


def _nearest_before(units: Float[Tensor, "*batch keys dims"], start: int, stop: int) -> Tensor:
    """For keys start to stop, the distance to the nearest earlier key."""
    block, earlier = units[..., start:stop, :], units[..., :stop, :]
    half = earlier.square().sum(-1).unsqueeze(-2) / 2
    score = block @ earlier.mT - half  # largest where the distance is smallest
    own = torch.arange(start, stop, device=units.device)
    not_earlier = torch.arange(stop, device=units.device) >= own[:, None]
    score.masked_fill_(not_earlier, -torch.inf)
    best, place = score.max(-1)
    index = place.unsqueeze(-1).expand_as(block)
    gaps = (block - earlier.gather(-2, index)).norm(dim=-1)
    gaps.masked_fill_(own == 0, torch.inf)
    doubtful = (gaps > 0) & (gaps.square() < NEAR_DUPLICATE)
    if doubtful.any():
        # The product cannot rank gaps this small: measure every candidate directly.
        candidates = (doubtful.unsqueeze(-1) & (score >= best.unsqueeze(-1) - 1e-14)).nonzero(as_tuple=True)
        lead, row, key = candidates[:-2], candidates[-2], candidates[-1]
        direct = (block[(*lead, row)] - earlier[(*lead, key)]).norm(dim=-1)
        flat = torch.arange(gaps.numel(), device=gaps.device).reshape(gaps.shape)[(*lead, row)]
        gaps = gaps.flatten().scatter_reduce(0, flat, direct, "amin").reshape(gaps.shape)
    return gaps
