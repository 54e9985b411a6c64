"""Independent uniform vectors on the unit sphere with a smallest distance: Assumptions 1 and 2, by sampling.

Assumption 2 with a fixed delta means conditioning on the event that no two vectors are nearer than delta: draws
that violate it are rejected. The draws depend on the configuration alone, so an audit is reproducible.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle
from typing import TYPE_CHECKING

import torch

from attnscope.theory.audit.contract import Case, Space
from attnscope.theory.configuration import Configuration
from attnscope.theory.geometry import ball, failure_bound
from attnscope.theory.spaces.families import BATCH, masses, normal, normalized, on_sphere, plain, uniform, whole

if TYPE_CHECKING:
    from torch import Generator, Tensor

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
        (case["masses"] >= 0).all(-1)
        & (case["masses"].sum(-1) > 0)
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
