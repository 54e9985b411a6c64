"""Eq. (7) and Theorem 1 on many rows at once: the distance columns of `topn.parquet`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from attnscope.theory import distance, expectation

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from attnscope.theory.configuration import Configuration


def distance_columns(
    c: Configuration, scaled: Configuration, scale: Float[Tensor, "*batch rows 1"], *, paper_bounds: bool
) -> dict[str, Tensor]:
    """Distance, its bounds and its expectation over random sets; shape (..., rows, sets).

    scaled: the same configuration with weights multiplied by `scale`, for quantities proportional to the weights.
    """
    d1 = farthest(c) if paper_bounds else torch.full_like(c.top_mass, torch.nan)
    return {
        "top_mass": c.top_mass,
        "distance": distance.distance(scaled) / scale,
        "distance_bound_printed": distance.fixed_set_upper_printed(c, d1),
        "distance_lower": distance.fixed_set_lower(scaled) / scale,
        "distance_upper": distance.fixed_set_upper(scaled) / scale,
        "expected_printed": expectation.random_set_main_printed(c),
        "expected_lower": expectation.random_set_lower(scaled) / scale,
        "expected_upper": expectation.random_set_upper(scaled) / scale,
        "epsilon_printed": expectation.random_set_epsilon_printed(scaled) / scale,
    }


def farthest(c: Configuration) -> Float[Tensor, "groups rows sets"]:
    """d1 of Theorem 1(1): the largest |x_i - x_j| with j selected and i not; NaN if there is no such pair."""
    d1 = torch.full_like(c.top_mass, torch.nan)
    for group, row, s in (c.selected.any(-1) & c.others.any(-1)).nonzero().tolist():
        members, others = c.vectors[group, c.selected[group, row, s]], c.vectors[group, c.others[group, row, s]]
        d1[group, row, s] = torch.cdist(members, others, compute_mode="donot_use_mm_for_euclid_dist").amax()
    return d1
