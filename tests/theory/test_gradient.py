"""Lemma 2, Corollary 3 and finite steps against numpy's eigenvalues."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from attnscope.theory import gradient

FAMILIES = {
    "exp": (np.exp, np.exp),
    "sharp exp": (lambda z: np.exp(5 * z), lambda z: 5 * np.exp(5 * z)),
    "softplus": (lambda z: np.log1p(np.exp(z)), lambda z: 1 / (1 + np.exp(-z))),
    "sigmoid": (lambda z: 1 / (1 + np.exp(-z)), lambda z: np.exp(-z) / (1 + np.exp(-z)) ** 2),
    "1 + square": (lambda z: 1 + z**2, lambda z: 2 * z),
}


def rows(seed: int) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    sizes = (2, 3, 5, 7, 13, 31)
    return [scale * generator.normal(size=n) for n in sizes for scale in (0.1, 1, 4)] + [np.zeros(n) for n in sizes]


def numeric_jacobian(f: object, slope: object, z: np.ndarray) -> np.ndarray:
    values, slopes = f(z), slope(z)  # type: ignore[operator]
    total = values.sum()
    return np.diag(slopes) / total - np.outer(values, slopes) / total**2


@pytest.mark.parametrize("name", FAMILIES)
def test_corrected_jacobian_bounds_hold_for_separable_normalizers(name: str) -> None:
    f, slope = FAMILIES[name]
    for z in rows(1):
        exact = numeric_jacobian(f, slope, z)
        values, slopes = torch.from_numpy(f(z)), torch.from_numpy(slope(z))
        weights, steep = values / values.sum(), slopes / values
        np.testing.assert_allclose(gradient.jacobian(values, slopes).numpy(), exact, rtol=1e-9, atol=1e-12)
        norm, entry = np.linalg.norm(exact, 2), np.abs(exact).max()
        slack = 1e-12 * float(steep.abs().amax())
        for bound in (
            gradient.separable_bound(weights, steep),
            gradient.separable_bound_projector(values, slopes),
            gradient.separable_bound_frobenius(weights, steep),
        ):
            assert norm <= float(bound) * (1 + 1e-9) + slack
        assert entry <= float(gradient.separable_bound_entry(steep)) * (1 + 1e-9) + slack
        assert entry <= float(gradient.lemma_2_printed(values, slopes)) * (1 + 1e-9) + slack


@pytest.mark.parametrize(("length", "ratio"), [(64, 1.25), (256, 2.40), (1024, 4.76)])
def test_lemma_2_fails_for_the_norm_of_a_linear_normalizer(length: int, ratio: float) -> None:
    values = torch.ones(length, dtype=torch.float64)
    values[0] = length / 2
    slopes = torch.ones_like(values)
    norm = torch.linalg.matrix_norm(gradient.jacobian(values, slopes), 2)
    assert float(norm / gradient.lemma_2_printed(values, slopes)) == pytest.approx(ratio, abs=0.01)


def test_two_tied_logits_break_the_cap_of_sqrt_2() -> None:
    values = torch.ones(2, dtype=torch.float64)
    exact = gradient.jacobian(values, 10 * values)
    assert float(exact.abs().amax()) == pytest.approx(2.5)
    assert float(torch.linalg.matrix_norm(exact, 2)) == pytest.approx(5)
    assert float(gradient.softmax_bound_printed(torch.tensor(0.1))) == pytest.approx(math.sqrt(2))
    assert float(gradient.softmax_bound(torch.tensor(0.1))) == pytest.approx(5)


def test_h_is_the_supremum_given_the_largest_weight() -> None:
    for top in (0.35, 0.5, 0.6, 0.9, 0.999):
        attained = np.array([top, top, 1 - 2 * top]) if top <= 0.5 else np.array([top, 1 - top])
        sigma = np.diag(attained) - np.outer(attained, attained)
        bound = gradient.jacobian_bound(torch.from_numpy(attained))
        assert np.linalg.eigvalsh(sigma)[-1] == pytest.approx(float(bound), rel=1e-9)


def test_brackets_and_the_secular_root_agree_with_eigenvalues() -> None:
    for z in rows(2):
        weights = np.exp(z - z.max())
        weights /= weights.sum()
        exact = np.linalg.eigvalsh(np.diag(weights) - np.outer(weights, weights))[-1]
        alpha = torch.from_numpy(weights)
        assert float(gradient.jacobian_norm(alpha)) == pytest.approx(exact, rel=1e-9, abs=1e-15)
        assert float(gradient.jacobian_lower(alpha)) <= exact * (1 + 1e-9) + 1e-15
        assert exact <= float(gradient.jacobian_bound(alpha)) * (1 + 1e-9) + 1e-15


def test_the_range_bracket_is_attained_from_below() -> None:
    reach, t, length = 1.7, 0.6, 11
    z = np.full(length, -reach / t)
    z[:2] = 0
    weights = np.exp(z) / np.exp(z).sum()
    norm = np.linalg.eigvalsh(np.diag(weights) - np.outer(weights, weights))[-1] / t
    args = (torch.tensor(v, dtype=torch.float64) for v in (reach, t, float(length)))
    lower, upper = gradient.softmax_bound_of_range(*args)
    assert norm == pytest.approx(float(lower), rel=1e-9)
    assert norm <= float(upper)


@pytest.mark.parametrize("temperature", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("step", [0.001, 0.1, 10.0])
def test_the_finite_difference_supremum_is_attained_and_never_exceeded(temperature: float, step: float) -> None:
    def softmax(z: np.ndarray) -> np.ndarray:
        e = np.exp((z - z.max()) / temperature)
        return e / e.sum()

    tensors = torch.tensor(temperature, dtype=torch.float64), torch.tensor(step, dtype=torch.float64)
    bound = float(gradient.finite_difference_bound(*tensors))
    direction = np.array([1, -1]) / math.sqrt(2)
    start = -step * direction / 2
    attained = np.linalg.norm(softmax(start + step * direction) - softmax(start)) / step
    assert attained == pytest.approx(bound, rel=1e-6)
    generator = np.random.default_rng(9)
    for _ in range(50):
        z, move = generator.normal(size=7), generator.normal(size=7)
        move *= step / np.linalg.norm(move)
        assert np.linalg.norm(softmax(z + move) - softmax(z)) / step <= bound * (1 + 1e-9) + 1e-12


def test_the_two_logit_example_has_slope_three_quarters_sqrt_2() -> None:
    step, t = torch.tensor(1e-4, dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64)
    first, second = gradient.two_logit_rows(torch.tensor(40.0, dtype=torch.float64), step, 13)
    assert float((first - second).norm()) == pytest.approx(math.sqrt(5) * 1e-4)
    response = (torch.softmax(first / t, -1) - torch.softmax(second / t, -1)).norm()
    assert float(response * t / step) == pytest.approx(1.0607, rel=1e-3)
    assert float(response) == pytest.approx(float(gradient.two_logit_response(step, t)), rel=1e-6)
    assert float(gradient.two_logit_response_printed(step, t)) / float(response) == pytest.approx(4 / 3, rel=1e-3)
    # The response saturates at sqrt 2.
    cold = torch.tensor(1e-6, dtype=torch.float64)
    assert float(gradient.two_logit_response(step, cold)) == pytest.approx(math.sqrt(2))


@pytest.mark.parametrize("length", [2, 17, 1024])
@pytest.mark.parametrize("kind", ["two live logits", "normal logits", "equal logits"])
def test_a_random_direction_sees_the_frobenius_norm_over_the_root_of_the_length(length: int, kind: str) -> None:
    """The mean of |J v| over 4,000 random unit v lies in its range, up to five standard errors."""
    generator = np.random.default_rng(3)
    logits = {
        "two live logits": np.where(np.arange(length) < 2, 0.0, -60.0),
        "normal logits": 2 * generator.normal(size=length),
        "equal logits": np.zeros(length),
    }[kind]
    weights = np.exp(logits) / np.exp(logits).sum()
    v = generator.normal(size=(4000, length))
    v /= np.linalg.norm(v, axis=1, keepdims=True)
    seen = np.linalg.norm(weights * (v - (v @ weights)[:, None]), axis=1)
    mean, error = seen.mean(), 5 * seen.std() / math.sqrt(len(seen)) + 1e-12
    lower, upper = (float(side) for side in gradient.random_direction_bounds(torch.from_numpy(weights)))
    assert lower - error <= mean <= upper + error
    assert upper / lower < math.sqrt(math.pi / 2)
    if kind == "two live logits":  # J has rank one: the mean is the lower end, sqrt(2/(pi L)) of the norm 1/2
        assert mean == pytest.approx(lower, abs=error)
        assert lower == pytest.approx(0.5 * math.sqrt(2 / math.pi / length), rel=0.6 / length)
