"""One head's label with its evidence: errors under each rule, separability with interval and nulls, tokens needed.

The share of its keys that a head needs is measured at several errors and interpolated between them by power laws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnscope.diagnosis.observing import ERRORS, keys_column
from attnscope.diagnosis.states import MEAN_OUTPUT, RULES, STATES
from attnscope.intervals import Growth, block_bootstrap, block_bootstrap_means, power_law_of_rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from attnscope.diagnosis.observing import Head, WindowRows
    from attnscope.diagnosis.states import Thresholds

DIFFERENT = 4.0
"""How many times apart participation and tokens needed must be to be explained."""

LITTLE = 0.1
"""Below this share of the output's size, a token contributes almost nothing to it."""


def participation_explained(evidence: Mapping[str, Any], enough: float) -> str | None:
    """Why participation and tokens needed differ much in this head; None if they do not, or one is missing."""
    participation, needed = evidence["participation"], evidence["tokens_needed"]
    if participation is None or needed is None or 1 / DIFFERENT < needed / participation < DIFFERENT:
        return None
    start = f"Participation is {count(participation)} and tokens needed {count(needed)}, which is no contradiction: "
    if needed < participation:
        return start + (
            f"{count(participation)} tokens share the weight, but their value vectors average to nearly the same as "
            f"those of the {count(needed)} with the largest weights, which are enough for an error of {enough:.0%}."
        )
    without, contribution = evidence["participation_without_sink"], evidence["sink_contribution"]
    if without is None or contribution is None or without < 2 * participation:
        return start + (
            f"participation follows the largest weights (max weight {evidence['max_weight']:.0%}), while an error of "
            f"{enough:.0%} also takes the many small ones, whose contributions add up."
        )
    part = f"a part of {contribution:.0%} of the output's size. The rest of the output"
    if contribution < LITTLE:
        part = f"almost nothing to the output ({contribution:.1%} of its size). The output"
    return start + (
        f"the first token takes {evidence['sink_weight']:.0%} of the weight, which keeps participation low, and "
        f"contributes {part} comes from the other tokens, among which participation is {count(without)}."
    )


def count(value: float) -> str:
    """A number of tokens: one decimal below ten."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def tokens(value: float) -> str:
    """A number of tokens with its noun: 1 token, 6.6 tokens."""
    number = count(value)
    return "1 token" if float(number.replace(",", "")) == 1 else f"{number} tokens"


def percent(value: float) -> str:
    """A share as text: whole percent, one decimal below 1%, and never 0% for a share that is not zero."""
    if value == 0 or value >= 0.01:
        return f"{value:.0%}"
    return "less than 0.1%" if value < 0.0005 else f"{value:.1%}"


# The paper's summary: separability down at 70 to 80% means that a head is saturated.
PAPER_SATURATED = 0.8

# A label is sure when at least this share of redrawn rows would give it again.
SURE = 0.95

_SUMMARIZED = ("separability", "separability_without_sink", "null_uniform", "null_random", "keys_enough", "entropy")

_AVERAGED = (
    "max_weight",
    "participation",
    "participation_without_sink",
    "sink_weight",
    "sink_contribution",
    "residual_share",
    "residual_change",
    "gate",
    "gate_shut",
)

Errors = dict[str, "NDArray[np.float64]"]
"""Relative errors of a head's output by the name of the rule: single numbers, or one for each row."""


@dataclass(frozen=True)
class Labels:
    """A head's state, the errors that decided it, and how often it would be the same.

    `sureness` is the share of redrawn sets of rows that give the same state, `edge` the state that most of the others
    give; `state_share` is the share of single rows that would get the state on their own.
    """

    state: str
    errors: Errors
    sureness: float
    edge: str | None
    state_share: float
    off_share: float
    over_sharp_share: float
    mean_output: NDArray[np.float64]

    @property
    def sure(self) -> bool:
        """Whether other rows of the same kind of text would give the same label."""
        return self.sureness >= SURE


def row_errors(windows: Sequence[WindowRows], head: Head) -> tuple[Errors, NDArray[np.float64]]:
    """The relative error of each row of a head under every rule, and the head's mean output."""
    outputs = np.concatenate([window.contexts[head] for window in windows]).astype(np.float64)
    mean = outputs.mean(0)
    squares = {MEAN_OUTPUT.name: np.square(outputs - mean).sum(-1)} | {
        rule.name: _rows(windows, head, rule.square) for rule in RULES if rule.keys
    }
    size = _rows(windows, head, "square")
    return {rule.name: relative_error(squares[rule.name], size) for rule in RULES}, mean


def relative_error(error: NDArray[np.float64], size: NDArray[np.float64]) -> NDArray[np.float64]:
    """sqrt(error / size) of squared norms; where the size is zero, 0 for no error and infinity for any other."""
    divisor = np.where(size > 0, size, 1)
    return np.sqrt(np.where(size > 0, error / divisor, np.where(error > 0, np.inf, 0)))


def state_of(errors: Errors, thresholds: Thresholds) -> NDArray[np.str_]:
    """Name of the first state whose condition the errors meet; the last state takes the rest."""
    *states, last = STATES.values()
    below = [errors[state.rule.name] < getattr(thresholds, state.limit) for state in states]
    conditions = [fits if state.enough else ~fits for state, fits in zip(states, below, strict=True)]
    return np.select(conditions, [state.name for state in states], last.name)


