"""One head's label with its evidence: errors under each rule, separability with interval and nulls, tokens in use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.diagnosis.states import Errors, State, head_errors, state_of
from attnscope.diagnosis.statistics import spread

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from attnscope.diagnosis.observing import Head, WindowRows
    from attnscope.diagnosis.thresholds import Thresholds

# The paper's summary: separability down at 70 to 80 % means that a head is saturated.
PAPER_SATURATED = 0.8

_SPREADS = ("separability", "separability_without_sink", "null_uniform", "null_random", "keys_enough", "entropy")


@dataclass(frozen=True)
class Labels:
    """A head's state, the errors that decided it, and in how many rows it would be the same."""

    state: State
    errors: Errors
    state_share: float
    off_share: float
    over_sharp_share: float
    mean_output: NDArray[np.float64]


def label(windows: Sequence[WindowRows], head: Head, thresholds: Thresholds) -> Labels:
    """The state of a head over the rows of some windows."""
    together, each, mean = head_errors(windows, head)
    state: State = str(state_of(together, thresholds))  # type: ignore[assignment]
    first = np.concatenate([window.rows[head]["first_weight"] for window in windows])
    largest = np.concatenate([window.rows[head]["largest_weight"] for window in windows])
    return Labels(
        state,
        together,
        float(np.mean(state_of(each, thresholds) == state)),
        float(np.mean(first > thresholds.off_weight)),
        float(np.mean(largest > thresholds.over_sharp_weight)),
        mean,
    )


def describe(
    windows: Sequence[WindowRows], labels: dict[Head, Labels], thresholds: Thresholds, seed: int
) -> list[dict[str, Any]]:
    """What `findings.json` says of every head."""
    places = list(labels)
    spreads = {
        name: spread([np.stack([window.rows[place][name] for place in places]) for window in windows], seed)
        for name in _SPREADS
    }
    heads = []
    for index, place in enumerate(places):
        found = labels[place]
        lengths = np.concatenate([window.rows[place]["length"] for window in windows])
        enough = np.concatenate([window.rows[place]["keys_enough"] for window in windows])
        separability = spreads["separability"]
        evidence = {
            "error_first_key": float(found.errors.first_key),
            "error_mean_output": float(found.errors.mean_output),
            "error_local": float(found.errors.local),
            "error_top_5_percent": float(found.errors.top),
            "separability": float(separability.mean[index]),
            "separability_deviation": float(separability.deviation[index]),
            "separability_low": float(separability.low[index]),
            "separability_high": float(separability.high[index]),
            "separability_without_sink": float(spreads["separability_without_sink"].mean[index]),
            "null_uniform": float(spreads["null_uniform"].mean[index]),
            "null_random": float(spreads["null_random"].mean[index]),
            "tokens_in_use": float(spreads["keys_enough"].mean[index]),
            "tokens_in_use_low": float(spreads["keys_enough"].low[index]),
            "tokens_in_use_high": float(spreads["keys_enough"].high[index]),
            "share_in_use": float(np.mean(enough / lengths)),
            "entropy": float(spreads["entropy"].mean[index]),
            "first_weight": float(np.mean(np.concatenate([w.rows[place]["first_weight"] for w in windows]))),
            "paper_saturated": bool(separability.mean[index] <= PAPER_SATURATED),
        }
        heads.append(
            {
                "layer": place[0],
                "head": place[1],
                "state": found.state,
                "state_share": found.state_share,
                "off_share": found.off_share,
                "over_sharp_share": found.over_sharp_share,
                "evidence": {name: _clean(value) for name, value in evidence.items()},
            }
        )
    return heads


def _clean(value: float | bool) -> float | bool | None:
    """Six digits; nothing for what is not a number."""
    if isinstance(value, bool):
        return value
    return float(f"{value:.6g}") if np.isfinite(value) else None
