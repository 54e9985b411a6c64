"""Theorem 2, the limit of 80% that the paper concludes from it, and coverage by several heads (section 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from attnscope.studies.audit import Claim, Condition, Form, about, at_least, at_most, between
from attnscope.studies.audit.spaces import BALLS, COVERED_TOKENS, INDEPENDENT_ROWS, TOKEN_CHANCES, UNIT_TOP_SETS
from attnscope.theory import geometry
from attnscope.theory.configuration import Configuration, Interval

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.studies.audit.spaces_families import Balls
    from attnscope.studies.audit.spaces_rows import Chances, Covered


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


GEOMETRY_CLAIMS = (
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


def _range(s: Covered) -> Interval:
    return Interval(*(side.unsqueeze(-1) for side in geometry.coverage_range(s.separability)))


def _same(s: Chances) -> Tensor:
    return (s.separability.amax(-1) - s.separability.amin(-1) <= 1e-9).unsqueeze(-1)


HEAD_CLAIMS = (
    Claim(
        id="coverage-up-to",
        place="section 4",
        space=COVERED_TOKENS,
        printed=Form(
            "H heads of separability p cover at most 1 - (1-p)^H",
            at_most(
                lambda s: s.coverage,
                lambda s: geometry.coverage_independent(s.separability.mean(-1, keepdim=True), s.heads),
            ),
        ),
        corrected=(Form("max p_h <= coverage <= min(1, sum p_h)", between(lambda s: s.coverage, _range)),),
    ),
    Claim(
        id="coverage-independent",
        place="section 4",
        space=TOKEN_CHANCES,
        printed=Form(
            "independent heads cover 1 - (1-p)^H in expectation, p the mean separability",
            about(
                lambda s: s.coverage,
                lambda s: geometry.coverage_independent(s.separability.mean(-1), s.heads),
                1e-6,
            ),
            equality=True,
        ),
        condition=Condition("every token has the same p", _same),
        corrected=(
            Form(
                "coverage <= 1 - (1-pbar)^H (Jensen)",
                at_most(
                    lambda s: s.coverage,
                    lambda s: geometry.coverage_independent(s.separability.mean(-1), s.heads),
                    lambda s: torch.full_like(s.heads, 1e-14),
                ),
            ),
            Form(
                "coverage = mean of 1 - (1-p_i)^H",
                about(lambda s: s.coverage, lambda s: geometry.coverage_of_tokens(s.separability, s.heads), 1e-9),
                equality=True,
            ),
        ),
    ),
)
