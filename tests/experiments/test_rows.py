"""Measurements of single rows (all N, random sets, g(T, eps), coverage) against loops and enumeration."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch

from attnscope.experiments.circle import circle
from attnscope.experiments.coverage import layer_coverage
from attnscope.experiments.profiles import PROFILE, products, profiles
from attnscope.studies.paper.random_sets import draw_sets
from attnscope.studies.paper.responses import responses


def rows(keys: int, dims: int, sink: bool, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(2, 3, keys, generator=generator, dtype=torch.float64)
    logits[..., 0] += 9 * sink
    vectors = torch.randn(2, keys, dims, generator=generator, dtype=torch.float64) + 0.5
    return torch.softmax(logits, -1), vectors


def distance_of(y: np.ndarray, chosen: tuple[int, ...]) -> float:
    """Eq. (7) for a set."""
    s = sum((y[i] for i in chosen), np.zeros(y.shape[1]))
    return float(sum(np.linalg.norm(y[i] - s) for i in range(len(y)) if i not in chosen))


@pytest.mark.parametrize("sink", [False, True])
def test_profiles_by_plain_loops(sink: bool) -> None:
    weights, vectors = rows(11, 5, sink, 0)
    profile = profiles(weights, vectors, products(vectors))
    keys = 11
    for group, row in np.ndindex(2, 3):
        alpha, x = weights[group, row].numpy(), vectors[group].numpy()
        y = alpha[:, None] * x
        mean = y.sum(0)
        order = sorted(range(keys), key=lambda i: (-alpha[i], i))
        for n in range(1, keys):
            p = n / (keys - 1)
            out = 1 - n / keys
            mu = [np.linalg.norm((1 + p) * y[i] - p * mean) for i in range(keys)]
            upper = 0.0
            for i in range(keys):
                others = [j for j in range(keys) if j != i]
                spread = sum(y[j] @ y[j] for j in others) - (mean - y[i]) @ (mean - y[i]) / (keys - 1)
                variance = n * (keys - 1 - n) / ((keys - 1) * (keys - 2)) * spread
                triangle = np.linalg.norm(y[i]) + p * sum(np.linalg.norm(y[j]) for j in others)
                upper += min(np.sqrt(mu[i] ** 2 + max(variance, 0)), triangle)
            expected = {
                "distance": distance_of(y, tuple(order[:n])),
                "expected_printed": out * sum(np.linalg.norm((alpha[i] + p) * x[i] - mean) for i in range(keys)),
                "expected_lower": out * sum(mu),
                "expected_upper": out * upper,
            }
            for k, name in enumerate(PROFILE):
                assert profile[group, row, k, n - 1] == pytest.approx(expected[name], rel=1e-9), (name, n)


@pytest.mark.parametrize("sink", [False, True])
def test_random_sets_by_enumeration(sink: bool) -> None:
    weights, vectors = rows(8, 3, sink, 1)
    n = [1, 2, 4, 7]
    top = profiles(weights, vectors, products(vectors))[:, :, 0][..., [k - 1 for k in n]]
    drawn = draw_sets(weights, vectors, products(vectors), top, n, draws=4000, seed=0)
    for group, row in np.ndindex(2, 3):
        y = (weights[group, row, :, None] * vectors[group]).numpy()
        for column, count in enumerate(n):
            every = np.array([distance_of(y, chosen) for chosen in combinations(range(8), count)])
            at = group, row, column
            assert drawn.mean[at] == pytest.approx(every.mean(), abs=4.5 * drawn.error[at] + 2e-6 * every.mean())
            as_far = np.mean(every >= top[at] * (1 - 1e-5))
            assert drawn.p_high[at] == pytest.approx(as_far, abs=0.035 if count > 1 else 1e-12)
    assert (drawn.error[..., 0] == 0).all()


def test_a_few_draws_do_not_miss_a_sink() -> None:
    """Plain sampling of 20 sets of 5 out of 400 tokens would include the sink in one of four rows."""
    keys, n = 400, 5
    weights = torch.full((1, 1, keys), 1e-6, dtype=torch.float64)
    weights[..., 0] = 1 - 1e-6 * (keys - 1)
    vectors = torch.randn(1, keys, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drawn = draw_sets(weights, vectors, products(vectors), np.ones((1, 1, 1)), [n], draws=20, seed=0)
    sink = float((weights[0, 0, 0] * vectors[0, 0]).norm())
    # Inside: all keys - n others are |sink| away. Outside: only the sink is.
    expected = n / keys * (keys - n) * sink + (1 - n / keys) * sink
    assert drawn.mean.item() == pytest.approx(expected, rel=1e-2)


def test_responses_by_the_definition() -> None:
    random = np.random.default_rng(2)
    logits = 3 * random.standard_normal((4, 9))
    temperatures, steps = [0.05, 0.5, 3.0], [1e-3, 0.1, 10.0]
    g = responses(logits, temperatures, steps, seed=7)
    directions = np.random.default_rng(7).standard_normal(logits.shape)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)

    def weights(z: np.ndarray, t: float) -> np.ndarray:
        shifted = np.exp((z - z.max()) / t)
        return shifted / shifted.sum()

    for row, t, e in np.ndindex(4, 3, 3):
        a = weights(logits[row], temperatures[t])
        step = steps[e]
        moved = weights(logits[row] + step * directions[row], temperatures[t])
        assert g[row, t, e, 0] == pytest.approx(np.linalg.norm(moved - a) / step, rel=1e-6, abs=1e-11)
        _, vectors = np.linalg.eigh(np.diag(a) - np.outer(a, a))
        sides = [
            np.linalg.norm(weights(logits[row] + sign * step * vectors[:, -1], temperatures[t]) - a) / step
            for sign in (1, -1)
        ]
        assert g[row, t, e, 1] == pytest.approx(max(sides), rel=1e-4, abs=1e-9)


def test_two_equal_logits_reach_one_over_two_t() -> None:
    g = responses(np.array([[2.0, 2.0, -50.0]]), [0.1], [1e-4], seed=0)
    assert g[0, 0, 0, 1] == pytest.approx(5.0, rel=1e-4)


def test_coverage_by_choosing_all_sets_of_heads() -> None:
    random = np.random.default_rng(4)
    heads, keys, n = 5, 13, 6
    selected = np.zeros((heads, keys), dtype=bool)
    for head in range(heads):
        selected[head, random.choice(keys, n, replace=False)] = True
    inside = selected & (random.random((heads, keys)) < 0.6)
    coverage = layer_coverage(selected, inside, 3)
    for count in (1, 2, 3):
        shares = []
        for head in range(heads):
            for others in combinations([h for h in range(heads) if h != head], count - 1):
                covered = inside[[head, *others]].any(0)
                shares.append(covered[selected[head]].mean())
        assert coverage[count - 1] == pytest.approx(np.mean(shares))


def test_the_circle_is_a_circle_and_its_ball_leaves_the_others_out() -> None:
    weights, vectors = rows(12, 6, False, 5)
    projected = circle(weights[0, 0], vectors[0], 4)
    assert projected.points.norm(dim=-1) == pytest.approx(np.ones(12))
    y = projected.weights[:, None] * projected.points
    away = (y - y[projected.selected].sum(0)).norm(dim=-1)
    assert projected.radius == pytest.approx(float(away[~projected.selected].min()))
    assert projected.inside.tolist() == (projected.selected & (away < projected.radius)).tolist()
