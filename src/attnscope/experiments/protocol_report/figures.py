"""Figures 2a, 2b, 2c, 3 and 4 from the protocol's tables, in the paper's layout.

A row of panels for each reading of a causal row; in it the paper's quantity, and the corrected one beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt
import polars as pl

from attnscope.experiments.claims.distance import ENDS
from attnscope.experiments.figures import gradient, separability
from attnscope.experiments.figures.distance import AS_PRINTED, BOUND, DISTANCE, EXPECTED, LOWER, UPPER
from attnscope.experiments.figures.style import (
    BLACK,
    BLUE,
    CORRECTED,
    GREEN,
    ORANGE,
    PRINTED,
    RED,
    SKY,
    colors,
    inline,
    log_axis,
    median_lines,
    over_windows,
    panel,
    stacked,
)
from attnscope.experiments.protocol_report.claims import criticals
from attnscope.experiments.protocol_report.evidence import CLOSED, TABLES, readings
from attnscope.experiments.settings import FIXED_N

if TYPE_CHECKING:
    from attnscope.experiments.claims import Evidence, Labels

Figure = tuple[Any, pl.DataFrame]
Readings = list[tuple["Labels", "Evidence"]]
_OVER = "median over heads of each head's mean over rows, bands: spread over windows"
BAND = "expectation, proved range E1"
_N_TICKS = [1, 3, 10, 30, 100, 300, 1000]


def draw_protocol(tables: dict[str, pl.DataFrame]) -> dict[str, Figure]:
    """The chart and data of each figure by name, such as figure-2a-value: one for each kind of vectors or logits."""
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
    columns = {
        DISTANCE: pl.median("distance"),
        EXPECTED: pl.median("expected_printed"),
        BOUND: pl.median("distance_bound_printed"),
        LOWER: pl.median("expected_lower"),
        UPPER: pl.median("expected_upper"),
    }
    return over_windows(e.table("topn").filter(at), [by], columns)


def _against_length(chosen: Readings, vectors: str) -> Figure:
    tables = {labels["rows"]: _medians(e, pl.col("n") == FIXED_N, "prefix") for labels, e in chosen}
    lengths = next(iter(tables.values()))["prefix"].unique().sort().to_list()
    x = log_axis("prefix", "L, tokens", lengths)
    note = f"Algorithm 1, N = {FIXED_N}, {vectors} vectors; {_OVER}"
    return _two_columns(tables, x, "Figure 2a. Distance against length", note)


def _against_n(chosen: Readings, vectors: str) -> Figure:
    longest = max(int(e.table("topn")["prefix"].to_numpy().max()) for _, e in chosen)
    tables = {labels["rows"]: _medians(e, pl.col("prefix") == longest, "n") for labels, e in chosen}
    x = log_axis("n", "N, size of the top set", next(iter(tables.values()))["n"].unique().sort().to_list())
    note = f"Algorithm 2, L = {longest:,}, {vectors} vectors; {_OVER}"
    return _two_columns(tables, x, "Figure 2b. Distance against N", note)


def _two_columns(tables: dict[str, pl.DataFrame], x: dict[str, Any], title: str, note: str) -> Figure:
    """A row per reading: distance, printed expectation and bound; distance and the proved range of the expectation."""
    every = pl.concat([table.with_columns(rows=pl.lit(rows)) for rows, table in tables.items()])
    positive = every.filter(pl.col("low") > 0)
    ends = [float(positive["low"].to_numpy().min()) * 0.8, float(positive["high"].to_numpy().max()) * 1.25]
    y = log_axis("value", "summed distance", domain=ends)
    by = str(x["shorthand"]).split(":")[0]
    panels = []
    for rows, medians in tables.items():
        edges = medians.filter(pl.col("series").is_in([LOWER, UPPER])).pivot(on="series", index=by, values="value")
        band = (
            alt.Chart(inline(edges.rename({LOWER: "edge_low", UPPER: "edge_high"}).sort(by)))
            .mark_area(opacity=0.6, color=SKY)
            .encode(x=alt.X(**x), y=alt.Y(**(y | {"shorthand": "edge_low:Q"})), y2="edge_high:Q")
        )
        right = median_lines(medians, {DISTANCE: GREEN}, x, y, legend={DISTANCE: GREEN, BAND: SKY})
        panels.append(
            [
                panel(median_lines(medians, AS_PRINTED, x, y, (BOUND,)), f"{rows} rows, {PRINTED}"),
                panel([band, *right], f"{rows} rows, {CORRECTED}"),
            ]
        )
    return stacked(panels, title, [note]), every


_LEVELS = {"at 0.01": BLUE, "at 0.05": ORANGE}
_ENDS = {"E1 lower": GREEN, "E1 upper": RED}


def _critical(chosen: Readings, subsets: pl.DataFrame, vectors: str) -> Figure:
    """Critical N against L for the printed expectation and for both ends of E1, and against the number of heads."""
    rows, tables = [], []
    for name in _values(chosen, "rows"):
        of = {labels["significance"]: e for labels, e in _having(chosen, "rows", name)}
        printed = pl.concat(
            [_over_windows(e, "printed").with_columns(series=pl.lit(f"at {level}")) for level, e in of.items()]
        )
        level = min(of)
        ends = pl.concat([_over_windows(of[level], end).with_columns(series=pl.lit(f"E1 {end}")) for end in ENDS])
        heads = _by_heads(subsets.filter(reading=name))
        lengths = printed["prefix"].unique().sort().to_list()
        panels = [
            _lines(printed, _LEVELS, lengths, f"{name} rows, {PRINTED}"),
            _lines(ends, _ENDS, lengths, f"{name} rows, {CORRECTED}, at {level}"),
        ]
        if heads["heads"].n_unique() > 1:
            panels.append(_heads_panel(heads, max(lengths)))
        rows.append(panels)
        tables.append(pl.concat([printed, ends, heads], how="diagonal").with_columns(rows=pl.lit(name)))
    title = "Figure 2c. Critical N by the two-sample KS test over heads"
    notes = [
        f"Algorithm 3, {vectors} vectors; solid: first N accepted, dashed: from which on all are; dotted: 0.06 L;",
        "median over windows, bars: their spread; no N accepted: drawn at L",
    ]
    return stacked(rows, title, notes), pl.concat(tables)


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


def _lines(table: pl.DataFrame, palette: dict[str, str], lengths: list[int], title: str) -> alt.LayerChart:
    y = log_axis("value", "critical N", _N_TICKS, domain=[0.8, 1.3 * max(lengths)])
    base = alt.Chart(inline(table)).encode(
        x=alt.X(**log_axis("prefix", "L, tokens", lengths)),
        color=colors(palette),
        detail="kind:N",
        strokeDash=alt.condition("datum.kind == 'first'", alt.value([1, 0]), alt.value([4, 3])),
    )
    guide = pl.DataFrame({"prefix": lengths, "value": [0.06 * length for length in lengths]})
    dotted = alt.Chart(inline(guide)).mark_line(strokeDash=[2, 2], color=BLACK, strokeWidth=1, clip=True)
    layers = [
        dotted.encode(x="prefix:Q", y=alt.Y(**y)),
        base.mark_rule(strokeWidth=1.4).encode(y=alt.Y(**(y | {"shorthand": "low:Q"})), y2="high:Q"),
        base.mark_line(point=alt.OverlayMarkDef(size=26), strokeWidth=1.6).encode(y=alt.Y(**y)),
    ]
    return panel(layers, title)


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


def _heads_panel(heads: pl.DataFrame, longest: int) -> alt.LayerChart:
    y = log_axis("value", "critical N", _N_TICKS, domain=[0.8, 1.3 * longest])
    base = alt.Chart(inline(heads)).encode(
        x=alt.X(**log_axis("heads", "heads in the test", heads["heads"].unique().sort().to_list())),
        color=colors(_LEVELS),
    )
    layers = [
        base.mark_rule(strokeWidth=1.4).encode(y=alt.Y(**(y | {"shorthand": "low:Q"})), y2="high:Q"),
        base.mark_line(point=alt.OverlayMarkDef(size=26), strokeWidth=1.6).encode(y=alt.Y(**y)),
    ]
    return panel(layers, f"printed, against heads, L = {longest:,}", width=170)


def _separability(chosen: Readings, vectors: str) -> Figure:
    """Box plots over heads: the closed ball as printed, the open ball, and visible rows."""
    panels, tables = [], []
    for labels, e in sorted(chosen, key=lambda one: (one[0]["rows"], one[0]["ball"] != CLOSED)):
        quantiles = separability.data(e, ("printed",))
        form = f"{PRINTED}: closed ball" if labels["ball"] == CLOSED else f"{CORRECTED}: open ball"
        panels.append(panel(separability.boxes(quantiles, "printed"), f"{labels['rows']} rows, {form}"))
        tables.append(quantiles.with_columns(rows=pl.lit(labels["rows"]), ball=pl.lit(labels["ball"])))
    notes = [
        f"Algorithm 4, {vectors} vectors; boxes: quartiles over heads and windows of each head's mean over rows,",
        "whiskers 5 % and 95 %, dots: the largest; black bar: medians of single windows; gray: 0.70 to 0.85",
    ]
    return stacked([panels], "Figure 3. Separability against N", notes), pl.concat(tables)


def _gradient(chosen: Readings, logits: str) -> Figure:
    """A row per reading: a random direction as in the paper, and the worst one."""
    tables = {labels["rows"]: gradient.data(e) for labels, e in chosen}
    least = min(float(curves["low"].to_numpy().min()) for curves in tables.values())
    panels = [gradient.panels(curves, f"{rows} rows, ", least) for rows, curves in tables.items()]
    what = "q.k, as in eq. (2)" if logits == "raw" else "q.k / sqrt d: T = 1 is the model itself"
    note = f"Algorithm 5, logits {what}; largest of the heads' means over rows, median and spread over windows"
    every = pl.concat([table.with_columns(rows=pl.lit(rows), logits=pl.lit(logits)) for rows, table in tables.items()])
    return stacked(panels, "Figure 4. Gradient sensitivity against temperature", [note]), every
