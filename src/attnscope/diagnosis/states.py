"""The state of a head: which simpler rule would give nearly the same output.

A row's error under a rule is |c - c_rule| / |c| in the space of the head's value vectors, a head's the mean over its
rows. (Root mean squares and medians were tried too: the labels of fresh windows agreed with them a little less.)
The states are tried in order, and the first that fits is the head's:

| state | the rule that is enough |
|---|---|
| sink-bound | the first key alone |
| constant | the head's mean output, whatever the row |
| local | the first key and the nearest ones |
| broad | none: even the top share of its keys is not enough |
| selective | the top share of its keys |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from attnscope.diagnosis.observing import Head, WindowRows
    from attnscope.diagnosis.thresholds import Thresholds

State = Literal["sink-bound", "constant", "local", "broad", "selective"]
STATES: tuple[State, ...] = get_args(State)


@dataclass(frozen=True)
class Errors:
    """Relative errors of a head's output under the four rules: single numbers, or one for each row."""

    first_key: NDArray[np.float64]
    mean_output: NDArray[np.float64]
    local: NDArray[np.float64]
    top: NDArray[np.float64]


def head_errors(windows: Sequence[WindowRows], head: Head) -> tuple[Errors, Errors, NDArray[np.float64]]:
    """A head's errors in the mean over its rows, row by row, and its mean output."""
    columns = {
        name: np.concatenate([window.rows[head][name] for window in windows])
        for name in ("square", "square_first_key", "square_local", "square_top")
    }
    outputs = np.concatenate([window.contexts[head] for window in windows]).astype(np.float64)
    mean = outputs.mean(0)
    columns["square_mean"] = np.square(outputs - mean).sum(-1)
    order = ("square_first_key", "square_mean", "square_local", "square_top")
    each = Errors(*(ratio(columns[name], columns["square"]) for name in order))
    together = Errors(*(errors.mean() for errors in (each.first_key, each.mean_output, each.local, each.top)))
    return together, each, mean


def ratio(error: NDArray[np.float64], size: NDArray[np.float64]) -> NDArray[np.float64]:
    """sqrt(error / size) of squares; an output of zero is met by any rule that puts out zero, and by no other."""
    whole = np.where(size > 0, size, 1)
    return np.sqrt(np.where(size > 0, error / whole, np.where(error > 0, np.inf, 0)))


def state_of(errors: Errors, thresholds: Thresholds) -> NDArray[np.str_]:
    """The first state whose rule is good enough."""
    fits = [
        errors.first_key < thresholds.sink_bound,
        errors.mean_output < thresholds.constant,
        errors.local < thresholds.local,
        errors.top >= thresholds.broad,
    ]
    return np.select(fits, list(STATES[:4]), STATES[4])
