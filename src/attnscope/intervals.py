"""Means, medians and shares with confidence intervals, for rows and windows that are not independent, and power laws.

| drawn with replacement | functions |
|---|---|
| runs of neighboring rows, of all windows together | `block_bootstrap`, `block_bootstrap_means`, `power_law_of_rows` |
| windows | `window_bootstrap_median`, `window_bootstrap_deviation`, `power_law_of_medians` |

Neighboring rows of a window attend to nearly the same keys, so they are not independent samples: runs of them are
drawn. An interval says how far a number could be off for other rows of the same kind of text, not for other texts. A
single window has no interval over windows: the ends are infinite, and there is no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from jaxtyping import Float

BLOCK = 8  # neighboring rows drawn together
DRAWS, RESAMPLES = 1000, 2000  # for means, for medians
LEVEL = 0.95
DEVIATIONS = 1.959964  # half the width of the central 95% of a normal distribution, in standard deviations


def evenly_spaced(count: int, most: int) -> tuple[int, ...]:
    """Indices of at most `most` of `count` things, evenly spaced, the last one included."""
    most = min(count, most)
    return tuple(-(-(i + 1) * count // most) - 1 for i in range(most))


def _drawn(count: int, draws: int, seed: int) -> NDArray[np.int64]:
    """Indices of as many things as there are, drawn with replacement, in each of several draws."""
    return np.random.default_rng(seed).integers(count, size=(draws, count))


class Summary(NamedTuple):
    """Mean, standard deviation over rows, and the confidence interval of the mean."""

    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def block_bootstrap(values: Sequence[NDArray[np.float64]], seed: int = 0) -> Summary:
    """Summary over the rows of several windows, each (..., rows), with a bootstrap interval; NaN is left out."""
    rows = np.concatenate(values, -1)
    means = block_bootstrap_means(values, seed)
    tail = (1 - LEVEL) / 2
    empty = np.logical_not(np.isfinite(rows).any(-1, keepdims=True))
    filled = np.where(empty, 0, rows)
    low, high = np.nanquantile(np.where(empty, 0, means), [tail, 1 - tail], axis=-1)
    missing = np.where(empty, np.nan, 0)[..., 0]
    return Summary(np.nanmean(filled, -1) + missing, np.nanstd(filled, -1) + missing, low + missing, high + missing)


def block_bootstrap_means(values: Sequence[NDArray[np.float64]], seed: int = 0) -> NDArray[np.float64]:
    """Bootstrap means (..., draws) over runs of neighboring rows; the same runs for all leading axes."""
    blocks = [block for window in values for block in _blocks(window)]
    sums = np.stack([np.nansum(block, -1) for block in blocks], -1)
    counts = np.stack([np.isfinite(block).sum(-1) for block in blocks], -1)
    drawn = _drawn(len(blocks), DRAWS, seed)
    number = counts[..., drawn].sum(-1)
    return np.where(number > 0, sums[..., drawn].sum(-1) / np.maximum(number, 1), np.nan)


def _blocks(window: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """Runs of about `BLOCK` neighboring rows."""
    count = max(1, window.shape[-1] // BLOCK)
    return list(np.array_split(window, count, axis=-1))


def agreement(first: Sequence[str], second: Sequence[str]) -> tuple[float, float]:
    """The share of equal labels, and Cohen's kappa: (share - chance) / (1 - chance).

    Chance is the expected agreement of independent labelings with these frequencies. Where it is certain (one label
    everywhere, in both) kappa is 1.
    """
    a, b = np.asarray(first), np.asarray(second)
    share = float(np.mean(a == b))
    chance = float(sum(np.mean(a == label) * np.mean(b == label) for label in np.unique(np.concatenate([a, b]))))
    return share, 1.0 if chance == 1 else (share - chance) / (1 - chance)


class Growth(NamedTuple):
    """A power law, value = scale * length^exponent, with the interval of its exponent."""

    exponent: float
    low: float
    high: float
    scale: float


def power_law_of_rows(lengths: NDArray[np.float64], values: NDArray[np.float64], seed: int = 0) -> Growth | None:
    """Power law by least squares of ln value on ln length, rows in order, with a block bootstrap of the exponent.

    None for fewer than two different lengths.
    """
    x, y = np.log(lengths), np.log(values)
    if len(np.unique(lengths)) < 2:
        return None
    exponent, intercept = np.polyfit(x, y, 1)
    x, y = x - x.mean(), y - y.mean()
    blocks = np.array_split(np.arange(len(x)), max(2, len(x) // BLOCK))
    sums = np.array([[len(b), x[b].sum(), y[b].sum(), x[b] @ x[b], x[b] @ y[b]] for b in blocks])
    drawn = _drawn(len(blocks), DRAWS, seed)
    count, sum_x, sum_y, square, product = sums[drawn].sum(1).T
    variance = square - sum_x**2 / count
    varied = variance > 1e-9 * square  # blocks of one length alone have no slope
    slopes = (product - sum_x * sum_y / count)[varied] / variance[varied]
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(slopes, [tail, 1 - tail])
    return Growth(float(exponent), float(low), float(high), float(np.exp(intercept)))


class Estimate(NamedTuple):
    """A statistic over windows with its 95% interval."""

    value: float
    low: float
    high: float

    @property
    def has_interval(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)


def window_bootstrap_median(values: Float[np.ndarray, " windows"], seed: int = 0) -> Estimate:
    """The median over windows with its bootstrap interval."""
    value = float(np.median(values))
    if len(values) < 2:
        return Estimate(value, -math.inf, math.inf)
    draw = _drawn(len(values), RESAMPLES, seed)
    low, high = np.quantile(np.median(values[draw], axis=1), [0.025, 0.975])
    return Estimate(value, float(low), float(high))


def window_bootstrap_deviation(
    values: Float[np.ndarray, "windows heads measures"], scaled: Callable[[np.ndarray], np.ndarray]
) -> Float[np.ndarray, "heads measures"]:
    """The standard deviation of the mean over windows, on another scale."""
    chosen = _drawn(len(values), DRAWS, 0)
    counts = np.apply_along_axis(np.bincount, 1, chosen, minlength=len(values)) / len(values)
    deviation: NDArray[np.float64] = scaled(np.tensordot(counts, values, 1)).std(0)
    return deviation


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


def power_law_of_medians(
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
        draw = _drawn(len(y), RESAMPLES, seed)
        low, high = np.quantile(np.stack(fit(np.median(y[draw], axis=1))), [0.025, 0.975], axis=1)
    exponent, factor = (Estimate(float(value[k]), float(low[k]), float(high[k])) for k in range(2))
    return PowerLaw(exponent, factor)
