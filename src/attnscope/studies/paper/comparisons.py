"""What the paper prints and what each reading measures: the one list behind terminal, page and docs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

# Columns of the grids; whatever else distinguishes readings distinguishes their lines.
ACROSS = ("rows", "vectors", "logit_scale")
TITLES = {
    "2": "Distance, expectation and critical N (Figure 2)",
    "3": "Separability (Figure 3)",
    "4": "Gradient sensitivity (Figure 4)",
}
MARKS = {"agrees": "\u2713", "disagrees": "\u2717", "depends": "~"}
BALL = {"open": "", "closed": "closed ball"}


@dataclass(frozen=True)
class Comparison:
    """One statement of the paper, in one form, measured in one reading."""

    figure: str
    id: str
    paper: str  # what the paper prints
    rule: str
    form: str  # printed or corrected
    variant: str  # what the corrected form measures instead; empty for the printed one
    reading: dict[str, str]  # rows, vectors, logits, significance, ball
    measured: tuple[dict[str, Any], ...]  # name, value, interval, accepted, verdict; as in claims.json
    verdict: str | None
    nearest: bool

    @property
    def label(self) -> str:
        """The reading in words, e.g. "literal rows, value vectors, significance 0.01"."""
        return _joined([label(self.reading), self.variant])

    @property
    def values(self) -> str:
        """The measured value with its interval, or the range of several."""
        values = [one["value"] for one in self.measured]
        if not values:
            return "-"
        if len(values) > 1:
            low, high = number(min(values)), number(max(values))
            return low if low == high else f"{low} to {high}"
        interval = self.measured[0]["interval"]
        return number(values[0]) + (f" [{number(interval[0])}, {number(interval[1])}]" if interval else "")


@dataclass(frozen=True)
class Line:
    """A line of a grid: a statement in one form, and its comparison in each of the grid's columns."""

    figure: str
    paper: str
    rule: str
    detail: str
    cells: tuple[Comparison | None, ...]


@dataclass(frozen=True)
class Grid:
    """The statements on one subject, with the readings side by side."""

    title: str
    columns: tuple[str, ...]
    lines: tuple[Line, ...]


def comparisons(claims: Sequence[dict[str, Any]]) -> list[Comparison]:
    """Every reading of every claim that a figure shows."""
    return [
        Comparison(
            claim["figure"], claim["id"], claim["claim"], claim["rule"], one["form"],
            (claim["corrected_as"] or "corrected") if one["form"] == "corrected" else "",
            {key: one[key] for key in (*ACROSS, "significance", "ball") if key in one},
            tuple(one["measured"]), one["verdict"], one["nearest"],
        )
        for claim in claims
        if claim.get("figure")
        for one in claim["readings"]
    ]  # fmt: skip


def grids(compared: Sequence[Comparison]) -> list[Grid]:
    """The comparisons as tables: one per subject, a line per statement and form, a column per reading."""
    built = []
    for number, title in TITLES.items():
        chosen = [one for one in compared if one.figure.startswith(number)]
        columns = list(dict.fromkeys(_across(one) for one in chosen))
        lines: dict[tuple[str, ...], dict[tuple[str, ...], Comparison]] = {}
        for one in chosen:
            lines.setdefault((one.id, _detail(one)), {})[_across(one)] = one
        made = []
        for (_, detail), cells in lines.items():
            first = next(iter(cells.values()))
            row = tuple(cells.get(column) for column in columns)
            made.append(Line(first.figure, first.paper, first.rule, detail, row))
        if made:
            built.append(Grid(title, tuple(" ".join(column) for column in columns), tuple(made)))
    return built


def nearest(compared: Sequence[Comparison]) -> list[Comparison]:
    """The reading of each statement that comes nearest to what the paper prints."""
    return [one for one in compared if one.nearest]


def contradicted_by_all(compared: Sequence[Comparison]) -> list[Comparison]:
    """The statements that every reading contradicts, each with its nearest reading."""
    possible = {one.id for one in compared if one.verdict in ("agrees", "depends")}
    return [one for one in nearest(compared) if one.id not in possible]


def undecided(compared: Sequence[Comparison]) -> list[Comparison]:
    """The statements that no reading supports, but some support in part of the windows, with the nearest reading."""
    given = {one.id for one in compared if one.verdict == "agrees"}
    contradicted = {one.id for one in contradicted_by_all(compared)}
    return [one for one in nearest(compared) if one.id not in given | contradicted]


def best_readings(compared: Sequence[Comparison]) -> list[tuple[str, int, int]]:
    """For each pair of rows and vectors: how many statements on Figures 2 and 3 hold as printed, and out of how many.

    A statement that is measured at several significance levels, or with two balls, holds if it does for one of them.
    The pair with the most comes first.
    """
    counts: dict[str, dict[str, bool]] = {}
    for one in compared:
        if one.form == "printed" and "vectors" in one.reading and one.measured:
            given = counts.setdefault(label({key: one.reading[key] for key in ("rows", "vectors")}), {})
            given[one.id] = given.get(one.id, False) or one.verdict == "agrees"
    ranked = [(name, sum(given.values()), len(given)) for name, given in counts.items()]
    return sorted(ranked, key=lambda entry: -entry[1])


def summary(compared: Sequence[Comparison]) -> list[str]:
    """Sentences: the reading that gives most of what the paper prints, and what no reading gives."""
    best = best_readings(compared)
    top = [name for name, count, _ in best if count == best[0][1]]
    lines = [f"Most statements of Figures 2 and 3 ({best[0][1]} of {best[0][2]}): {'; '.join(top)}."] if best else []
    for what, missing in (
        ("No reading gives", contradicted_by_all(compared)),
        ("Depends on the window in every reading that may give it", undecided(compared)),
    ):
        lines += [
            f"{what}: {one.paper} (Figure {one.figure}). Nearest: {one.values} with {one.label}." for one in missing
        ]
    return lines


def label(reading: dict[str, str]) -> str:
    """A reading in words."""
    words = {"significance": "significance {}", "logit_scale": "{} logits"}
    return _joined(words.get(key, f"{{}} {key}").format(value) for key, value in reading.items())


def number(value: float) -> str:
    """A number with three digits."""
    return "0" if abs(value) < 1e-9 else f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def _across(one: Comparison) -> tuple[str, ...]:
    return tuple(one.reading[key] for key in ACROSS if key in one.reading)


def _detail(one: Comparison) -> str:
    level = f"at {one.reading['significance']}" if "significance" in one.reading else ""
    return _joined([one.variant, level, BALL[one.reading.get("ball", "open")]])


def _joined(parts: Iterable[str]) -> str:
    return ", ".join(part for part in parts if part)
