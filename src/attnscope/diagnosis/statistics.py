"""Means with confidence intervals, agreement of labels and power laws, for rows that are not independent.

Neighboring rows of a window attend to nearly the same keys, so they are not independent samples. Intervals come from a
block bootstrap: runs of neighboring rows are drawn with replacement. They say how far a mean could be off for other
rows of the same kind of text, not for other texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

BLOCK = 8  # neighboring rows drawn together
DRAWS = 1000
LEVEL = 0.95


class Summary(NamedTuple):
    """Mean, standard deviation over rows, and the confidence interval of the mean."""

    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def bootstrap(values: Sequence[NDArray[np.float64]], seed: int = 0) -> Summary:
    """Summary over the rows of several windows, each (..., rows), with a bootstrap interval; NaN is left out."""
    rows = np.concatenate(values, -1)
    means = drawn_means(values, seed)
    tail = (1 - LEVEL) / 2
    empty = np.logical_not(np.isfinite(rows).any(-1, keepdims=True))
    filled = np.where(empty, 0, rows)
    low, high = np.nanquantile(np.where(empty, 0, means), [tail, 1 - tail], axis=-1)
    missing = np.where(empty, np.nan, 0)[..., 0]
    return Summary(np.nanmean(filled, -1) + missing, np.nanstd(filled, -1) + missing, low + missing, high + missing)


def drawn_means(values: Sequence[NDArray[np.float64]], seed: int = 0) -> NDArray[np.float64]:
    """Bootstrap means (..., draws) over runs of neighboring rows; the same runs for all leading axes."""
    blocks = [block for window in values for block in _blocks(window)]
    sums = np.stack([np.nansum(block, -1) for block in blocks], -1)
    counts = np.stack([np.isfinite(block).sum(-1) for block in blocks], -1)
    drawn = np.random.default_rng(seed).integers(len(blocks), size=(DRAWS, len(blocks)))
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


def growth(lengths: NDArray[np.float64], values: NDArray[np.float64], seed: int = 0) -> Growth | None:
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
    drawn = np.random.default_rng(seed).integers(len(blocks), size=(DRAWS, len(blocks)))
    count, sum_x, sum_y, square, product = sums[drawn].sum(1).T
    variance = square - sum_x**2 / count
    varied = variance > 1e-9 * square  # blocks of one length alone have no slope
    slopes = (product - sum_x * sum_y / count)[varied] / variance[varied]
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(slopes, [tail, 1 - tail])
    return Growth(float(exponent), float(low), float(high), float(np.exp(intercept)))
