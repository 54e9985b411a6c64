"""Share of its keys that each head keeps: for an error that all heads may make, or within a budget for the model.

A head's share is measured at several errors and interpolated between them by power laws.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from attnscope.diagnosis.observing import Head, WindowRows

ERRORS = (0.02, 0.05, 0.1, 0.2, 0.4)
_STEPS = 40  # halvings of the interval of errors


class Budget(NamedTuple):
    """The share of its keys that every head keeps, and the error for which it is enough."""

    error: float
    shares: dict[Head, float]


def keys_column(error: float) -> str:
    """Name of the column with the number of keys that is enough for an error."""
    return f"keys_enough_{error:g}"


def mean_share(windows: Sequence[WindowRows], head: Head, column: str) -> float:
    """Mean over rows of the share of its keys that a head needs."""
    return float(np.mean(np.concatenate([w.rows[head][column] / w.rows[head]["length"] for w in windows])))


def budget_by_error(windows: Sequence[WindowRows], heads: Iterable[Head], error: float) -> Budget:
    """The share that every head needs for the error that `keys_enough` was measured at."""
    return Budget(error, {head: mean_share(windows, head, "keys_enough") for head in heads})


def budget_by_share(windows: Sequence[WindowRows], heads: Iterable[Head], share: float) -> Budget:
    """The smallest error, the same for all heads, at which they need this share of the keys in the mean.

    Limited to the range of `ERRORS`: heads that need less even at the smallest error keep less.
    """
    heads = list(heads)
    known = np.log([[mean_share(windows, head, keys_column(error)) for error in ERRORS] for head in heads])
    errors = np.log(ERRORS)

    def shares(at: float) -> list[float]:
        return [float(np.exp(np.interp(at, errors, line))) for line in known]

    low, high = float(errors[0]), float(errors[-1])
    if np.mean(shares(low)) > share:
        for _ in range(_STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if np.mean(shares(middle)) > share else (low, middle)
    else:
        high = low
    return Budget(float(np.exp(high)), dict(zip(heads, shares(high), strict=True)))
