"""Claims, the readings in which they are measured, and the rule that turns measurements into a verdict.

One rule serves every claim. A statistic is computed for each window, and its median over windows gets a 95% bootstrap
interval. The measurement agrees with the claim if the interval lies inside the accepted range, disagrees if it lies
outside, and otherwise depends on the window. A single window has no interval and therefore no verdict. A claim about
every line (a bound) is refuted by one of them.

A form of a claim (printed or corrected) that is measured at several N, eps or T must hold at all of them: it agrees
if all its measurements agree, and disagrees if one of them disagrees.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import polars as pl

from attnscope.intervals import Estimate, power_law_of_medians, window_bootstrap_median

if TYPE_CHECKING:
    from jaxtyping import Float

Verdict = Literal["agrees", "disagrees", "depends"]
Range = tuple[float, float]
Labels = dict[str, str]
"""What distinguishes a reading, e.g. {"rows": "literal", "vectors": "value"}."""
ROUNDING = 1e-9  # tolerance of a bound, relative or absolute
NO_INTERVAL = "the window (one window gives no interval)"
OPEN, CLOSED = "open", "closed"  # the ball of eq. (10)
# What the appendix leaves open, by the table that decides a claim.
OPEN_CHOICES = {
    "protocol_distance": ("reading", "vectors"),
    "protocol_tests": ("reading", "vectors"),
    "protocol_critical": ("reading", "vectors", "significance"),
    "protocol_separability": ("reading", "vectors", "ball"),
    "protocol_rows": ("reading",),
    "protocol_gradient": ("reading", "logit_scale"),
    "sharpness": ("vectors",),
    "coverage": ("vectors",),
}


@dataclass(frozen=True)
class Measurement:
    """A statistic with its interval over windows, and the range in which it supports the claim."""

    name: str
    estimate: Estimate
    accepted: Range
    at: str = ""  # the N, eps or T it was measured at
    every: bool = False  # a share of lines that must be 1; its interval spans the windows' smallest and largest share

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


@dataclass(frozen=True)
class Evidence:
    """The tables of a reproduction, restricted to one reading."""

    tables: dict[str, pl.DataFrame]
    labels: Labels
    _cache: dict[Any, pl.DataFrame] = field(default_factory=dict, repr=False, compare=False)

    def once(self, key: Any, make: Callable[[], pl.DataFrame]) -> pl.DataFrame:
        """The result of `make`, cached under `key`."""
        if key not in self._cache:
            self._cache[key] = make()
        return self._cache[key]

    def table(self, name: str) -> pl.DataFrame:
        """The lines of a table that belong to this reading."""
        return self.once(name, lambda: self._restricted(name))

    def _restricted(self, name: str) -> pl.DataFrame:
        table = self.tables[name]
        columns = {("reading" if key == "rows" else key): value for key, value in self.labels.items()}
        wanted: dict[str, Any] = {key: value for key, value in columns.items() if key in table.columns}
        if "significance" in wanted:
            wanted["significance"] = float(wanted["significance"])
        table = table.filter(**wanted)
        if self.labels.get("ball") == CLOSED and "separability_closed" in table.columns:
            return table.with_columns(separability="separability_closed")
        return table

    def longest(self, name: str) -> pl.DataFrame:
        """The lines of `table(name)` at the longest length."""
        table = self.table(name)
        return self.once((name, "longest"), lambda: table.filter(pl.col("length") == table["length"].max()))

    def measure(
        self, name: str, table: pl.DataFrame, statistic: pl.Expr, accepted: Range, at: str = ""
    ) -> list[Measurement]:
        """The median of a statistic over windows with its interval; empty if no window has a finite value."""
        values = window_values(table, statistic)
        return [Measurement(name, window_bootstrap_median(values), accepted, at)] if len(values) else []

    def every_line(self, name: str, table: pl.DataFrame, holds: pl.Expr, at: str = "") -> list[Measurement]:
        """The share of lines where `holds` is true, for a claim about all of them; null values are ignored."""
        lines = table.select("window", holds=holds).drop_nulls()
        if lines.is_empty():
            return []
        windows = lines.group_by("window").agg(pl.mean("holds"))["holds"].to_numpy()
        share = float(lines["holds"].to_numpy().mean())
        estimate = Estimate(share, float(windows.min()), float(windows.max()))
        return [Measurement(name, estimate, (1.0, 1.0), at, every=True)]

    def exponent(self, name: str, table: pl.DataFrame, statistic: pl.Expr, accepted: Range) -> list[Measurement]:
        """The exponent b of a fit c L^b to the medians over windows; empty with fewer than three lengths."""
        wide = table.group_by("window", "length").agg(value=statistic)
        if wide.is_empty():
            return []
        lengths = wide["length"].unique().sort()
        values = wide.pivot(on="length", index="window", values="value").sort("window").select(map(str, lengths))
        law = power_law_of_medians(lengths.to_numpy().astype(float), values.to_numpy().astype(float))
        return [Measurement(name, law.exponent, accepted)] if law else []


Measure = Callable[[Evidence], list[Measurement]]
Rule = Callable[[list[Measurement]], Verdict | None]


def window_values(table: pl.DataFrame, statistic: pl.Expr) -> Float[np.ndarray, " windows"]:
    """The statistic of each window; windows where it is not finite are left out."""
    values = table.group_by("window").agg(value=statistic).sort("window")["value"].to_numpy().astype(float)
    return values[np.isfinite(values)]


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
    figure: str | None  # of the paper
    table: str  # that decides it
    place: str
    statement: str
    rule: str
    printed: Measure
    corrected: Measure | None = None
    corrected_as: str = ""
    corrected_rule: Rule = every


def readings(tables: dict[str, pl.DataFrame], name: str) -> list[Evidence]:
    """Every reading of a table, in its order."""
    table, columns = tables[name], list(OPEN_CHOICES[name])
    if "ball" in columns:
        balls = [table.with_columns(ball=pl.lit(OPEN))]
        measured = table.filter(pl.col("separability_closed").is_not_null())
        table = pl.concat([*balls, measured.with_columns(ball=pl.lit(CLOSED))])
    found = table.select(columns).unique(maintain_order=True) if not table.is_empty() else pl.DataFrame()
    labels = [
        {"rows" if column == "reading" else column: f"{value:g}" if isinstance(value, float) else str(value)
         for column, value in zip(columns, values, strict=True)}
        for values in found.rows()
    ]  # fmt: skip
    single = {} if "reading" in columns else {"rows": "last"}
    return [Evidence(tables, single | each) for each in labels]


def answer_claim(claim: Claim, evidence: Sequence[Evidence], first_key: str) -> dict[str, Any]:
    """One claim, measured in each form and reading; its verdict depends on the labels along which they differ."""
    results: list[dict[str, Any]] = []
    verdicts: list[tuple[Labels, Verdict]] = []
    forms: dict[str, tuple[Measure, Rule]] = {"printed": (claim.printed, every)}
    if claim.corrected:
        forms["corrected"] = (claim.corrected, claim.corrected_rule)
    for e in evidence:
        for form, (measure, rule) in forms.items():
            measured = measure(e)
            verdict = rule(measured)
            results.append(
                {
                    "form": form,
                    **e.labels,
                    "first_key": first_key,
                    "verdict": verdict,
                    "depends_on": _causes(measured) if verdict == "depends" else [],
                    "holds_at": [one.at for one in measured if one.at and one.verdict == "agrees"],
                    "fails_at": [one.at for one in measured if one.at and one.verdict == "disagrees"],
                    "measured": [one.as_dict() for one in measured],
                }
            )
            if verdict:
                verdicts.append(({"form": form, **e.labels}, verdict))
    nearest: dict[str, Any] = min(results, key=_miss, default={})
    for reading in results:
        reading["nearest"] = reading is nearest and bool(reading["measured"])
    overall = merged(verdict for _, verdict in verdicts)
    between = _dimensions(verdicts) if overall == "depends" else []
    within = sorted({name for one in results if one["verdict"] == "depends" for name in one["depends_on"]})
    return {
        "id": claim.id,
        "figure": claim.figure,
        "place": claim.place,
        "claim": claim.statement,
        "rule": claim.rule,
        "corrected_as": claim.corrected_as or None,
        "verdict": overall or "not measured",
        "printed": merged(verdict for labels, verdict in verdicts if labels["form"] == "printed"),
        "corrected": merged(verdict for labels, verdict in verdicts if labels["form"] == "corrected"),
        "depends_on": between + within,
        "readings": results,
    }


def _causes(measured: list[Measurement]) -> list[str]:
    """What the verdict of a form depends on: the window if an interval crosses its range, else the end of E1."""
    crossing = [one for one in measured if one.verdict == "depends"]
    if any(not one.estimate.has_interval for one in crossing):
        return [NO_INTERVAL]
    return ["window"] if crossing else ["end of E1"]


def _dimensions(verdicts: list[tuple[Labels, Verdict]]) -> list[str]:
    """The labels along which the verdict changes while the others are fixed."""
    varying = []
    for name in verdicts[0][0]:
        groups: dict[tuple[str, ...], set[Verdict]] = {}
        for labels, verdict in verdicts:
            others = tuple(value for key, value in labels.items() if key != name)
            groups.setdefault(others, set()).add(verdict)
        if any(len(group) > 1 for group in groups.values()):
            varying.append(name.replace("_", " "))
    return varying


def _miss(reading: dict[str, Any]) -> tuple[float, float]:
    """How far a reading's values lie outside their ranges on average, then how far from the middle of the ranges."""
    outside, off = [], []
    for one in reading["measured"]:
        low, high = (-math.inf if one["accepted"][0] is None else one["accepted"][0]), one["accepted"][1]
        high = math.inf if high is None else high
        outside.append(max(low - one["value"], one["value"] - high, 0.0))
        middle = (low + high) / 2
        off.append(abs(one["value"] - middle) if math.isfinite(middle) else 0.0)
    return (round(float(np.mean(outside)), 9), round(float(np.mean(off)), 9)) if outside else (math.inf, math.inf)
