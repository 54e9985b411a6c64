"""Confidence intervals over windows: of a median, of a share, and of a power law.

A single window has no interval: the ends are infinite, and there is no verdict.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float

RESAMPLES = 2000
DEVIATIONS = 1.959964  # half the width of the central 95% of a normal distribution, in standard deviations


class Estimate(NamedTuple):
    """A statistic over windows with its 95% interval."""

    value: float
    low: float
    high: float

    @property
    def has_interval(self) -> bool:
        """Whether the interval is finite."""
        return math.isfinite(self.low) and math.isfinite(self.high)


def bootstrap(values: Float[np.ndarray, " windows"], seed: int = 0) -> Estimate:
    """The median over windows with its bootstrap interval."""
    value = float(np.median(values))
    if len(values) < 2:
        return Estimate(value, -math.inf, math.inf)
    draw = np.random.default_rng(seed).integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.quantile(np.median(values[draw], axis=1), [0.025, 0.975])
    return Estimate(value, float(low), float(high))


def paired_mean(differences: Float[np.ndarray, " windows"]) -> Estimate:
    """The mean of paired differences over windows with its 95% interval by Student's t distribution."""
    value, count = float(np.mean(differences)), len(differences)
    if count < 3:
        return Estimate(value, -math.inf, math.inf)
    half = student_deviations(count - 1) * float(np.std(differences, ddof=1)) / math.sqrt(count)
    return Estimate(value, value - half, value + half)


def student_deviations(freedom: int) -> float:
    """Half the width of the central 95% of a t distribution: exact up to two degrees, then Fisher's expansion."""
    if freedom == 1:
        return math.tan(math.pi * 0.95 / 2)
    if freedom == 2:
        return 0.95 * math.sqrt(2 / (1 - 0.95**2))
    z, n = DEVIATIONS, float(freedom)
    terms = (
        z,
        (z**3 + z) / (4 * n),
        (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2),
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3),
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * n**4),
    )
    return sum(terms)


def coverage_at_most(windows: int) -> float:
    """The probability that the range of all windows, the widest bootstrap interval, contains the true median."""
    return 1 - 2.0 ** (1 - windows)


def proportion(hits: float, count: int) -> Estimate:
    """A share of windows with its Wilson interval."""
    share = hits / count
    if count < 2:
        return Estimate(share, -math.inf, math.inf)
    z = DEVIATIONS**2 / count
    half = math.sqrt(z * share * (1 - share) + z * z / 4)
    return Estimate(share, max((share + z / 2 - half) / (1 + z), 0.0), min((share + z / 2 + half) / (1 + z), 1.0))


class PowerLaw(NamedTuple):
    """y = factor x^exponent, fitted on logarithms, with bootstrap intervals over windows."""

    exponent: Estimate
    factor: Estimate


def power_law(
    x: Float[np.ndarray, " points"], y: Float[np.ndarray, "windows points"], seed: int = 0
) -> PowerLaw | None:
    """A power law fitted to the medians over windows; None with fewer than three points or non-positive values."""
    if len(x) < 3 or not (np.isfinite(y).all() and (y > 0).all()):
        return None
    log_x = np.log(x)
    centred = log_x - log_x.mean()

    def fit(medians: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        slope = np.log(medians) @ centred / (centred @ centred)
        return slope, np.exp(np.log(medians).mean(-1) - slope * log_x.mean())

    value = fit(np.median(y, axis=0))
    low, high = np.array([-np.inf, -np.inf]), np.array([np.inf, np.inf])
    if len(y) > 1:
        draw = np.random.default_rng(seed).integers(0, len(y), (RESAMPLES, len(y)))
        low, high = np.quantile(np.stack(fit(np.median(y[draw], axis=1))), [0.025, 0.975], axis=1)
    exponent, factor = (Estimate(float(value[k]), float(low[k]), float(high[k])) for k in range(2))
    return PowerLaw(exponent, factor)
