"""Intervals over windows: of a median, of a share, and of a power law.

What is measured on one window has no interval, whatever it is: its ends are then infinite, and no verdict follows.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float

RESAMPLES = 2000
DEVIATIONS = 1.959964  # of a normal law, on either side of 95 %


class Spread(NamedTuple):
    """A statistic over windows with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def known(self) -> bool:
        """Whether there is an interval."""
        return math.isfinite(self.low) and math.isfinite(self.high)


def bootstrap(values: Float[np.ndarray, " windows"], seed: int = 0) -> Spread:
    """The median with its interval from resampled windows."""
    value = float(np.median(values))
    if len(values) < 2:
        return Spread(value, -math.inf, math.inf)
    draw = np.random.default_rng(seed).integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.quantile(np.median(values[draw], axis=1), [0.025, 0.975])
    return Spread(value, float(low), float(high))


def coverage_at_most(windows: int) -> float:
    """How often the range of all windows, the widest bootstrap interval there is, has the true median in it."""
    return 1 - 2.0 ** (1 - windows)


def proportion(hits: float, count: int) -> Spread:
    """A share of windows with its Wilson interval; one window has none."""
    share = hits / count
    if count < 2:
        return Spread(share, -math.inf, math.inf)
    z = DEVIATIONS**2 / count
    half = math.sqrt(z * share * (1 - share) + z * z / 4)
    return Spread(share, max((share + z / 2 - half) / (1 + z), 0.0), min((share + z / 2 + half) / (1 + z), 1.0))


class PowerLaw(NamedTuple):
    """y = factor x^exponent, fitted on logarithms, with bootstrap intervals over windows."""

    exponent: Spread
    factor: Spread


def power_law(
    x: Float[np.ndarray, " points"], y: Float[np.ndarray, "windows points"], seed: int = 0
) -> PowerLaw | None:
    """Fit the medians over windows; None with fewer than three points or a value that has no logarithm."""
    if len(x) < 3 or not (np.isfinite(y).all() and (y > 0).all()):
        return None
    log_x = np.log(x)
    centred = log_x - log_x.mean()

    def fit(middle: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        slope = np.log(middle) @ centred / (centred @ centred)
        return slope, np.exp(np.log(middle).mean(-1) - slope * log_x.mean())

    value = fit(np.median(y, axis=0))
    low, high = np.array([-np.inf, -np.inf]), np.array([np.inf, np.inf])
    if len(y) > 1:
        draw = np.random.default_rng(seed).integers(0, len(y), (RESAMPLES, len(y)))
        low, high = np.quantile(np.stack(fit(np.median(y[draw], axis=1))), [0.025, 0.975], axis=1)
    exponent, factor = (Spread(float(value[k]), float(low[k]), float(high[k])) for k in range(2))
    return PowerLaw(exponent, factor)
