"""The oracle of the protocol against cases computed by hand."""

from __future__ import annotations

import math

import numpy as np
import protocol_oracle as oracle
import pytest

# A causal head of three tokens: a row's weights are equal over its keys, and every vector is the number 1.
WEIGHTS = np.array([[1, 0, 0], [1 / 2, 1 / 2, 0], [1 / 3, 1 / 3, 1 / 3]])
CAUSAL = np.tril(np.ones((3, 3), dtype=bool))
ONES = np.ones((3, 1))


def test_distance_literal_counts_the_keys_a_row_cannot_see() -> None:
    """N = 1: d~ = 2 x 1; then 0 and 1/2; then 0 and 0. Their mean is (2 + 1/2 + 0)/3."""
    columns = oracle.distance_columns(WEIGHTS, CAUSAL, ONES, 1, "literal")
    assert columns["rows"] == 3
    assert columns["distance"] == pytest.approx(2.5 / 3)
    # Bound: d1 = 0, so abar (L-N) - (1-abar) with L = 3: 2; 1 - 1/2; 2/3 - 2/3.
    assert columns["bound_printed"] == pytest.approx(2.5 / 3)
    # xbar = 1, p = 1/2, factor 2/3. Row 1: |1.5-1| + 2|0.5-1| = 1.5; row 2: 0 + 0 + 0.5; row 3: 3|1/3+1/2-1| = 0.5.
    assert columns["expected_printed"] == pytest.approx(2 / 3 * 2.5 / 3)
    # mu = 1.5 y - 0.5. Row 1: 1 + 2 x 0.5; row 2: 2 x 0.25 + 0.5; row 3: 0.
    assert columns["expected_lower"] == pytest.approx(2 / 3 * 3 / 3)


def test_distance_visible_leaves_out_short_rows() -> None:
    """N = 1: the rows of two and of three equal tokens, both with d~ = 0 and all expectations E = (L-N)(N-1)/L = 0."""
    columns = oracle.distance_columns(WEIGHTS, CAUSAL, ONES, 1, "visible")
    assert columns["rows"] == 2
    assert columns["distance"] == columns["expected_lower"] == pytest.approx(0, abs=1e-15)
    # Row of two, p = 1: factor 1/2, 2 x |1/2 + 1 - 1| = 1. Row of three, p = 1/2: factor 2/3, 3 x 1/6.
    assert columns["expected_printed"] == pytest.approx((1 / 2 + 1 / 3) / 2)
    assert oracle.distance_columns(WEIGHTS, CAUSAL, ONES, 3, "visible") == {"rows": 0}


def test_e1_brackets_the_mean_over_every_set() -> None:
    rng = np.random.default_rng(5)
    a, x = rng.dirichlet(np.ones(5)), rng.standard_normal((5, 3))
    y = a[:, None] * x
    pairs = [(i, j) for i in range(5) for j in range(i)]
    mean = np.mean([sum(np.linalg.norm(y[k] - y[i] - y[j]) for k in range(5) if k not in (i, j)) for i, j in pairs])
    row = oracle.distance_row(a, x, 2)
    assert row["expected_lower"] <= mean <= row["expected_upper"]


def test_separability_of_orthonormal_vectors_is_one_where_weights_are_positive() -> None:
    """N = 2, literal: row 1 selects one zero, which lies on the closed ball only (r = |s|)."""
    columns = oracle.separability_columns(WEIGHTS, CAUSAL, np.eye(3), 2, "literal")
    assert columns["separability"] == pytest.approx((1 / 2 + 1 + 1) / 3)
    assert columns["separability_closed"] == 1
    visible = oracle.separability_columns(WEIGHTS, CAUSAL, 7 * np.eye(3), 2, "visible")
    assert (visible["separability"], visible["rows"]) == (1, 1)
    # delta = sqrt 2, so xi = 1/3 for both tokens; s = (1, 1, 0)/3, r = sqrt(3)/3.
    assert visible["lower_printed"] == pytest.approx(1 - 1 / math.sqrt(3))
    assert visible["upper_printed"] == pytest.approx(math.exp(-((math.sqrt(3) - 1) ** 2) / 144))


def test_gradient_of_two_tied_logits() -> None:
    """The direction (1, -1)/sqrt 2 on two equal logits at T = 1 moves both weights by sigma(sqrt 2 eps) - 1/2."""
    logits, visible = np.zeros((2, 2)), np.tril(np.ones((2, 2), dtype=bool))
    normals = np.array([[3.0, 4.0], [1.0, -1.0]])
    step = 0.1
    weight = 1 / (1 + math.exp(-math.sqrt(2) * step))
    expected = math.sqrt(2) * (weight - 1 / 2) / step / 2  # the row of one key counts as zero
    for reading in ("literal", "visible"):
        assert oracle.random_gradient(logits, visible, normals, 1.0, step, reading) == pytest.approx(expected)
    assert oracle.worst_gradient(logits, visible, 1.0, step) == pytest.approx(expected)


def test_a_literal_direction_spends_length_on_keys_without_effect() -> None:
    logits, normals = np.zeros((2, 4)), np.array([[1.0, -1.0, 1.0, 1.0]] * 2)
    visible = np.array([[True, True, False, False]] * 2)
    literal, seen = (
        oracle.random_gradient(logits, visible, normals, 1.0, 1e-6, reading) for reading in ("literal", "visible")
    )
    assert literal == pytest.approx(seen / math.sqrt(2), rel=1e-5)


def test_critical_sizes() -> None:
    """Ten values against ten larger ones are rejected, against themselves accepted; -1 of the paper is None."""
    low, high = np.arange(10.0), np.arange(100.0, 110.0)
    distance = np.array([low, low, low, low])
    assert oracle.critical_sizes(distance, np.array([high, low, high, low]), [1, 2, 3, 4], 0.05) == (2, 4)
    assert oracle.critical_sizes(distance, np.array([high] * 4), [1, 2, 3, 4], 0.01) == (None, None)
