"""What a claim is judged on: numbers of each window, an interval, and the range in which the claim holds.

One rule for every claim. A statistic is taken of each window (the mean over its rows, if several were asked for); its
median over windows has a 95 % bootstrap interval. The measurement agrees with the claim if the interval lies inside
the accepted range, disagrees if it lies outside, and otherwise depends on the window. One window has no interval, so
nothing follows from it. Where a claim is about every row, one row against it decides.

A form of a claim (as printed, or corrected) that is measured at several N, eps or T holds for all of them: it agrees if
all its measurements do, and one that firmly disagrees refutes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import polars as pl

from attnscope.experiments.intervals import Spread, bootstrap, power_law

if TYPE_CHECKING:
    from jaxtyping import Float

Verdict = Literal["agrees", "disagrees", "depends"]
Range = tuple[float, float]
UNIT = ["window", "row"]
ROUNDING = 1e-9  # a bound counts as kept up to this, relative or absolute
SUMMED = 1e-6  # the same for sums over the keys of a row, whose terms have the digits of float32
NO_INTERVAL = "the window (one window gives no interval)"


@dataclass(frozen=True)
class Measurement:
    """A number, its interval over windows, and the range in which it speaks for the claim."""

    name: str
    spread: Spread
    accepted: Range
    at: str = ""  # the N, eps or T it was measured at
    every: bool = False  # a share of rows that must be all: the interval is the least and the most of a window

    @property
    def verdict(self) -> Verdict:
        """The one rule."""
        low, high = self.accepted
        if low <= self.spread.low and self.spread.high <= high:
            return "agrees"
        outside = self.spread.high < low or self.spread.low > high
        return "disagrees" if outside or self.every else "depends"

    def as_dict(self) -> dict[str, Any]:
        """For claims.json; an open end of the range, and an interval that there is not, are null."""
        return {
            "name": self.name + (f", {self.at}" if self.at else ""),
            "value": self.spread.value,
            "interval": [self.spread.low, self.spread.high] if self.spread.known else None,
            "accepted": [None if math.isinf(end) else end for end in self.accepted],
            "verdict": self.verdict,
        }


Measure = Callable[["Evidence"], list[Measurement]]
Rule = Callable[[list[Measurement]], Verdict | None]


def every(measured: list[Measurement]) -> Verdict | None:
    """The verdict of a form that must hold wherever it was measured; None if it was not."""
    found = {one.verdict for one in measured}
    if not found:
        return None
    return "disagrees" if "disagrees" in found else "depends" if "depends" in found else "agrees"


def merged(verdicts: Iterable[Verdict]) -> Verdict | None:
    """One verdict if all are the same; None of nothing."""
    different = set(verdicts)
    if not different:
        return None
    return different.pop() if len(different) == 1 else "depends"


def both_ends(measured: list[Measurement]) -> Verdict | None:
    """The verdict where the truth is proved to lie between two measurements."""
    return merged(one.verdict for one in measured)


@dataclass(frozen=True)
class Claim:
    """An empirical claim of the paper, with what to measure for its printed and its corrected form."""

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
    """The tables under one reading: one kind of vectors, with or without the first key."""

    tables: dict[str, pl.DataFrame]
    vectors: str
    sink: str
    _made: dict[Any, pl.DataFrame] = field(default_factory=dict, repr=False, compare=False)

    def once(self, key: Any, make: Callable[[], pl.DataFrame]) -> pl.DataFrame:
        """A table that several claims share, made on first use."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def table(self, name: str) -> pl.DataFrame:
        """A table, its lines of this reading only."""
        return self.once(name, lambda: self._filtered(name))

    def _filtered(self, name: str) -> pl.DataFrame:
        table = self.tables[name]
        if "vectors" in table.columns:
            table = table.filter(vectors=self.vectors)
        return table.filter(sink=self.sink) if "sink" in table.columns else table

    def longest(self, name: str) -> pl.DataFrame:
        """Its lines at the longest length."""
        return self.once((name, "longest"), lambda: _longest(self.table(name)))

    def measure(
        self, name: str, table: pl.DataFrame, statistic: pl.Expr, accepted: Range, at: str = ""
    ) -> list[Measurement]:
        """A measurement, or none where the table has nothing to measure."""
        values = of_windows(table, statistic)
        return [Measurement(name, bootstrap(values), accepted, at)] if len(values) else []

    def every_row(self, name: str, table: pl.DataFrame, held: pl.Expr, at: str = "") -> list[Measurement]:
        """The share of lines where something holds, which the claim says of all; a missing value does not count."""
        lines = table.select("window", held=held).drop_nulls()
        if lines.is_empty():
            return []
        windows = lines.group_by("window").agg(pl.mean("held"))["held"].to_numpy()
        share = float(lines["held"].to_numpy().mean())
        spread = Spread(share, float(windows.min()), float(windows.max()))
        return [Measurement(name, spread, (1.0, 1.0), at, every=True)]

    def exponent(
        self, name: str, table: pl.DataFrame, statistic: pl.Expr, accepted: Range, at: str = ""
    ) -> list[Measurement]:
        """The exponent b of a fit c L^b over all lengths; none with fewer than three lengths."""
        fit = self.fit(table, statistic)
        return [Measurement(name, fit[0], accepted, at)] if fit else []

    def fit(self, table: pl.DataFrame, statistic: pl.Expr) -> tuple[Spread, Spread] | None:
        """Exponent and factor of c L^b, fitted to the medians over windows."""
        wide = table.group_by(*UNIT, "prefix").agg(value=statistic).group_by("window", "prefix").agg(pl.mean("value"))
        if wide.is_empty():
            return None
        lengths = wide["prefix"].unique().sort()
        values = wide.pivot(on="prefix", index="window", values="value").sort("window").select(map(str, lengths))
        found = power_law(lengths.to_numpy().astype(float), values.to_numpy().astype(float))
        return (found.exponent, found.factor) if found else None


def of_windows(table: pl.DataFrame, statistic: pl.Expr) -> Float[np.ndarray, " windows"]:
    """The statistic of each row of a window, its mean over them; windows where it is undefined are left out.

    Rows of a window are no sample of their own: they share nearly all keys.
    """
    units = table.group_by(UNIT).agg(value=statistic)
    values = units.group_by("window").agg(pl.mean("value")).sort("window")["value"].to_numpy().astype(float)
    return values[np.isfinite(values)]


def _longest(table: pl.DataFrame) -> pl.DataFrame:
    return table.filter(pl.col("prefix") == table["prefix"].max())
