"""Random and adversarial weights, vectors and logits, and independent vectors on the unit sphere.

Assumption 2 with a fixed delta means conditioning on the event that no two vectors are nearer than delta: draws
that violate it are rejected. The draws depend on the configuration alone, so an audit is reproducible.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle
from typing import TYPE_CHECKING, Any

import torch

from attnscope.studies.audit.contract import Case, Space
from attnscope.theory.configuration import Configuration
from attnscope.theory.geometry import ball, failure_bound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Generator, Tensor

BATCH = 100
SHAPES = ((2, 1), (3, 1), (2, 2), (3, 2), (5, 3), (4, 7), (7, 2), (11, 3), (7, 13), (23, 5))


def normal(generator: Generator, *shape: int) -> Tensor:
    """Standard normal samples in float64."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def uniform(generator: Generator, *shape: int) -> Tensor:
    """Uniform samples between 0 and 1 in float64."""
    return torch.rand(*shape, generator=generator, dtype=torch.float64)


def whole(generator: Generator, low: int, high: int, *shape: int) -> Tensor:
    """Random integers low <= k < high, in float64."""
    return torch.randint(low, high, shape, generator=generator).to(torch.float64)


def mixed(generator: Generator, kinds: Sequence[Tensor]) -> Tensor:
    """One of several families for each configuration of the batch."""
    stacked = torch.stack(list(kinds))
    choice = torch.randint(len(kinds), (stacked.shape[1],), generator=generator)
    return stacked[choice, torch.arange(stacked.shape[1])]


def masses(generator: Generator, batch: int, keys: int) -> Tensor:
    """Nonnegative numbers that a space turns into weights: flat, peaked, one-hot, tied, with zeros."""
    noise = normal(generator, batch, keys)
    peak = torch.zeros(batch, keys, dtype=torch.float64)
    peak[:, 0] = 1
    kinds = [
        torch.ones(batch, keys, dtype=torch.float64),
        torch.exp(0.1 * noise),
        torch.exp(noise),
        torch.exp(4 * noise),
        peak,
        peak + 1e-3 * uniform(generator, batch, keys),
        whole(generator, 0, 4, batch, keys),
    ]
    return mixed(generator, kinds)


def normalized(masses: Tensor) -> Tensor:
    """Masses divided by their sum: weights."""
    return masses / masses.sum(-1, keepdim=True)


def points(generator: Generator, batch: int, keys: int, dims: int) -> Tensor:
    """Vectors: isotropic, with a common mean, few distinct, one outlier, orthonormal, collinear, antipodal, alike."""
    noise = normal(generator, batch, keys, dims)
    common = normal(generator, batch, 1, dims)
    outlier = noise.clone()
    outlier[:, 0] *= 50
    half = keys // 2
    antipodal = noise.clone()
    antipodal[:, half : 2 * half] = -noise[:, :half]
    axes = torch.eye(dims, dtype=torch.float64)[torch.arange(keys) % dims].expand(batch, keys, dims)
    some = noise.clone()
    some[:, ::2] = 0
    kinds = [
        noise,
        3 * common + noise,
        noise[:, torch.arange(keys) % 2],
        outlier,
        axes,
        normal(generator, batch, keys, 1) * common,
        antipodal,
        common.expand_as(noise),
        torch.ones_like(noise),
        some,
        on_sphere(noise),
    ]
    return mixed(generator, kinds)


def on_sphere(vectors: Tensor) -> Tensor:
    """Vectors scaled to length one; zero stays zero."""
    norm = vectors.norm(dim=-1, keepdim=True)
    return vectors / torch.where(norm > 0, norm, 1)


def scores(generator: Generator, batch: int, keys: int) -> Tensor:
    """Logits: of several sizes, all equal, one or two winners, two extremes."""
    noise = normal(generator, batch, keys)
    size = torch.exp(1.5 * normal(generator, batch, 1))
    winner = torch.zeros_like(noise)
    winner[:, 0] = 1
    pair = winner.clone()
    pair[:, 1] = 1
    kinds = [
        size * noise,
        noise,
        torch.zeros_like(noise),
        size * winner,
        size * pair,
        size * torch.sign(noise),
        size * (2 * winner - 1),
        size * (1 - 2 * winner),
        size * whole(generator, 0, 3, batch, keys),
    ]
    return mixed(generator, kinds)


def plain(values: Tensor) -> Any:
    """Values of a tensor rounded for printing: nested lists, or one number."""
    return (values.to(torch.float64).round(decimals=6) + 0.0).tolist()  # adding 0 turns -0 into 0


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