def label(windows: Sequence[WindowRows], head: Head, thresholds: Thresholds) -> Labels:
    """The state of a head over the rows of some windows."""
    errors, mean_output = row_errors(windows, head)
    mean_errors: Errors = {name: values.mean() for name, values in errors.items()}
    state = str(state_of(mean_errors, thresholds))
    sureness, edge = _sureness(windows, head, errors, state, thresholds)
    return Labels(
        state,
        mean_errors,
        sureness,
        edge,
        float(np.mean(state_of(errors, thresholds) == state)),
        float(np.mean(_rows(windows, head, "sink_weight") > thresholds.off_weight)),
        float(np.mean(_rows(windows, head, "max_weight") > thresholds.over_sharp_weight)),
        mean_output,
    )


def _rows(windows: Sequence[WindowRows], head: Head, column: str) -> NDArray[np.float64]:
    """One column of a head over the rows of all windows."""
    return np.concatenate([window.rows[head][column] for window in windows])


def _mean(windows: Sequence[WindowRows], head: Head, column: str) -> float:
    """Mean over the rows that have this number; NaN if none has, or it could not be measured in this model."""
    if column not in windows[0].rows[head]:
        return math.nan
    values = _rows(windows, head, column)
    values = values[np.isfinite(values)]
    return float(values.mean()) if len(values) else math.nan


def _sureness(
    windows: Sequence[WindowRows], head: Head, errors: Errors, state: str, thresholds: Thresholds
) -> tuple[float, str | None]:
    """How often redrawn rows, in runs of neighbors, give the state again, and the most frequent other state."""
    ends = np.cumsum([len(window.rows[head]["square"]) for window in windows])[:-1]
    means = block_bootstrap_means(np.split(np.stack(list(errors.values())), ends, axis=-1))
    drawn = state_of(dict(zip(errors, means, strict=True)), thresholds)
    others, counts = np.unique(drawn[drawn != state], return_counts=True)
    edge = str(others[counts.argmax()]) if len(others) else None
    return float(np.mean(drawn == state)), edge


def head_growth(windows: Sequence[WindowRows], head: Head, seed: int) -> Growth | None:
    """How the number of tokens that a head needs grows with the length, over all rows measured."""
    rows = [columns for w in windows for columns in (w.shorter.get(head), w.rows[head]) if columns is not None]
    lengths = np.concatenate([columns["length"] for columns in rows])
    enough = np.concatenate([columns["keys_enough"] for columns in rows])
    return power_law_of_rows(lengths, enough, seed)


def describe(
    windows: Sequence[WindowRows], labels: dict[Head, Labels], thresholds: Thresholds, seed: int
) -> list[dict[str, Any]]:
    """One entry of `findings.json` for every head."""
    heads = list(labels)
    summaries = {
        name: block_bootstrap([np.stack([window.rows[head][name] for head in heads]) for window in windows], seed)
        for name in _SUMMARIZED
    }
    entries = []
    for index, head in enumerate(heads):
        labeled = labels[head]
        separability = summaries["separability"]
        fit = head_growth(windows, head, seed) or Growth(math.nan, math.nan, math.nan, math.nan)
        evidence = {rule.error: float(labeled.errors[rule.name]) for rule in RULES} | {
            "separability": float(separability.mean[index]),
            "separability_deviation": float(separability.deviation[index]),
            "separability_low": float(separability.low[index]),
            "separability_high": float(separability.high[index]),
            "separability_without_sink": float(summaries["separability_without_sink"].mean[index]),
            "null_uniform": float(summaries["null_uniform"].mean[index]),
            "null_random": float(summaries["null_random"].mean[index]),
            "tokens_needed": float(summaries["keys_enough"].mean[index]),
            "tokens_needed_low": float(summaries["keys_enough"].low[index]),
            "tokens_needed_high": float(summaries["keys_enough"].high[index]),
            "share_needed": mean_share(windows, head, "keys_enough"),
            "growth_exponent": fit.exponent,
            "growth_exponent_low": fit.low,
            "growth_exponent_high": fit.high,
            "entropy": float(summaries["entropy"].mean[index]),
            **{name: _mean(windows, head, name) for name in _AVERAGED},
            "paper_saturated": bool(separability.mean[index] <= PAPER_SATURATED),
        }
        cleaned = {name: _clean(value) for name, value in evidence.items()}
        entries.append(
            {
                "layer": head[0],
                "head": head[1],
                "state": labeled.state,
                "sureness": labeled.sureness,
                "edge": None if labeled.sure else labeled.edge,
                "withdrawn": None,
                "state_share": labeled.state_share,
                "off_share": labeled.off_share,
                "over_sharp_share": labeled.over_sharp_share,
                "explanation": participation_explained(cleaned, thresholds.enough),
                "evidence": cleaned,
            }
        )
    return entries


def _clean(value: float | bool) -> float | bool | None:
    """Rounded to six digits; None if not finite."""
    if isinstance(value, bool):
        return value
    return float(f"{value:.6g}") if np.isfinite(value) else None


_STEPS = 40  # halvings of the interval of errors


class KeyShares(NamedTuple):
    """The share of its keys that every head keeps, and the error for which it is enough."""

    error: float
    shares: dict[Head, float]


def mean_share(windows: Sequence[WindowRows], head: Head, column: str) -> float:
    """Mean over rows of the share of its keys that a head needs."""
    return float(np.mean(np.concatenate([w.rows[head][column] / w.rows[head]["length"] for w in windows])))


def budget_by_error(windows: Sequence[WindowRows], heads: Iterable[Head], error: float) -> KeyShares:
    """The share that every head needs for the error that `keys_enough` was measured at."""
    return KeyShares(error, {head: mean_share(windows, head, "keys_enough") for head in heads})


def budget_by_share(windows: Sequence[WindowRows], heads: Iterable[Head], share: float) -> KeyShares:
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
    return KeyShares(float(np.exp(high)), dict(zip(heads, shares(high), strict=True)))
