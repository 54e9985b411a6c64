"""Theorem 1(1), and the collapse of the distance that the paper concludes from it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from attnscope.theory import distance
from attnscope.theory.audit import Claim, Condition, Form, at_least, at_most
from attnscope.theory.spaces import ANY_SETS, GROWING_ROWS

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.theory.configuration import Configuration


def _rounding(c: Configuration) -> Tensor:
    return 1e-12 * c.length * (c.scaled_norms.sum(-1, keepdim=True) + c.squared_norms.amax(-1, keepdim=True).sqrt())


def _outweighs_others(c: Configuration) -> Tensor:
    """abar >= alpha_i for every token left out."""
    heaviest = torch.where(c.others, c.weights.unsqueeze(-2), 0).amax(-1)
    return c.top_mass >= heaviest


def _with_total(total: float, c: Configuration) -> Configuration:
    return replace(c, weights=total * c.weights)


CLAIMS = (
    Claim(
        id="theorem-1-fixed",
        place="Theorem 1(1)",
        space=ANY_SETS,
        printed=Form(
            "d~ <= (1-abar) d1 + max|x_j| [abar(L-N) - (1-abar)]",
            at_most(
                distance.distance,
                lambda c: distance.fixed_set_upper_printed(c, distance.farthest(c)),
                _rounding,
            ),
        ),
        condition=Condition("abar >= alpha_i for every token left out, as for the top-N set", _outweighs_others),
        corrected=(
            Form(
                "d~ <= (A-abar) d1 + max|x_j| sum |abar - alpha_i|",
                at_most(distance.distance, lambda c: distance.fixed_set_upper_any(c, distance.farthest(c)), _rounding),
            ),
            Form(
                "the same with weights that sum to 3",
                at_most(
                    lambda c: distance.distance(_with_total(3, c)),
                    lambda c: distance.fixed_set_upper_any(_with_total(3, c), distance.farthest(c)),
                    _rounding,
                ),
            ),
        ),
    ),
    Claim(
        id="theorem-1-sharper",
        place="not in the paper",
        space=ANY_SETS,
        corrected=(
            Form(
                "B1: d~ <= sum alpha_i|x_i - xhat| + |abar - alpha_i||xhat|",
                at_most(distance.distance, distance.fixed_set_upper_split, _rounding),
            ),
            Form(
                "B2: d~ <= sum |y_i| + (L-N)|s|",
                at_most(distance.distance, distance.fixed_set_upper_triangle, _rounding),
            ),
            Form(
                "B3: d~ <= sqrt((L-N) sum |y_i - s|^2)", at_most(distance.distance, distance.fixed_set_upper, _rounding)
            ),
            Form("B4: d~ >= |(L-N+1)s - xbar|", at_least(distance.distance, distance.fixed_set_lower, _rounding)),
            Form(
                "B3^2 - B4^2 <= (L-N) sum |y_i|^2",
                at_most(
                    lambda c: distance.fixed_set_upper(c).square() - distance.fixed_set_lower(c).square(),
                    distance.fixed_set_gap,
                    lambda c: _rounding(c) * distance.fixed_set_upper(c),
                ),
            ),
        ),
    ),
    Claim(
        id="distance-collapses",
        place="Introduction; section 4",
        space=GROWING_ROWS,
        printed=Form(
            "with N = L/2, d~ on a row is at most d~ on its first eighth",
            at_most(lambda s: s.growth[1], lambda s: s.growth[0]),
        ),
        corrected=(
            Form(
                "d~ >= (L-N+1)|s| - |xbar|",
                at_least(
                    lambda s: distance.distance(s.long),
                    lambda s: distance.growth_lower(s.long),
                    lambda s: _rounding(s.long),
                ),
            ),
            Form(
                "d~ <= (1 + N C2) max|x| if every weight is at most C2/L",
                at_most(
                    lambda s: distance.distance(s.long),
                    lambda s: distance.vanishing_upper(s.long, s.long.weights.amax(-1) * s.long.length.squeeze(-1)),
                    lambda s: _rounding(s.long),
                ),
            ),
        ),
        note="A distance that must collapse as L grows cannot be larger on a row eight times as long.",
    ),
)
