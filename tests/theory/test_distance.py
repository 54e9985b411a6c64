"""Theorem 1(1) and B1 to B4 on any set."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from enumeration import configuration, hostile_rows

from attnscope.measure.specification import farthest as farthest_of_top_sets
from attnscope.theory import distance as theory
from attnscope.theory.configuration import Configuration, top_sets

ROUNDING = 1e-9


def every_set(weights: np.ndarray, vectors: np.ndarray) -> list[Configuration]:
    sizes = range(1, len(weights))
    return [configuration(weights, vectors, list(s)) for n in sizes for s in combinations(range(len(weights)), n)]


def direct(c: Configuration) -> float:
    y = (c.weights[0].unsqueeze(-1) * c.vectors).numpy()
    chosen = c.selected[0, 0].numpy()
    s = y[chosen].sum(0)
    return float(sum(np.linalg.norm(v - s) for v in y[~chosen]))


def scale(c: Configuration) -> float:
    return ROUNDING * float(c.scaled_norms.sum() + c.squared_norms.amax().sqrt()) * len(c.vectors)


@pytest.mark.parametrize("row", hostile_rows(), ids=lambda row: row[0])
@pytest.mark.parametrize("total", [1.0, 0.4, 3.0], ids=lambda total: f"weights sum to {total}")
def test_bounds_hold_for_every_set_and_weight_total(row: tuple[str, np.ndarray, np.ndarray], total: float) -> None:
    for c in every_set(total * row[1], row[2]):
        actual, slack = direct(c), scale(c)
        assert float(theory.distance(c)) == pytest.approx(actual, rel=1e-9, abs=slack)
        for upper in (
            theory.fixed_set_upper_any(c, theory.farthest(c)),
            theory.fixed_set_upper_split(c),
            theory.fixed_set_upper_triangle(c),
            theory.fixed_set_upper(c),
        ):
            assert actual <= float(upper) + slack
        for lower in (theory.fixed_set_lower(c), theory.growth_lower(c)):
            assert float(lower) <= actual + slack
        gap = theory.fixed_set_upper(c).square() - theory.fixed_set_lower(c).square()
        assert float(gap) <= float(theory.fixed_set_gap(c)) + slack * float(theory.fixed_set_upper(c))


@pytest.mark.parametrize("row", hostile_rows(), ids=lambda row: row[0])
def test_the_printed_bound_holds_for_top_sets(row: tuple[str, np.ndarray, np.ndarray]) -> None:
    for n in range(1, len(row[1])):
        c = configuration(row[1], row[2], list(np.argsort(-row[1], kind="stable")[:n]))
        assert direct(c) <= float(theory.fixed_set_upper_printed(c, theory.farthest(c))) + scale(c)


def test_the_printed_bound_fails_for_a_light_set() -> None:
    c = configuration(np.array([0.0, 1.0]), np.ones((2, 1)), [0])
    assert float(theory.distance(c)) == 1
    assert float(theory.fixed_set_upper_printed(c, theory.farthest(c))) == -1
    assert float(theory.fixed_set_upper_any(c, theory.farthest(c))) == 1


@pytest.mark.parametrize(("length", "expected"), [(16, 3.5), (256, 63.5), (4096, 1023.5)])
def test_the_distance_does_not_collapse_when_the_set_is_half_the_row(length: int, expected: float) -> None:
    c = configuration(np.full(length, 1 / length), np.ones((length, 1)), list(range(length // 2)))
    assert float(theory.distance(c)) == pytest.approx(expected, rel=1e-12)


def test_under_vanishing_weights_the_distance_is_bounded_in_length() -> None:
    generator = np.random.default_rng(3)
    for length in (13, 101, 997):
        weights = generator.uniform(1, 2, length)
        weights /= weights.sum()
        c = configuration(weights, generator.normal(size=(length, 3)), list(np.argsort(-weights)[:5]))
        share = c.weights.amax(-1) * length
        assert float(theory.distance(c)) <= float(theory.vanishing_upper(c, share))


def test_d1_by_definition_agrees_with_the_fast_version_for_nested_sets() -> None:
    generator = torch.Generator().manual_seed(5)
    weights = torch.rand(2, 3, 11, generator=generator, dtype=torch.float64)
    vectors = torch.randn(2, 11, 7, generator=generator, dtype=torch.float64)
    visible = torch.ones_like(weights, dtype=torch.bool)
    c = Configuration(weights, vectors, visible, top_sets(weights, visible, [1, 3, 5]))
    torch.testing.assert_close(theory.farthest(c), farthest_of_top_sets(c), rtol=1e-12, atol=1e-12)


def test_keys_that_are_not_visible_do_not_count() -> None:
    generator = np.random.default_rng(7)
    weights, vectors = generator.dirichlet(np.ones(5)), generator.normal(size=(5, 3))
    small = configuration(weights, vectors, [1, 3])
    hidden = configuration(np.append(weights, 0), np.vstack([vectors, 99 * np.ones(3)]), [1, 3])
    visible = hidden.visible.clone()
    visible[..., -1] = False
    hidden = replace(hidden, visible=visible)
    for bound in (theory.fixed_set_upper_split, theory.fixed_set_upper_triangle, theory.fixed_set_lower):
        assert float(bound(hidden)) == pytest.approx(float(bound(small)), rel=1e-12)
    assert float(theory.farthest(hidden)) == pytest.approx(float(theory.farthest(small)), rel=1e-12)
