"""Theorem S and the two impossibilities."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnscope.theory import selectivity


def number(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def sparsemax(z: np.ndarray) -> np.ndarray:
    """Euclidean projection on the simplex, by bisection on its threshold."""
    low, high = z.max() - 1, z.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(z - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(z - low, 0)


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max())
    return e / e.sum()


# Equivariant maps and a Lipschitz constant of each.
MAPS = {
    "softmax": (softmax, 0.5),
    "sharp softmax": (lambda z: softmax(4 * z), 2.0),
    "sparsemax": (sparsemax, 1.0),
    "scaled sparsemax": (lambda z: sparsemax(3 * z), 3.0),
    "half and half": (lambda z: (softmax(z) + sparsemax(z)) / 2, 0.75),
    "softmax of tanh": (lambda z: softmax(np.tanh(z)), 0.5),
    "sigmoid over L": (lambda z: 1 / (1 + np.exp(-z)) / len(z), 0.25),
    "uniform": (lambda z: np.full(len(z), 1 / len(z)), 0.0),
}


@pytest.mark.parametrize("name", MAPS)
def test_no_map_exceeds_the_cap_of_its_lipschitz_constant(name: str) -> None:
    f, lipschitz = MAPS[name]
    generator = np.random.default_rng(13)
    for length in (2, 3, 7, 31):
        for scale in (0.1, 1, 5):
            z = scale * generator.normal(size=length)
            weights = f(z)
            cap = selectivity.top_weight_cap(torch.from_numpy(z), number(lipschitz))
            assert weights.max() <= float(cap) + 1e-9
            gaps = np.abs(z[:, None] - z)
            allowed = selectivity.weight_difference_cap(torch.from_numpy(gaps), number(lipschitz)).numpy()
            assert (np.abs(weights[:, None] - weights) <= allowed + 1e-9).all()


def test_sparsemax_attains_the_cap() -> None:
    generator = np.random.default_rng(14)
    for length in (2, 5, 17, 101):
        z = generator.normal(size=length)
        top = float(selectivity.sparsemax_top_weight(torch.from_numpy(z)))
        assert top == pytest.approx(sparsemax(z).max(), abs=1e-12)


@pytest.mark.parametrize(("length", "bound", "scale"), [(16, 1.9, 2.5), (128, 15.9, 21.2), (1024, 127.9, 170.5)])
def test_equispaced_logits_need_a_budget_that_grows_with_length(length: int, bound: float, scale: float) -> None:
    needed = selectivity.lipschitz_for_range(number(0.5), number(length), number(1.0))
    assert float(needed) == pytest.approx(bound, abs=0.05)
    z = np.linspace(0, 1, length)
    low, high = 0.0, 1e4
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if sparsemax(middle * z).max() >= 0.5 else (middle, high)
    assert high == pytest.approx(scale, abs=0.1)
    assert high >= float(needed)


def test_resolving_a_gap_needs_a_budget() -> None:
    assert float(selectivity.lipschitz_for_difference(number(0.5), number(1e-3))) == 500


@pytest.mark.parametrize(("length", "softmax_budget"), [(16, 2.45), (1024, 4.56), (10**6, 8.01)])
def test_density_costs_a_logarithm_and_sparsity_does_not(length: int, softmax_budget: float) -> None:
    weight, gap = number(0.9), number(1.0)
    assert float(selectivity.softmax_budget(weight, number(length), gap)) == pytest.approx(softmax_budget, abs=0.006)
    assert float(selectivity.sparsemax_budget(weight, number(length), gap)) == pytest.approx(0.9, abs=0.01)
    assert float(selectivity.entmax_budget(weight, gap, 1.5)) == pytest.approx(1.90, abs=0.005)


def test_the_sparsemax_budget_gives_exactly_its_weight() -> None:
    budget = float(selectivity.sparsemax_budget(number(0.7), number(11), number(0.3)))
    z = np.zeros(11)
    z[4] = 0.3
    assert sparsemax(budget * z).max() == pytest.approx(0.7, rel=1e-9)
