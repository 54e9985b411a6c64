"""Claims, the measurements that decide them, and the rule that turns measurements into a verdict.

One rule serves every claim. A statistic is computed for each window (the mean over its rows, if there are several),
and its median over windows gets a 95% bootstrap interval. The measurement agrees with the claim if the interval lies
inside the accepted range, disagrees if it lies outside, and otherwise depends on the window. A single window has no
interval and therefore no verdict. A claim about every row is refuted by one row.

A form of a claim (printed or corrected) that is measured at several N, eps or T must hold at all of them: it agrees
if all its measurements agree, and disagrees if one of them disagrees.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import polars as pl

from attnscope.intervals import Estimate, power_law_of_medians, window_bootstrap_median

if TYPE_CHECKING:
    from jaxtyping import Float

Verdict = Literal["agrees", "disagrees", "depends"]
Range = tuple[float, float]
UNIT = ["window", "row"]
ROUNDING = 1e-9  # tolerance of a bound, relative or absolute
NO_INTERVAL = "the window (one window gives no interval)"


@dataclass(frozen=True)
class Measurement:
    """A statistic with its interval over windows, and the range in which it supports the claim."""

    name: str
    estimate: Estimate
    accepted: Range
    at: str = ""  # the N, eps or T it was measured at
    every: bool = False  # a share of rows that must be 1; its interval spans the windows' smallest and largest share

    @property
    def verdict(self) -> Verdict:
        """Agrees if the interval lies inside the accepted range, disagrees if outside, otherwise depends."""
        low, high = self.accepted
        if low <= self.estimate.low and self.estimate.high <= high:
            return "agrees"
        outside = self.estimate.high < low or self.estimate.low > high
        return "disagrees" if outside or self.every else "depends"

    def as_dict(self) -> dict[str, Any]:
        """The entry of claims.json; infinite ends of the range and a missing interval are null."""
        return {
            "name": self.name + (f", {self.at}" if self.at else ""),
            "value": self.estimate.value,
            "interval": [self.estimate.low, self.estimate.high] if self.estimate.has_interval else None,
            "accepted": [None if math.isinf(end) else end for end in self.accepted],
            "verdict": self.verdict,
        }


Measure = Callable[["Evidence"], list[Measurement]]
Rule = Callable[[list[Measurement]], Verdict | None]


def every(measured: list[Measurement]) -> Verdict | None:
    """The verdict of a form that must hold at every measurement; None without measurements."""
    verdicts = {one.verdict for one in measured}
    if not verdicts:
        return None
    return "disagrees" if "disagrees" in verdicts else "depends" if "depends" in verdicts else "agrees"


def merged(verdicts: Iterable[Verdict]) -> Verdict | None:
    """The common verdict, "depends" if they differ, or None if there are none."""
    different = set(verdicts)
    if not different:
        return None
    return different.pop() if len(different) == 1 else "depends"


def both_ends(measured: list[Measurement]) -> Verdict | None:
    """The verdict of a quantity that provably lies between two measurements."""
    return merged(one.verdict for one in measured)


@dataclass(frozen=True)
class Claim:
    """An empirical claim of the paper, with the measurements of its printed and its corrected form."""

    id: str
    place: str
    statement: str
    rule: str
    printed: Measure
    corrected: Measure | None = None
    corrected_as: str = ""
    corrected_rule: Rule = every


@dataclass(frozen=True)
class Evidence:
    """The tables of a reproduction, restricted to one kind of vectors, with or without the first key."""

    tables: dict[str, pl.DataFrame]
    vectors: str
    sink: str
    _cache: dict[Any, pl.DataFrame] = field(default_factory=dict, repr=False, compare=False)

    def once(self, key: Any, make: Callable[[], pl.DataFrame]) -> pl.DataFrame:
        """The result of `make`, cached under `key`."""
        if key not in self._cache:
            self._cache[key] = make()
        return self._cache[key]

    def table(self, name: str) -> pl.DataFrame:
        """A table restricted to this kind of vectors and treatment of the first key."""
        return self.once(name, lambda: self._filtered(name))

    def _filtered(self, name: str) -> pl.DataFrame:
        table = self.tables[name]
        if "vectors" in table.columns:
            table = table.filter(vectors=self.vectors)
        return table.filter(sink=self.sink) if "sink" in table.columns else table

    def longest(self, name: str) -> pl.DataFrame:
        """The lines of `table(name)` at the longest length."""
        return self.once((name, "longest"), lambda: _longest(self.table(name)))

    def measure(
        self, name: str, table: pl.DataFrame, statistic: pl.Expr, accepted: Range, at: str = ""
    ) -> list[Measurement]:
        """The median of a statistic over windows with its interval; empty if no window has a finite value."""
        values = window_values(table, statistic)
        return [Measurement(name, window_bootstrap_median(values), accepted, at)] if len(values) else []

    def every_row(self, name: str, table: pl.DataFrame, holds: pl.Expr, at: str = "") -> list[Measurement]:
        """The share of lines where `holds` is true, for a claim about all of them; null values are ignored."""
        lines = table.select("window", holds=holds).drop_nulls()
        if lines.is_empty():
            return []
        windows = lines.group_by("window").agg(pl.mean("holds"))["holds"].to_numpy()
        share = float(lines["holds"].to_numpy().mean())
        estimate = Estimate(share, float(windows.min()), float(windows.max()))
        return [Measurement(name, estimate, (1.0, 1.0), at, every=True)]

    def exponent(
        self, name: str, table: pl.DataFrame, statistic: pl.Expr, accepted: Range, at: str = ""
    ) -> list[Measurement]:
        """The exponent b of a fit c L^b over all lengths; empty with fewer than three lengths."""
        fit = self.fit(table, statistic)
        return [Measurement(name, fit[0], accepted, at)] if fit else []

    def fit(self, table: pl.DataFrame, statistic: pl.Expr) -> tuple[Estimate, Estimate] | None:
        """Exponent and factor of c L^b, fitted to the medians over windows."""
        wide = table.group_by(*UNIT, "prefix").agg(value=statistic).group_by("window", "prefix").agg(pl.mean("value"))
        if wide.is_empty():
            return None
        lengths = wide["prefix"].unique().sort()
        values = wide.pivot(on="prefix", index="window", values="value").sort("window").select(map(str, lengths))
        law = power_law_of_medians(lengths.to_numpy().astype(float), values.to_numpy().astype(float))
        return (law.exponent, law.factor) if law else None


def window_values(table: pl.DataFrame, statistic: pl.Expr) -> Float[np.ndarray, " windows"]:
    """The statistic of each window, averaged over the window's rows; windows where it is not finite are left out.

    The rows of a window are not independent samples: they share nearly all keys.
    """
    units = table.group_by(UNIT).agg(value=statistic)
    values = units.group_by("window").agg(pl.mean("value")).sort("window")["value"].to_numpy().astype(float)
    return values[np.isfinite(values)]


def _longest(table: pl.DataFrame) -> pl.DataFrame:
    return table.filter(pl.col("prefix") == table["prefix"].max())
