"""Theorem 2, Propositions 1 and 2 and section 4: separability, and what heads cover together.

The spaces draw independent vectors on the unit sphere. Assumption 2 with a fixed delta means conditioning on the event
that no two vectors are nearer than delta: draws that violate it are rejected. The draws depend on the configuration
alone, so an audit is reproducible.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle
from typing import TYPE_CHECKING

import torch

from attnscope.studies.audit.contract import (
    BATCH,
    Case,
    Claim,
    Condition,
    Form,
    Space,
    about,
    at_least,
    at_most,
    between,
    masses,
    normal,
    normalized,
    on_sphere,
    plain,
    positive,
    uniform,
    whole,
)
from attnscope.studies.audit.rows import COVERED_TOKENS, TOKEN_CHANCES, UNIT_TOP_SETS
from attnscope.theory import geometry
from attnscope.theory.configuration import Configuration, Interval
from attnscope.theory.geometry import ball, failure_bound

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from attnscope.studies.audit.rows import Chances, Covered

DRAWS = 300
SIGMAS = 5.0
# Possible error of a mean of DRAWS shares when all of them agree: a larger one goes unnoticed with probability e^-15.
UNSEEN_ERROR = 15 / DRAWS


@dataclass(frozen=True)
class Balls:
    """Weights of a set, a radius, and the share of the set inside the ball, averaged over vectors."""

    weights: Tensor  # (batch, members)
    radius: Tensor  # (batch,)
    dims: Tensor  # (batch,)

    @property
    def members(self) -> Tensor:
        """All entries are members, (batch, 1, members)."""
        return torch.ones_like(self.weights, dtype=torch.bool).unsqueeze(1)

    @cached_property
    def delta(self) -> Tensor:
        """A separation that half of the draws have: the median smallest gap of a pilot sample, (batch, 1)."""
        gaps = torch.zeros_like(self.radius)
        for dims in self.dims.unique().tolist():
            pilot = self._vectors(int(dims), 101, 64)
            gaps[self.dims == dims] = _smallest_gap(pilot).median()
        return gaps.unsqueeze(-1)

    @cached_property
    def share(self) -> tuple[Tensor, Tensor]:
        """Estimate of E[N_s]/N given the separation, and a bound on its error; (batch, 1) each."""
        mean, error = torch.zeros_like(self.radius), torch.zeros_like(self.radius)
        for dims in self.dims.unique().tolist():
            same = self.dims == dims
            vectors = self._vectors(int(dims), 7, 2 * DRAWS)
            gap = self.delta[same][0]
            vectors = vectors[_smallest_gap(vectors) >= gap]
            scaled = self.weights[same][:, None, :, None] * vectors  # (batch, draws, members, dims)
            rest = scaled.sum(-2, keepdim=True) - scaled
            shares = (rest.norm(dim=-1) <= self.radius[same][:, None, None] * (1 + 1e-12)).double().mean(-1)
            mean[same] = shares.mean(-1)
            error[same] = SIGMAS * shares.std(-1) / len(vectors) ** 0.5 + UNSEEN_ERROR
        return mean.unsqueeze(-1), error.unsqueeze(-1)

    def _vectors(self, dims: int, seed: int, draws: int) -> Tensor:
        return on_sphere(normal(torch.Generator().manual_seed(seed), draws, self.weights.shape[-1], dims))


def _smallest_gap(vectors: Tensor) -> Tensor:
    """Smallest distance between two vectors of each draw; the sphere's diameter for a single vector."""
    count = vectors.shape[-2]
    if count == 1:
        return torch.full((len(vectors),), 2.0, dtype=vectors.dtype)
    pairs = (vectors.unsqueeze(-2) - vectors.unsqueeze(-3)).norm(dim=-1)
    return (pairs + 4 * torch.eye(count, dtype=vectors.dtype)).amin((-2, -1))


