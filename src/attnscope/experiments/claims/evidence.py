"""What a claim is judged on: numbers of each window, an interval, and the range in which the claim holds.

One rule for every claim. A statistic is taken of each window (and row); its median over windows has a 95 % bootstrap
interval. The measurement agrees with the claim if the interval lies inside the accepted range, disagrees if it lies
outside, and otherwise depends on the window. A form of a claim (as printed, or corrected) agrees if all its
measurements do, disagrees if all do, and otherwise depends on what tells them apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import polars as pl

from attnscope.experiments.critical import Spread, bootstrap, power_law

if TYPE_CHECKING:
    from jaxtyping import Float

Verdict = Literal["agrees", "disagrees", "depends"]
UNIT = ["window", "row"]


@dataclass(frozen=True)
class Measurement:
    """A number, its interval over windows, and the range in which it speaks for the claim."""

    name: str
    spread: Spread
    accepted: tuple[float, float]

    @property
    def verdict(self) -> Verdict:
        """The one rule."""
        low, high = self.accepted
        if low <= self.spread.low and self.spread.high <= high:
            return "agrees"
        return "disagrees" if self.spread.high < low or self.spread.low > high else "depends"

    def as_dict(self) -> dict[str, Any]:
        """For claims.json; an open end of the range is null."""
        return {
            "name": self.name,
            "value": self.spread.value,
            "interval": [self.spread.low, self.spread.high],
            "accepted": [None if math.isinf(end) else end for end in self.accepted],
            "verdict": self.verdict,
        }


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
        table = self.table(name)
        return table.filter(pl.col("prefix") == table["prefix"].max())

    def of_units(self, table: pl.DataFrame, statistic: pl.Expr) -> Float[np.ndarray, " units"]:
        """The statistic of each window and row."""
        return table.group_by(UNIT).agg(value=statistic).sort(UNIT)["value"].to_numpy().astype(float)

    def measure(
        self, name: str, table: pl.DataFrame, statistic: pl.Expr, accepted: tuple[float, float]
    ) -> list[Measurement]:
        """A measurement, or none where the table has nothing to measure."""
        values = self.of_units(table, statistic)
        values = values[np.isfinite(values)]
        return [Measurement(name, bootstrap(values), accepted)] if len(values) else []

    def exponent(
        self, name: str, table: pl.DataFrame, statistic: pl.Expr, accepted: tuple[float, float]
    ) -> list[Measurement]:
        """The exponent b of a fit c L^b over all lengths; none with fewer than three lengths."""
        fit = self.fit(table, statistic)
        return [Measurement(name, fit[0], accepted)] if fit else []

    def fit(self, table: pl.DataFrame, statistic: pl.Expr) -> tuple[Spread, Spread] | None:
        """Exponent and factor of c L^b, fitted to the medians over windows."""
        wide = table.group_by(*UNIT, "prefix").agg(value=statistic).sort("prefix")
        lengths = wide["prefix"].unique().sort()
        values = wide.pivot(on="prefix", index=UNIT, values="value").sort(UNIT).select(map(str, lengths)).to_numpy()
        found = power_law(lengths.to_numpy().astype(float), values.astype(float))
        return (found.exponent, found.factor) if found else None


Measure = Callable[[Evidence], list[Measurement]]


def merged(verdicts: Iterable[Verdict]) -> Verdict | None:
    """One verdict if all are the same; None of nothing."""
    different = set(verdicts)
    if not different:
        return None
    return different.pop() if len(different) == 1 else "depends"
