"""Theorem 2, and the limit of 80% that the paper concludes from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from attnscope.theory import geometry
from attnscope.theory.audit import Claim, Form, at_least, at_most, between
from attnscope.theory.configuration import Configuration, Interval
from attnscope.theory.spaces import BALLS, INDEPENDENT_ROWS, UNIT_TOP_SETS

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.theory.spaces.sphere import Balls


def _share(s: Balls) -> Tensor:
    return s.share[0]


def _error(s: Balls) -> Tensor:
    return s.share[1]


def _xi(s: Balls) -> Tensor:
    return geometry.xi(s.weights.unsqueeze(1), s.delta)


def _printed(s: Balls) -> Interval:
    return geometry.separability_printed(_xi(s), s.members, s.radius.unsqueeze(-1))


def _certain(s: Balls) -> Interval:
    sizes = s.weights.unsqueeze(1)
    return geometry.separability_certain(sizes, _xi(s), s.members, s.radius.unsqueeze(-1))


def _concentrated(s: Balls) -> Interval:
    """T2b made conditional by T2c, for each dimension of the batch."""
    lower, upper = torch.zeros_like(s.delta), torch.ones_like(s.delta)
    members = torch.full_like(s.delta, s.weights.shape[-1])
    for dims in s.dims.unique().tolist():
        same = s.dims == dims
        radius = s.radius[same].unsqueeze(-1)
        free = geometry.separability_concentrated(s.weights[same].unsqueeze(1), s.members[same], radius, int(dims))
        chance = geometry.separation_chance(members[same], int(dims), s.delta[same])
        lower[same], upper[same] = geometry.separability_separated(free, chance)
    return Interval(lower, upper)


def _measured(c: Configuration) -> Tensor:
    return geometry.ball(c).separability


def _certain_at_nearest(c: Configuration) -> Interval:
    """T2a with the radius of section 3.2 and no assumed separation (delta = 0)."""
    radius = geometry.ball(c).radius
    weights = torch.where(c.selected, c.weights.unsqueeze(-2), 0)
    xi = geometry.xi(weights, torch.zeros_like(radius))
    return geometry.separability_certain(weights, xi, c.selected, radius)


CLAIMS = (
    Claim(
        id="theorem-2-lower",
        place="Theorem 2, lower side",
        space=BALLS,
        printed=Form(
            "E[Ns]/N >= 1 - sum xi_i / (rN)",
            at_least(_share, lambda s: _printed(s).lower, _error),
            empty=lambda s: _printed(s).lower <= 0,
        ),
        corrected=(
            Form(
                "T2a: E[Ns]/N >= share of the set with xi_i <= r", at_least(_share, lambda s: _certain(s).lower, _error)
            ),
            Form("T2b, T2c: concentration", at_least(_share, lambda s: _concentrated(s).lower, _error)),
        ),
    ),
    Claim(
        id="theorem-2-upper",
        place="Theorem 2, upper side",
        space=BALLS,
        printed=Form(
            "E[Ns]/N <= (1/N) sum exp(-(r - xi_i)^2/16)", at_most(_share, lambda s: _printed(s).upper, _error)
        ),
        corrected=(
            Form("T2a: E[Ns]/N <= share with r >= 2 m_i - A_i", at_most(_share, lambda s: _certain(s).upper, _error)),
            Form("T2b, T2c: concentration", at_most(_share, lambda s: _concentrated(s).upper, _error)),
        ),
        note="E[Ns]/N is a mean over draws; a violation exceeds it by more than five standard errors.",
    ),
    Claim(
        id="eighty-percent",
        place="Introduction; sections 3.2, 5",
        space=UNIT_TOP_SETS,
        printed=Form(
            "Ns/N <= 0.85 for unit vectors and N > 1, r = min |s - y_j|",
            at_most(lambda c: torch.where(c.count > 1, _measured(c), 0), lambda c: torch.full_like(c.count, 0.85)),
        ),
        corrected=(
            Form(
                "T2a with that radius, both sides",
                between(_measured, _certain_at_nearest, lambda c: torch.zeros_like(c.count)),
            ),
        ),
        note="Orthonormal vectors: every selected token of positive weight counts.",
    ),
    Claim(
        id="separability-failure",
        place="not in the paper",
        space=INDEPENDENT_ROWS,
        corrected=(
            Form(
                "T2d: P(i fails) <= E[ exp(-d a_i^2/(32|s - y_i|^2)) + (L-N) exp(-d a_i^2/(4|s|^2)) ]",
                at_most(lambda s: s.failure[0], lambda s: s.failure[1], lambda s: s.failure[2]),
            ),
        ),
    ),
)
