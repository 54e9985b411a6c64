"""Theorem 2, T2a to T2d, against numpy and sampling."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from enumeration import configuration

from attnscope.theory import geometry

SIGMAS = 4.0


def sphere(generator: np.random.Generator, *shape: int) -> np.ndarray:
    points = generator.normal(size=shape)
    return points / np.linalg.norm(points, axis=-1, keepdims=True)


def others(weights: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """|W_i| for each draw and member: the sum over the other members of alpha_j x_j."""
    y = weights[:, None] * vectors
    total = np.stack([np.delete(y, i, axis=-2).sum(-2) for i in range(len(weights))], axis=-2)
    return np.linalg.norm(total, axis=-1)


def as_set(weights: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(weights)[None]


def smallest_gap(vectors: np.ndarray) -> float:
    return min(float(np.linalg.norm(a - b)) for i, a in enumerate(vectors) for b in vectors[:i])


@pytest.mark.parametrize("seed", range(11))
def test_xi_bounds_the_sum_of_the_other_tokens_of_every_spherical_code(seed: int) -> None:
    generator = np.random.default_rng(seed)
    members, dims = [(2, 3), (3, 2), (5, 7), (7, 5)][seed % 4]
    weights, vectors = generator.dirichlet(np.ones(members)), sphere(generator, members, dims)
    xi = geometry.xi(as_set(weights), torch.tensor([smallest_gap(vectors)], dtype=torch.float64))[0]
    norms = others(weights, vectors)
    assert (norms <= xi.numpy() + 1e-12).all()
    for i, norm in enumerate(norms):
        rest = np.delete(weights, i)
        assert norm >= 2 * rest.max() - rest.sum() - 1e-12


@pytest.mark.parametrize(
    ("members", "dims"), [(1, 3), (2, 2), (3, 1), (3, 2), (5, 3), (7, 31), (13, 5)], ids=lambda size: str(size)
)
def test_concentration_bounds_hold_by_sampling(members: int, dims: int) -> None:
    generator = np.random.default_rng(members * 100 + dims)
    weights = generator.dirichlet(np.ones(members))
    norms = others(weights, sphere(generator, 4000, members, dims))
    size = math.sqrt((weights**2).sum())
    inside = torch.ones(1, members, dtype=torch.bool)
    for factor in (0.2, 0.6, 0.9, 1.1, 1.5):
        radius = factor * size
        shares = (norms <= radius * (1 + 1e-12)).mean(-1)
        margin = SIGMAS * shares.std() / math.sqrt(len(shares)) + 16 / len(shares)
        ball = torch.tensor([radius], dtype=torch.float64)
        lower, upper = geometry.separability_concentrated(as_set(weights), inside, ball, dims)
        assert float(lower) - margin <= shares.mean() <= float(upper) + margin


def test_concentration_is_a_threshold_in_high_dimension() -> None:
    weights = torch.full((1, 17), 1 / 17, dtype=torch.float64)
    inside = torch.ones(1, 17, dtype=torch.bool)
    for factor, expected in ((0.7, 0.0), (1.3, 1.0)):
        radius = torch.tensor([factor * 4 / 17], dtype=torch.float64)
        lower, upper = geometry.separability_concentrated(weights, inside, radius, 1024)
        assert abs(float(lower if expected else upper) - expected) < 1e-6


def test_one_selected_token_refutes_the_printed_upper_side() -> None:
    weights, members = torch.ones(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.bool)
    radius = torch.ones(1, dtype=torch.float64)
    xi = geometry.xi(weights, torch.ones(1, dtype=torch.float64))
    assert float(geometry.separability_printed(xi, members, radius).upper) == pytest.approx(math.exp(-1 / 16))
    certain = geometry.separability_certain(weights, xi, members, radius)
    assert float(certain.lower) == float(certain.upper) == 1


def test_with_the_papers_radius_the_printed_upper_side_never_falls_below_its_floor() -> None:
    generator = np.random.default_rng(8)
    for _ in range(50):
        weights = -np.sort(-generator.dirichlet(np.full(11, generator.choice([0.1, 1, 10]))))
        vectors = sphere(generator, 11, 3)
        for n in (1, 2, 5, 7):
            c = configuration(weights, vectors, list(range(n)))
            xi = geometry.xi(c.weights[:, :n], torch.tensor([smallest_gap(vectors)], dtype=torch.float64))
            printed = geometry.separability_printed(xi, c.selected[0, :, :n], geometry.ball(c).radius[0])
            assert float(printed.upper) >= math.exp(-1 / 16) - 1e-12


@pytest.mark.parametrize("n", [1, 2, 5, 12])
def test_orthonormal_vectors_are_all_distinguished(n: int) -> None:
    weights = -np.sort(-np.random.default_rng(n).dirichlet(np.ones(13)))
    c = configuration(weights, np.eye(13), list(range(n)))
    assert float(geometry.ball(c).separability) == 1


def test_the_union_bound_of_the_separation_holds_by_sampling() -> None:
    generator = np.random.default_rng(12)
    for dims, delta in ((3, 0.1), (5, 0.4), (11, 0.8)):
        apart = np.mean([smallest_gap(code) >= delta for code in sphere(generator, 1500, 5, dims)])
        chance = geometry.separation_chance(
            torch.tensor(5.0, dtype=torch.float64), dims, torch.tensor(delta, dtype=torch.float64)
        )
        assert 0 < float(chance) <= apart + SIGMAS * math.sqrt(apart * (1 - apart) / 1500) + 0.01


def test_conditioning_widens_an_interval_and_never_beyond_zero_and_one() -> None:
    free = geometry.Interval(torch.tensor([0.9, 0.2]), torch.tensor([0.95, 0.6]))
    given = geometry.separability_separated(free, torch.tensor([0.5, 0.0]))
    torch.testing.assert_close(given.lower, torch.tensor([0.8, 0.0]))
    torch.testing.assert_close(given.upper, torch.tensor([1.0, 1.0]))


@pytest.mark.parametrize(("keys", "n", "dims"), [(7, 3, 5), (23, 2, 64), (13, 5, 301)])
def test_the_failure_bound_holds_on_average_by_sampling(keys: int, n: int, dims: int) -> None:
    generator = np.random.default_rng(keys)
    weights = -np.sort(-generator.dirichlet(np.full(keys, 0.5)))
    fails, bounds = [], []
    for vectors in sphere(generator, 300, keys, dims):
        c = configuration(weights, vectors, list(range(n)))
        y = weights[:, None] * vectors
        s = y[:n].sum(0)
        far = np.linalg.norm(y - s, axis=-1)
        fails.append(far[:n] >= far[n:].min())
        bounds.append(geometry.failure_bound(c)[0, 0, :n].numpy())
    gap = np.array(fails, dtype=float) - np.array(bounds)
    assert (gap.mean(0) <= SIGMAS * gap.std(0) / math.sqrt(len(gap)) + 1e-9).all()
