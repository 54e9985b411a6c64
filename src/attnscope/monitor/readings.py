"""What the numbers of a head say at one step: the first of a few limits that they cross.

A reading is no diagnosis: it looks at means over a few rows of one batch. `attnscope.diagnose` tries simpler rules on
many rows of a text. Everything that shows readings takes them from here: `TrainingRun.readings`, the summary, the page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import polars as pl


@dataclass(frozen=True)
class Reading:
    """A reading: heads whose `measure` has crossed `limit` have it, unless they have an earlier one."""

    name: str
    color: str
    mark: str
    sentence: str  # `{limit}` is the limit
    measure: str = ""
    side: Literal["at least", "at most"] = "at least"
    limit: float = 0.0
    threshold: str = ""  # of the alarms, which has the limit in its place

    def number(self, thresholds: Mapping[str, Any]) -> float:
        """The limit in a run whose alarms have these thresholds."""
        return float(thresholds.get(self.threshold, self.limit))


# In the order in which they are tried.
READINGS = (
    Reading(
        "first-key",
        "#cc79a7",
        "f",
        "At least {limit:.0%} of the weight is on the first key it sees.",
        "sink_weight",
        "at least",
        0.9,
    ),
    Reading(
        "one-hot",
        "#d55e00",
        "1",
        "Nearly all weight of a row is on one key: the entropy is at most {limit:.0%} of its largest value.",
        "entropy_ratio",
        "at most",
        0.1,
        "collapse_entropy",
    ),
    Reading(
        "dilute",
        "#0072b2",
        "d",
        "The weight is spread nearly evenly: the entropy is at least {limit:.0%} of its largest value.",
        "entropy_ratio",
        "at least",
        0.98,
        "dilution_entropy",
    ),
)
IN_LIMITS = Reading("in limits", "#9ecae1", "·", "None of the limits of the other readings is crossed.")
UNKNOWN = Reading("no numbers", "#5f6368", "?", "Its weights were not measured at this step, or are not numbers.")
LISTED = (*READINGS, IN_LIMITS, UNKNOWN)


def reading_looks(thresholds: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Color, mark and sentence of every reading, as `report.states.state_looks` gives them for states."""
    looks = {}
    for one in LISTED:
        sentence = one.sentence.format(limit=one.number(thresholds))
        short = f"{sentence[0].lower()}{sentence[1:-1]}"
        looks[one.name] = {"color": one.color, "mark": one.mark, "short": short, "sentence": sentence}
    return looks


def page_readings(thresholds: Mapping[str, Any]) -> dict[str, Any]:
    """The readings for the page: how each looks, and the rules in the order in which they are tried."""
    looks = reading_looks(thresholds)
    looks[IN_LIMITS.name]["mark"] = "\u00a0"  # a space: most cells of the map have it
    rules = [
        {"state": one.name, "measure": one.measure, "side": one.side, "limit": one.number(thresholds)}
        for one in READINGS
    ]
    return {"states": looks, "rules": rules, "otherwise": IN_LIMITS.name, "unknown": UNKNOWN.name}


def read_heads(heads: pl.DataFrame, thresholds: Mapping[str, Any]) -> pl.Series:
    """The reading of every line of a table of heads."""

    def crossed(one: Reading) -> pl.Expr:
        value, limit = pl.col(one.measure), one.number(thresholds)
        return value >= limit if one.side == "at least" else value <= limit

    known = pl.all_horizontal(pl.col(one.measure).is_finite().fill_null(False) for one in READINGS)
    first = pl.coalesce(
        pl.when(~known).then(pl.lit(UNKNOWN.name)),
        *(pl.when(crossed(one)).then(pl.lit(one.name)) for one in READINGS),
        pl.lit(IN_LIMITS.name),
    )
    return heads.select(reading=first)["reading"]
