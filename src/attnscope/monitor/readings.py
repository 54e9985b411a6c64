"""What the numbers of a head say at one step: the first of a few limits that they cross.

A reading is no diagnosis: it looks at means over a few rows of one batch. `attnscope.diagnose` tries simpler rules on
many rows of a text. Everything that shows readings takes them from here: `TrainingRun.readings`, the summary, the page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl


@dataclass(frozen=True)
class Reading:
    """A reading: heads whose `measure` is at least `limit` have it, unless they have an earlier one."""

    name: str
    measure: str
    limit: float
    color: str
    mark: str
    sentence: str  # `{limit}` is the limit as a percentage


# In the order in which they are tried.
READINGS = (
    Reading(
        "first-key", "sink_weight", 0.9, "#cc79a7", "f", "At least {limit} of the weight is on the first key it sees."
    ),
    Reading("one-hot", "max_weight", 0.95, "#d55e00", "1", "One key gets at least {limit} of the weight of a row."),
    Reading(
        "dilute",
        "entropy_ratio",
        0.97,
        "#0072b2",
        "d",
        "The weight is spread nearly evenly: the entropy is at least {limit} of its largest value.",
    ),
)
IN_LIMITS = Reading("in limits", "", 0, "#9ecae1", "·", "None of the limits of the other readings is crossed.")
UNKNOWN = Reading("no numbers", "", 0, "#5f6368", "?", "Its weights were not measured at this step, or not numbers.")


LISTED = (*READINGS, IN_LIMITS, UNKNOWN)


def reading_looks() -> dict[str, dict[str, str]]:
    """Color, mark and sentence of every reading, as `report.states.state_looks` gives them for states."""
    looks = {}
    for one in LISTED:
        sentence = one.sentence.format(limit=f"{one.limit:.0%}")
        short = f"{sentence[0].lower()}{sentence[1:-1]}"
        looks[one.name] = {"color": one.color, "mark": one.mark, "short": short, "sentence": sentence}
    return looks


def page_readings() -> dict[str, Any]:
    """The readings for the page: how each looks, and the rules in the order in which they are tried."""
    looks = reading_looks()
    looks[IN_LIMITS.name]["mark"] = "\u00a0"  # a space: most cells of the map have it
    return {
        "states": looks,
        "rules": [{"state": one.name, "measure": one.measure, "limit": one.limit} for one in READINGS],
        "otherwise": IN_LIMITS.name,
        "unknown": UNKNOWN.name,
    }


def read_heads(heads: pl.DataFrame) -> pl.Series:
    """The reading of every line of a table of heads."""
    known = pl.all_horizontal(pl.col(one.measure).is_finite().fill_null(False) for one in READINGS)
    first = pl.coalesce(
        pl.when(~known).then(pl.lit(UNKNOWN.name)),
        *(pl.when(pl.col(one.measure) >= one.limit).then(pl.lit(one.name)) for one in READINGS),
        pl.lit(IN_LIMITS.name),
    )
    return heads.select(reading=first)["reading"]
