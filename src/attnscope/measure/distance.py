"""Eq. (7) and Theorem 1 on many rows at once: the distance columns of `topn.parquet`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from attnscope.theory import distance, expectation

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from attnscope.theory.configuration import Configuration


def distance_columns(c: Configuration, *, paper_bounds: bool) -> dict[str, Tensor]:
    """Distance, its bounds and its expectation over random sets; shape (..., rows, sets)."""
    d1 = farthest(c) if paper_bounds else torch.full_like(c.top_mass, torch.nan)
    return {
        "top_mass": c.top_mass,
        "distance": distance.distance(c),
        "distance_bound_printed": distance.fixed_set_upper_printed(c, d1),
        "distance_lower": distance.fixed_set_lower(c),
        "distance_upper": distance.fixed_set_upper(c),
        "expected_printed": expectation.random_set_main_printed(c),
        "expected_lower": expectation.random_set_lower(c),
        "expected_upper": expectation.random_set_upper(c),
        "epsilon_printed": expectation.random_set_epsilon_printed(c),
    }


def farthest(c: Configuration) -> Float[Tensor, "*batch rows sets"]:
    """d1 of Theorem 1(1): the largest |x_i - x_j| with j selected and i not.

    The sets are nested, smallest first, so each adds its own members to a running maximum over all keys.
    Vectors are centred first (differences do not change), and the winning pair is measured directly.
    """
    centred = c.vectors - c.vectors.mean(-2, keepdim=True)
    norms = centred.square().sum(-1)[..., None, None, :]
    best = torch.full_like(c.weights, -torch.inf)
    partner = torch.zeros_like(best, dtype=torch.long)
    before = torch.zeros_like(c.visible)
    results = []
    for members, others in zip(c.selected.unbind(-2), c.others.unbind(-2), strict=True):
        places, real = _added(members & ~before)
        before = members
        if places.shape[-1]:
            vectors = _take(centred, places)
            products = vectors.flatten(-3, -2) @ centred.mT
            squared = norms - 2 * products.unflatten(-2, places.shape[-2:])
            squared += vectors.square().sum(-1, keepdim=True)
            squared.masked_fill_(~real.unsqueeze(-1), -torch.inf)
            longest, winner = squared.max(-2)
            partner = torch.where(longest > best, places.gather(-1, winner), partner)
            best = torch.maximum(best, longest)
        far = torch.where(others, best, -torch.inf).argmax(-1, keepdim=True)
        near = partner.gather(-1, far)
        results.append((_take(centred, far) - _take(centred, near)).norm(dim=-1).squeeze(-1))
    return torch.stack(results, -1)


def _added(mask: Bool[Tensor, "*batch rows keys"]) -> tuple[Tensor, Tensor]:
    """The places of the True entries of each row, padded to the longest row, and which are real."""
    most = int(mask.sum(-1).max())
    real, places = mask.to(torch.uint8).topk(most, dim=-1)
    return places, real.bool()


def _take(
    vectors: Float[Tensor, "*batch keys dims"], places: Int[Tensor, "*batch rows members"]
) -> Float[Tensor, "*batch rows members dims"]:
    """The vectors at the places of each row."""
    flat = places.flatten(-2).unsqueeze(-1).expand(*places.shape[:-2], -1, vectors.shape[-1])
    return vectors.gather(-2, flat).unflatten(-2, places.shape[-2:])
