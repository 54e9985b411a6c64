"""One head's label with its evidence: errors under each rule, separability with interval and nulls, tokens in use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.diagnosis.budgets import mean_share
from attnscope.diagnosis.states import Errors, State, head_errors, state_of
from attnscope.diagnosis.statistics import drawn_means, spread

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from attnscope.diagnosis.observing import Head, WindowRows
    from attnscope.diagnosis.thresholds import Thresholds

# The paper's summary: separability down at 70 to 80 % means that a head is saturated.
PAPER_SATURATED = 0.8

_SPREADS = ("separability", "separability_without_sink", "null_uniform", "null_random", "keys_enough", "entropy")


# A label is sure when at least this share of redrawn rows would give it again.
SURE = 0.95


@dataclass(frozen=True)
class Labels:
    """A head's state, the errors that decided it, and how often it would be the same.

    `sureness` is the share of redrawn sets of rows that give the same state, `edge` the state that most of the others
    give; `state_share` is the share of single rows that would get the state on their own.
    """

    state: State
    errors: Errors
    sureness: float
    edge: State | None
    state_share: float
    off_share: float
    over_sharp_share: float
    mean_output: NDArray[np.float64]

    @property
    def sure(self) -> bool:
        """Whether other rows of the same kind of text would give the same label."""
        return self.sureness >= SURE


def label(windows: Sequence[WindowRows], head: Head, thresholds: Thresholds) -> Labels:
    """The state of a head over the rows of some windows."""
    together, each, mean = head_errors(windows, head)
    state: State = str(state_of(together, thresholds))  # type: ignore[assignment]
    sureness, edge = _sureness(windows, head, each, state, thresholds)
    first = np.concatenate([window.rows[head]["first_weight"] for window in windows])
    largest = np.concatenate([window.rows[head]["largest_weight"] for window in windows])
    return Labels(
        state,
        together,
        sureness,
        edge,
        float(np.mean(state_of(each, thresholds) == state)),
        float(np.mean(first > thresholds.off_weight)),
        float(np.mean(largest > thresholds.over_sharp_weight)),
        mean,
    )


def _sureness(
    windows: Sequence[WindowRows], head: Head, each: Errors, state: State, thresholds: Thresholds
) -> tuple[float, State | None]:
    """How often rows drawn anew, in runs of neighbors, give the state again, and which other they give most."""
    rows = np.stack([each.first_key, each.mean_output, each.local, each.top])
    ends = np.cumsum([len(window.rows[head]["square"]) for window in windows])[:-1]
    drawn = state_of(Errors(*drawn_means(np.split(rows, ends, axis=-1))), thresholds)
    others, counts = np.unique(drawn[drawn != state], return_counts=True)
    edge: State | None = str(others[counts.argmax()]) if len(others) else None  # type: ignore[assignment]
    return float(np.mean(drawn == state)), edge


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
        separability = spreads["separability"]
        evidence = {
            "error_first_key": float(found.errors.first_key),
            "error_mean_output": float(found.errors.mean_output),
            "error_local": float(found.errors.local),
            "error_top_share": float(found.errors.top),
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
            "share_in_use": mean_share(windows, place, "keys_enough"),
            "entropy": float(spreads["entropy"].mean[index]),
            "first_weight": float(np.mean(np.concatenate([w.rows[place]["first_weight"] for w in windows]))),
            "paper_saturated": bool(separability.mean[index] <= PAPER_SATURATED),
        }
        heads.append(
            {
                "layer": place[0],
                "head": place[1],
                "state": found.state,
                "sureness": found.sureness,
                "edge": None if found.sure else found.edge,
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