def _draw_balls(generator: Generator) -> Iterator[Case]:
    for members, dims in cycle(((1, 1), (1, 3), (2, 2), (2, 3), (3, 3), (5, 3), (5, 17), (7, 31), (11, 5))):
        raw = masses(generator, BATCH // 2, members)
        size = torch.where(raw.sum(-1) > 0, raw.square().sum(-1).sqrt() / raw.sum(-1), 1)
        yield {
            "masses": raw,
            "radius": size * 2 * uniform(generator, BATCH // 2),
            "dims": torch.full((BATCH // 2,), float(dims), dtype=torch.float64),
        }


BALLS = Space(
    name="weights of a set, a radius, and independent uniform unit vectors at least delta apart (drawn)",
    axes={"masses": ("members",), "radius": (), "dims": ()},
    draw=_draw_balls,
    subject=lambda case: Balls(normalized(case["masses"]), case["radius"], case["dims"]),
    valid=lambda case: (
        positive(case)
        & (case["radius"] > 0.01)
        # In one dimension two unit vectors often coincide, which Assumption 2 excludes.
        & (case["dims"] >= (1 if case["masses"].shape[-1] == 1 else 2))
    ),
    show=lambda s: {
        "weights of the set": plain(s.weights[0]),
        "r": plain(s.radius[0]),
        "d": int(s.dims[0]),
        "delta": plain(s.delta[0, 0]),
    },
    trials=900,
    integers=frozenset({"dims"}),
)


@dataclass(frozen=True)
class IndependentRow:
    """Weights of a row, the size of its top set, and how often a selected token is not distinguished."""

    weights: Tensor  # (batch, keys), descending
    count: Tensor  # (batch,)
    dims: Tensor  # (batch,)

    @cached_property
    def failure(self) -> tuple[Tensor, Tensor, Tensor]:
        """For each key, its rate of failure, the mean of T2d's bound, and the error of both; 0 outside the set."""
        keys = self.weights.shape[-1]
        rate, bound, error = (torch.zeros_like(self.weights) for _ in range(3))
        for k, (weights, count, dims) in enumerate(zip(self.weights, self.count, self.dims, strict=True)):
            vectors = on_sphere(normal(torch.Generator().manual_seed(11), DRAWS, keys, int(dims)))
            row = weights.expand(DRAWS, 1, keys)
            selected = (torch.arange(keys) < count).expand(DRAWS, 1, 1, keys)
            c = Configuration(row, vectors, torch.ones_like(row, dtype=torch.bool), selected)
            inside = selected[0, 0, 0]
            fails = (~ball(c).inside & selected).double().flatten(1)
            terms = torch.where(selected, failure_bound(c), 0).flatten(1)
            rate[k], bound[k] = fails.mean(0), terms.mean(0)
            error[k] = torch.where(inside, SIGMAS * (fails - terms).std(0) / DRAWS**0.5 + UNSEEN_ERROR, 0)
        return rate, bound, error


def _draw_independent(generator: Generator) -> Iterator[Case]:
    batch = 10
    for keys, dims in cycle(((5, 3), (7, 31), (23, 13), (11, 101))):
        yield {
            "masses": masses(generator, batch, keys) + 1e-6,
            "count": whole(generator, 1, min(keys, 6), batch),
            "dims": torch.full((batch,), float(dims), dtype=torch.float64),
        }


INDEPENDENT_ROWS = Space(
    name="weights of a row, its top N, and independent uniform unit vectors (drawn)",
    axes={"masses": ("keys",), "count": (), "dims": ()},
    least={"keys": 2},
    draw=_draw_independent,
    subject=lambda case: IndependentRow(
        normalized(case["masses"]).sort(-1, descending=True).values, case["count"], case["dims"]
    ),
    valid=lambda case: (
        (case["masses"] > 0).all(-1)
        & (case["count"] >= 1)
        & (case["count"] < case["masses"].shape[-1])
        & (case["dims"] >= 2)
    ),
    show=lambda s: {"weights": plain(s.weights[0]), "N": int(s.count[0]), "d": int(s.dims[0])},
    trials=80,
    integers=frozenset({"count", "dims"}),
)


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
        "theorem-2-lower", "Theorem 2, lower side", BALLS,
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
        "theorem-2-upper", "Theorem 2, upper side", BALLS,
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
        "eighty-percent", "Introduction; sections 3.2, 5", UNIT_TOP_SETS,
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
        "separability-failure", "not in the paper", INDEPENDENT_ROWS,
        corrected=(
            Form(
                "T2d: P(i fails) <= E[ exp(-d a_i^2/(32|s - y_i|^2)) + (L-N) exp(-d a_i^2/(4|s|^2)) ]",
                at_most(lambda s: s.failure[0], lambda s: s.failure[1], lambda s: s.failure[2]),
            ),
        ),
    ),
)  # fmt: skip


def _range(s: Covered) -> Interval:
    return Interval(*(side.unsqueeze(-1) for side in geometry.coverage_range(s.separability)))


def _same(s: Chances) -> Tensor:
    return (s.separability.amax(-1) - s.separability.amin(-1) <= 1e-9).unsqueeze(-1)


HEAD_CLAIMS = (
    Claim(
        "coverage-up-to", "section 4", COVERED_TOKENS,
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
        "coverage-independent", "section 4", TOKEN_CHANCES,
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
)  # fmt: skip
