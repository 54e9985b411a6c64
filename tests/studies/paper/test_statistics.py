"""KS test, critical N and fits against scipy, loops and enumeration."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import stats

from attnscope.intervals import coverage_at_most, power_law_of_medians, proportion, window_bootstrap_median
from attnscope.studies.paper.every_n import critical_n, exact_p_values, largest_gaps, p_values


@pytest.mark.parametrize("n", [1, 2, 7, 36, 144, 270])
def test_ks_equals_scipy(n: int) -> None:
    """Fault 14: from one head to many."""
    random = np.random.default_rng(n)
    first = random.lognormal(size=(9, n))
    second = random.lognormal(size=(9, n)) * np.array([1, 1, 1.05, 1.2, 1.5, 2, 3, 10, 1e6])[:, None]
    for a, b, p in zip(first, second, p_values(first, second), strict=True):
        assert p == pytest.approx(stats.ks_2samp(a, b, method="exact").pvalue, rel=1e-9, abs=1e-14)


def test_ks_with_ties_equals_scipy() -> None:
    """Fault 14."""
    random = np.random.default_rng(3)
    first, second = random.integers(0, 5, (2, 20, 31)).astype(float)
    for a, b, gap in zip(first, second, largest_gaps(first, second), strict=True):
        assert gap / 31 == pytest.approx(stats.ks_2samp(a, b).statistic, abs=1e-12)


@pytest.mark.parametrize("n", [1, 2, 31])
@pytest.mark.parametrize("other", [7.0, 7.5])
def test_ks_of_constant_samples_equals_scipy(n: int, other: float) -> None:
    """Fault 14: heads that all give one number."""
    first, second = np.full((1, n), 7.0), np.full((1, n), other)
    expected = stats.ks_2samp(first[0], second[0], method="exact")
    assert largest_gaps(first, second)[0] / n == expected.statistic
    assert p_values(first, second)[0] == pytest.approx(expected.pvalue, rel=1e-9)


def test_exact_p_values_count_every_path() -> None:
    """All C(2n, n) orders of two samples of four, by brute force."""
    n = 4
    paths = [steps for steps in product((1, -1), repeat=2 * n) if sum(steps) == 0]
    gaps = [np.abs(np.cumsum(steps)).max() for steps in paths]
    counted = [np.mean(np.array(gaps) >= h) for h in range(n + 1)]
    assert exact_p_values(n) == pytest.approx(counted, abs=1e-14)


def test_critical_n_by_a_loop() -> None:
    """Fault 4: undefined where no N qualifies."""
    random = np.random.default_rng(0)
    for _ in range(200):
        n = np.arange(1, 12)
        p = random.choice([0.001, 0.5], size=len(n))
        first = next((int(k) for k, q in zip(n, p, strict=True) if q >= 0.01), None)
        persistent = next((int(n[i]) for i in range(len(n)) if all(p[i:] >= 0.01)), None)
        assert critical_n(p, n) == (first, persistent)


def test_a_power_law_is_recovered() -> None:
    lengths = np.array([32.0, 64, 128, 256])
    fit = power_law_of_medians(lengths, np.stack([0.06 * lengths**0.8] * 3))
    assert fit is not None
    assert fit.exponent == pytest.approx((0.8, 0.8, 0.8))
    assert fit.factor == pytest.approx((0.06, 0.06, 0.06))
    assert power_law_of_medians(lengths[:2], np.ones((3, 2))) is None


def test_the_bootstrap_interval_lies_within_the_values() -> None:
    values = np.array([1.0, 2, 3, 4, 100])
    spread = window_bootstrap_median(values)
    assert spread.value == 3
    assert 1 <= spread.low < 3 < spread.high <= 100


def test_one_window_has_no_interval() -> None:
    assert window_bootstrap_median(np.array([7.0])) == (7, -np.inf, np.inf)
    assert proportion(1, 1) == (1, -np.inf, np.inf)
    fit = power_law_of_medians(np.array([32.0, 64, 128]), np.array([[1.0, 2, 4]]))
    assert fit is not None
    assert fit.exponent == pytest.approx((1, -np.inf, np.inf))
    assert not fit.exponent.has_interval


@pytest.mark.parametrize(("hits", "count"), [(0, 8), (3, 8), (8, 8), (1, 2)])
def test_a_share_of_windows_has_wilsons_interval(hits: int, count: int) -> None:
    interval = stats.binomtest(hits, count).proportion_ci(0.95, method="wilson")
    assert proportion(hits, count) == pytest.approx((hits / count, interval.low, interval.high), abs=1e-6)


@pytest.mark.parametrize("windows", [2, 3, 6])
def test_few_windows_miss_the_median_as_often_as_coins_fall_alike(windows: int) -> None:
    above = np.array(list(product((False, True), repeat=windows)))  # each window above the median or not
    missed = (above.all(1) | ~above.any(1)).mean()
    assert coverage_at_most(windows) == pytest.approx(1 - missed)
