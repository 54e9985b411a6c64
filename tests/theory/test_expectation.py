"""Theorem 1(2) and Corollary 2 against the enumeration of every set."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from enumeration import configuration, distances, hostile_rows, left_out_powers

from attnscope.errors import InputError
from attnscope.theory import expectation
from attnscope.theory.configuration import Configuration

pytestmark = pytest.mark.pairwise

Row = tuple[str, np.ndarray, np.ndarray]
ROWS = [pytest.param(row, n, id=f"{row[0]}, N = {n}") for row in hostile_rows() for n in range(1, len(row[1]))]


def case(row: Row, n: int) -> tuple[Configuration, np.ndarray, float]:
    c = configuration(row[1], row[2], list(range(n)))
    values = distances(row[1], row[2], n)
    return c, values, 1e-10 * float(c.scaled_norms.sum()) * len(row[1])


@pytest.mark.parametrize(("row", "n"), ROWS)
def test_bounds_hold_for_the_exhaustive_expectation(row: Row, n: int) -> None:
    c, values, slack = case(row, n)
    mean = values.mean()
    lowers = expectation.random_set_lower(c), expectation.random_set_lower_moments(c)
    uppers = (
        expectation.random_set_upper(c),
        expectation.random_set_upper_global(c),
        expectation.random_set_lower(c) + expectation.random_set_epsilon_printed(c),
    )
    assert float(lowers[0]) <= float(lowers[1]) + slack
    for lower in lowers:
        assert float(lower) <= mean + slack
    for upper in uppers:
        assert mean <= float(upper) + slack
    assert values.var() <= float(expectation.random_set_variance_upper(c)) + slack * (mean + slack)
    assert (values**2).mean() <= float(expectation.random_set_second_moment_upper(c)) + slack * (mean + slack)


@pytest.mark.parametrize(("row", "n"), ROWS)
def test_peeling_tightens_both_sides_with_every_token(row: Row, n: int) -> None:
    c, values, slack = case(row, n)
    before = expectation.random_set_lower(c), expectation.random_set_upper(c)
    for depth in range(min(4, len(row[1])) + 1):
        lower, upper = expectation.random_set_peeled(c, depth)
        assert float(before[0]) - slack <= float(lower) <= values.mean() + slack
        assert values.mean() - slack <= float(upper) <= float(before[1]) + slack
        before = lower, upper


def test_peeling_all_tokens_is_exact() -> None:
    row = hostile_rows()[9]
    c, values, _ = case(row, 3)
    for side in expectation.random_set_peeled(c, 7):
        assert float(side) == pytest.approx(values.mean(), rel=1e-10)


def test_the_fourth_moment_bound_has_the_exact_moments() -> None:
    # The formula's m2 and m4 enter E3 as m2^(3/2)/m4^(1/2); enumeration gives the same bound.
    for _, weights, vectors in hostile_rows()[5:]:
        for n in range(1, len(weights)):
            first, second, fourth = (left_out_powers(weights, vectors, n, k) for k in (1, 2, 4))
            c = configuration(weights, vectors, list(range(n)))
            p = n / (len(weights) - 1)
            y = weights[:, None] * vectors
            means = np.linalg.norm((1 + p) * y - p * y.sum(0), axis=-1)
            safe = np.where(fourth > 0, fourth, 1)
            by_moments = np.where(fourth > 0, second**1.5 / safe**0.5, 0)
            assert (by_moments <= first + 1e-9 * (1 + first)).all()
            expected = (1 - n / len(weights)) * np.maximum(means, by_moments).sum()
            assert float(expectation.random_set_lower_moments(c)) == pytest.approx(expected, rel=1e-8, abs=1e-12)


@pytest.mark.parametrize(("length", "n"), [(4, 3), (10, 9), (7, 2), (11, 5)])
def test_identical_vectors_have_a_closed_expectation(length: int, n: int) -> None:
    weights, vectors = np.full(length, 1 / length), np.ones((length, 1))
    expected = (length - n) * (n - 1) / length
    c = configuration(weights, vectors, list(range(n)))
    exact = expectation.expectation_exhaustive(c.weights, c.vectors, n)
    assert float(exact) == pytest.approx(expected, abs=1e-12)
    assert float(expectation.random_set_lower(c)) == pytest.approx(expected, abs=1e-12)


def test_the_printed_main_term_is_refuted_by_four_equal_tokens() -> None:
    c = configuration(np.full(4, 0.25), np.ones((4, 1)), [0, 1, 2])
    assert float(expectation.random_set_main_printed(c)) == pytest.approx(0.25)
    assert float(expectation.random_set_epsilon_printed(c)) == pytest.approx(0.1875)
    assert float(expectation.expectation_exhaustive(c.weights, c.vectors, 3)) == pytest.approx(0.5)


def test_a_negative_jensen_gap_exposes_the_misprint() -> None:
    c = configuration(np.full(100, 0.01), np.ones((100, 1)), list(range(5)))
    assert float(expectation.random_set_main_printed(c)) == pytest.approx(89.25, abs=0.01)
    assert float(expectation.random_set_lower(c)) == pytest.approx(3.8)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_orthonormal_vectors_make_epsilon_large_not_small(n: int) -> None:
    c = configuration(np.full(11, 1 / 11), np.eye(11), list(range(n)))
    exact = float(expectation.expectation_exhaustive(c.weights, c.vectors, n))
    assert exact == pytest.approx((1 - n / 11) * math.sqrt(n + 1), rel=1e-12)
    assert float(expectation.random_set_upper(c)) == pytest.approx(exact, rel=1e-12)


def test_corollary_2_few_is_off_by_any_factor_up_to_n_plus_one() -> None:
    length, n = 23, 2
    one_hot = configuration(np.eye(length)[0], np.ones((length, 1)), list(range(n)))
    claim = float(expectation.corollary_2_small_printed(one_hot))
    exact = float(expectation.expectation_exhaustive(one_hot.weights, one_hot.vectors, n))
    assert exact / claim == pytest.approx((1 - n / length) * (n + 1), rel=1e-12)
    assert float(expectation.random_set_upper_global(one_hot)) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("row", hostile_rows(), ids=lambda row: row[0])
def test_the_expectation_with_one_token_left_out_is_exact(row: Row) -> None:
    c, values, slack = case(row, len(row[1]) - 1)
    assert float(expectation.last_token_expectation(c)) == pytest.approx(values.mean(), rel=1e-9, abs=slack)


def test_drawn_sets_agree_with_every_set() -> None:
    generator = torch.Generator().manual_seed(2)
    weights = torch.rand(3, 2, 7, generator=generator, dtype=torch.float64)
    vectors = torch.randn(3, 7, 5, generator=generator, dtype=torch.float64)
    exact = expectation.expectation_exhaustive(weights, vectors, 3)
    drawn = expectation.expectation_drawn(weights, vectors, 3, 2000, generator)
    assert ((drawn.mean - exact).abs() <= 4 * drawn.error).all()


def test_the_closed_forms_hold_on_a_long_row_by_sampling() -> None:
    generator = torch.Generator().manual_seed(4)
    weights = torch.softmax(3 * torch.randn(1, 257, generator=generator, dtype=torch.float64), -1)
    vectors = torch.randn(257, 11, generator=generator, dtype=torch.float64)
    c = configuration(weights[0].numpy(), vectors.numpy(), list(range(19)))
    drawn = expectation.expectation_drawn(weights, vectors, 19, 1500, generator)
    margin = 4 * float(drawn.error)
    for depth in (0, 5):
        lower, upper = expectation.random_set_peeled(c, depth)
        assert float(lower) - margin <= float(drawn.mean) <= float(upper) + margin


def test_too_many_sets_are_refused() -> None:
    with pytest.raises(InputError, match="draw sets instead"):
        expectation.every_distance(torch.ones(1, 40, dtype=torch.float64), torch.ones(40, 1, dtype=torch.float64), 20)
