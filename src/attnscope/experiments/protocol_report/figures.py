"""Figures 2a, 2b, 2c, 3 and 4 from the protocol's tables, in the paper's layout.

A row of panels for each reading of a causal row: the paper's quantity, and the corrected one next to it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from attnscope.columns import label
from attnscope.experiments.claims.distance import ENDS
from attnscope.experiments.figures import critical, gradient, separability
from attnscope.experiments.figures.distance import (
    AS_PRINTED,
    CORRECTED,
    DISTANCE,
    E1,
    PRINTED,
    SPREAD,
    distance_axis,
    expected_range,
    series,
)
from attnscope.experiments.figures.statistics import dodged, over_windows
from attnscope.experiments.protocol_report.claims import criticals
from attnscope.experiments.protocol_report.evidence import CLOSED, TABLES, readings
from attnscope.show.figures import BLUE, GREEN, ORANGE, RED, Channel, Figure, Mark, Panel, Series, log_axis, log_range
from attnscope.studies.paper.settings import FIXED_N

if TYPE_CHECKING:
    from attnscope.experiments.claims import Evidence, Labels

Readings = list[tuple["Labels", "Evidence"]]
_OVER = f"median over heads of each head's mean over rows, {SPREAD}"


def draw_protocol(tables: dict[str, pl.DataFrame]) -> dict[str, Figure]:
    """The figures by name, e.g. figure-2a-value: one for each kind of vectors or logits."""
    of = {name: readings(tables, name) for name in TABLES}
    subsets = tables.get("protocol_subsets", tables["protocol_critical"])
    figures: dict[str, Figure] = {}
    for vectors in _values(of["protocol_distance"], "vectors"):
        chosen = _having(of["protocol_distance"], "vectors", vectors)
        figures[f"figure-2a-{vectors}"] = _against_length(chosen, vectors)
        figures[f"figure-2b-{vectors}"] = _against_n(chosen, vectors)
        tests = _having(of["protocol_critical"], "vectors", vectors)
        figures[f"figure-2c-{vectors}"] = _critical(tests, subsets.filter(vectors=vectors), vectors)
    for vectors in _values(of["protocol_separability"], "vectors"):
        figures[f"figure-3-{vectors}"] = _separability(
            _having(of["protocol_separability"], "vectors", vectors), vectors
        )
    for logits in _values(of["protocol_gradient"], "logits"):
        figures[f"figure-4-{logits}"] = _gradient(_having(of["protocol_gradient"], "logits", logits), logits)
    return dict(sorted(figures.items()))


def _values(of: Readings, key: str) -> list[str]:
    return list(dict.fromkeys(labels[key] for labels, _ in of))


def _having(of: Readings, key: str, value: str) -> Readings:
    return [(labels, e) for labels, e in of if labels[key] == value]


def _medians(e: Evidence, at: pl.Expr, by: str) -> pl.DataFrame:
    columns = {name: pl.median(name) for name in (*AS_PRINTED, "expected_lower", "expected_upper")}
    return over_windows(e.table("topn").filter(at), [by], columns)


def _against_length(chosen: Readings, vectors: str) -> Figure:
    tables = {labels["rows"]: _medians(e, pl.col("n") == FIXED_N, "prefix") for labels, e in chosen}
    x = log_axis("prefix", "L, tokens", next(iter(tables.values()))["prefix"])
    note = f"Algorithm 1, N = {FIXED_N}, {vectors} vectors; {_OVER}"
    return _distances(tables, x, "Figure 2a. Distance against length", note)


def _against_n(chosen: Readings, vectors: str) -> Figure:
    longest = max(int(e.table("topn")["prefix"].to_numpy().max()) for _, e in chosen)
    tables = {labels["rows"]: _medians(e, pl.col("prefix") == longest, "n") for labels, e in chosen}
    x = log_axis("n", "N, size of the top set", next(iter(tables.values()))["n"])
    note = f"Algorithm 2, L = {longest:,}, {vectors} vectors; {_OVER}"
    return _distances(tables, x, "Figure 2b. Distance against N", note)


def _distances(tables: dict[str, pl.DataFrame], x: Channel, title: str, note: str) -> Figure:
    """A row per reading: distance, printed expectation and bound; distance and the proved range of the expectation."""
    every = pl.concat([table.with_columns(rows=pl.lit(rows)) for rows, table in tables.items()])
    y = distance_axis(every)
    rows = [
        [
            Panel(f"{name} rows, {PRINTED}", x, y, series(medians, AS_PRINTED)),
            Panel(
                f"{name} rows, {CORRECTED}",
                x,
                y,
                [(E1, expected_range(medians)), (DISTANCE, medians.filter(series="distance"))],
            ),
        ]
        for name, medians in tables.items()
    ]
    return Figure(title, [note], rows, every)


# Marks of Figure 2c by series: the first critical N, and the persistent one as an outline. Series that may coincide
# have lines of different widths, the widest drawn first.
_FIRST = {
    "at 0.01": Mark(f"{label('expected_printed')} at 0.01: first", BLUE, line=2.6, point="circle", bar=1.2),
    "at 0.05": Mark(f"{label('expected_printed')} at 0.05: first", ORANGE, line=1.2, point="square", bar=1.2),
    "E1 lower": Mark(f"{label('expected_lower')} (E1): first", GREEN, line=2.6, point="triangle-up", bar=1.2),
    "E1 upper": Mark(f"{label('expected_upper')} (E1): first", RED, line=1.2, point="triangle-down", bar=1.2),
}
_PERSISTENT = {
    name: replace(mark, label=mark.label.replace("first", "persistent"), fill="white", dash=(4, 2))
    for name, mark in _FIRST.items()
}
_LEVELS = ("at 0.01", "at 0.05")


def _critical(chosen: Readings, subsets: pl.DataFrame, vectors: str) -> Figure:
    """Critical N against L for the printed expectation and for both ends of E1, and against the number of heads."""
    rows, tables = [], []
    for name in _values(chosen, "rows"):
        of = {labels["significance"]: e for labels, e in _having(chosen, "rows", name)}
        printed = pl.concat(
            [_over_windows(e, "printed").with_columns(series=pl.lit(f"at {level}")) for level, e in sorted(of.items())]
        )
        level = min(of)
        ends = pl.concat([_over_windows(of[level], end).with_columns(series=pl.lit(f"E1 {end}")) for end in ENDS])
        heads = _by_heads(subsets.filter(reading=name))
        lengths = printed["prefix"].unique().sort().to_list()
        x, y = log_axis("prefix", "L, tokens", lengths), log_range("value", "critical N", 1, max(lengths))
        panels = [
            Panel(f"{name} rows, {PRINTED}", x, y, [*_by_length(printed), critical.guide(lengths)]),
            Panel(f"{name} rows, {CORRECTED}, at {level}", x, y, [*_by_length(ends), critical.guide(lengths)]),
        ]
        if heads["heads"].n_unique() > 1:
            across = log_axis("heads", "heads in the test", heads["heads"])
            shifted = dodged([heads.filter(series=one) for one in _LEVELS], "heads")
            of_levels = [(_FIRST[one], table) for one, table in zip(_LEVELS, shifted, strict=True)]
            panels.append(Panel(f"{PRINTED}, L = {max(lengths):,}", across, y, of_levels))
        rows.append(panels)
        tables.append(pl.concat([printed, ends, heads], how="diagonal").with_columns(rows=pl.lit(name)))
    notes = [
        f"Algorithm 3, the two-sample KS test over heads, {vectors} vectors; first: the smallest N accepted, "
        "persistent: the smallest from which on every N is accepted; L if there is none",
        f"median over windows, bars: range over windows, quartiles of subsets against heads; {critical.SHIFTED}",
    ]
    return Figure("Figure 2c. Critical N", notes, rows, pl.concat(tables))


def _by_length(table: pl.DataFrame) -> list[Series]:
    marks = [
        (mark, table.filter(series=name, kind=kind))
        for name in table["series"].unique(maintain_order=True)
        for kind, mark in (("first", _FIRST[name]), ("persistent", _PERSISTENT[name]))
    ]
    shifted = dodged([lines for _, lines in marks], "prefix")
    return [(mark, lines) for (mark, _), lines in zip(marks, shifted, strict=True)]


def _over_windows(e: Evidence, expectation: str) -> pl.DataFrame:
    """First and persistent critical N by length: median and range over windows."""
    return pl.concat(
        [
            criticals(e, expectation, kind)
            .group_by("prefix")
            .agg(value=pl.median("n"), low=pl.min("n"), high=pl.max("n"), none=pl.mean("none"))
            .with_columns(kind=pl.lit(kind))
            .sort("prefix")
            for kind in ("first", "persistent")
        ]
    )


def _by_heads(subsets: pl.DataFrame) -> pl.DataFrame:
    """The first critical N against the number of heads in the test, at the longest length, printed expectation."""
    longest = pl.col("length") == pl.col("length").max()
    n = pl.col("first").fill_null(pl.col("length")).cast(pl.Float64)
    return (
        subsets.filter(longest, pl.col("expectation") == "printed")
        .group_by("significance", "heads")
        .agg(value=n.median(), low=n.quantile(0.25), high=n.quantile(0.75))
        .with_columns(series=pl.format("at {}", pl.col("significance")))
        .sort("significance", "heads")
    )


def _separability(chosen: Readings, vectors: str) -> Figure:
    """Box plots over heads: the closed ball as printed, the open ball, and visible rows."""
    panels, tables = [], []
    for labels, e in sorted(chosen, key=lambda one: (one[0]["rows"], one[0]["ball"] != CLOSED)):
        quantiles = separability.data(e, ("printed",))
        each = 2 if len(chosen) > 2 else 1  # panels of a third of the width have no room for all numbers
        panels.append(separability.panel(f"{labels['rows']} rows, {labels['ball']} ball", quantiles, "printed", each))
        tables.append(quantiles.with_columns(rows=pl.lit(labels["rows"]), ball=pl.lit(labels["ball"])))
    notes = [
        f"Algorithm 4, {vectors} vectors; {PRINTED}: closed ball, {CORRECTED}: open ball",
        "each head's mean over rows, heads of all windows; bounds: median over heads, negative ones drawn at 0",
    ]
    return Figure("Figure 3. Separability against N", notes, [panels], pl.concat(tables))


def _gradient(chosen: Readings, logits: str) -> Figure:
    """A row per reading: a random direction as in the paper, the worst one, and its share of the exact supremum."""
    tables = {labels["rows"]: gradient.data(e) for labels, e in chosen}
    every = pl.concat([table.with_columns(rows=pl.lit(rows), logits=pl.lit(logits)) for rows, table in tables.items()])
    rows = [gradient.panels(curves, f"{name} rows, ", every) for name, curves in tables.items()]
    what = "q.k, as in eq. (2)" if logits == "raw" else "q.k / sqrt d: T = 1 is the model itself"
    note = f"Algorithm 5, logits {what}; largest of the heads' means over rows, median over windows, {SPREAD}"
    title = "Figure 4. Largest g(T, eps) over heads against temperature"
    return Figure(title, [note, gradient.SUPREMUM], rows, every)
