"""Random sets by visiting every one of them, in numpy, and rows to visit. Nothing is shared with the package."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import torch

from attnscope.theory.configuration import Configuration


def distances(weights: np.ndarray, vectors: np.ndarray, n: int) -> np.ndarray:
    """Eq. (7) for every set of n tokens."""
    y = weights[:, None] * vectors
    found = []
    for chosen in combinations(range(len(y)), n):
        s = y[list(chosen)].sum(0)
        found.append(sum(np.linalg.norm(y[i] - s) for i in range(len(y)) if i not in chosen))
    return np.array(found)


def left_out_powers(weights: np.ndarray, vectors: np.ndarray, n: int, power: int) -> np.ndarray:
    """E |y_i - s|^power for each token i, over the sets that leave it out."""
    y = weights[:, None] * vectors
    means = []
    for i in range(len(y)):
        rest = [j for j in range(len(y)) if j != i]
        terms = [np.linalg.norm(y[i] - y[list(chosen)].sum(0)) ** power for chosen in combinations(rest, n)]
        means.append(np.mean(terms))
    return np.array(means)


def configuration(weights: np.ndarray, vectors: np.ndarray, chosen: list[int]) -> Configuration:
    """One row and one set."""
    alpha = torch.from_numpy(np.asarray(weights, dtype=np.float64))[None]
    selected = torch.zeros(1, 1, len(weights), dtype=torch.bool)
    selected[..., chosen] = True
    x = torch.from_numpy(np.asarray(vectors, dtype=np.float64))
    return Configuration(alpha, x, torch.ones_like(alpha, dtype=torch.bool), selected)


def hostile_rows() -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Small rows (name, weights, vectors) on which bounds are attained or break."""
    generator = np.random.default_rng(20)
    normal = generator.normal
    dirichlet = generator.dirichlet
    spike = np.full(7, 1e-9)
    spike[2] = 1 - spike.sum() + 1e-9
    outlier = normal(size=(7, 3))
    outlier[4] *= 1e4
    antipodal = normal(size=(3, 2))
    antipodal = np.concatenate([antipodal, -antipodal])
    return [
        ("two tokens", dirichlet([1, 1]), normal(size=(2, 3))),
        ("identical vectors, uniform", np.full(5, 0.2), np.ones((5, 1))),
        ("orthonormal, uniform", np.full(7, 1 / 7), np.eye(7)),
        ("one-hot", np.eye(5)[1], normal(size=(5, 2))),
        ("a spike", spike, normal(size=(7, 5))),
        ("an outlier", dirichlet(np.full(7, 0.5)), outlier),
        ("antipodes of equal weight", np.full(6, 1 / 6), antipodal),
        ("zero vectors", dirichlet(np.ones(5)), np.zeros((5, 3))),
        ("duplicates", dirichlet(np.ones(6)), np.repeat(normal(size=(2, 3)), 3, axis=0)),
        ("flat", dirichlet(np.full(7, 50)), normal(size=(7, 3)) + 3),
        ("peaked", dirichlet(np.full(7, 0.1)), normal(size=(7, 2))),
    ]
