"""The paper's figures from the tables of a reproduction, the quantity as printed and the corrected one side by side.

A row of panels for each reading of a causal row: `literal` with the keys that it does not see, `visible` without them.
"""

from __future__ import annotations

import math
from dataclasses import replace

import altair as alt
import numpy as np
import polars as pl

from attnscope.columns import head_name, label
from attnscope.show.figures import STAR, Channel, Figure, Mark, Panel, Series, linear_range, log_axis, log_range
from attnscope.show.palette import BLACK, BLUE, GREEN, LIGHT_GRAY, ORANGE, PURPLE, RED, SKY
from attnscope.studies.paper.claims import CRITICAL, DISTANCE, ENDS, GRADIENT, SEPARABILITY, SHARE, criticals, maxima
from attnscope.studies.paper.evidence import CLOSED, Evidence, readings
from attnscope.studies.paper.settings import FIXED_N, SEPARABILITY_N, STEPS, TEMPERATURES

PRINTED, CORRECTED = "as printed", "corrected"
SPREAD = "bands: range over windows"
_OVER = f"median over heads of each head's mean over rows, {SPREAD}"


def draw(tables: dict[str, pl.DataFrame]) -> dict[str, Figure]:
    """The figures by name, e.g. figure-2a-value: one for each kind of vectors or logits."""
    of = {name: readings(tables, name) for name in (DISTANCE, CRITICAL, SEPARABILITY, GRADIENT)}
    figures: dict[str, Figure] = {}
    if not tables["circle"].is_empty():
        figures["figure-1"] = _circle(tables["circle"])
    for vectors in _values(of[DISTANCE], "vectors"):
        chosen = _having(of[DISTANCE], "vectors", vectors)
        figures[f"figure-2a-{vectors}"] = _against_length(chosen, vectors)
        figures[f"figure-2b-{vectors}"] = _against_n(chosen, vectors)
        figures[f"figure-2c-{vectors}"] = _critical(_having(of[CRITICAL], "vectors", vectors), vectors)
        figures[f"figure-3-{vectors}"] = _separability(_having(of[SEPARABILITY], "vectors", vectors), vectors)
    for scale in _values(of[GRADIENT], "logit_scale"):
        figures[f"figure-4-{scale}"] = _gradient(_having(of[GRADIENT], "logit_scale", scale), scale)
    return dict(sorted(figures.items()))


def _values(of: list[Evidence], key: str) -> list[str]:
    return list(dict.fromkeys(e.labels[key] for e in of))


def _having(of: list[Evidence], key: str, value: str) -> list[Evidence]:
    return [e for e in of if e.labels[key] == value]


def over_windows(table: pl.DataFrame, by: list[str], columns: dict[str, pl.Expr]) -> pl.DataFrame:
    """Each statistic over the heads of a window, then its median, minimum and maximum over windows, in long form."""
    per_window = table.group_by("window", *by).agg(**columns)
    long = per_window.unpivot(on=list(columns), index=["window", *by], variable_name="series", value_name="value")
    return (
        long.group_by(*by, "series")
        .agg(pl.median("value"), low=pl.min("value"), high=pl.max("value"))
        .sort("series", *by)
        .with_columns(pl.selectors.float().round_sig_figs(6))
    )


def dodged(tables: list[pl.DataFrame], x: str) -> list[pl.DataFrame]:
    """The tables with x shifted against each other by 1.5% of a logarithmic axis, so that no point hides another."""
    every = np.concatenate([table[x].to_numpy() for table in tables])
    step, middle = 0.015 * np.log(every.max() / every.min()), (len(tables) - 1) / 2
    return [table.with_columns(pl.col(x) * np.exp(step * (index - middle))) for index, table in enumerate(tables)]


# Figure 1

SELECTED = Mark("in the top set", PURPLE, line=0, point=STAR, size=60)
LEFT_OUT = Mark("left out", BLACK, line=0, point="circle", size=10, fill="white")
CONTEXT = Mark("context", BLACK, line=0, point="cross", size=40)
BALL = Mark("ball around the context", SKY, line=1.6)
UNIT = Mark("unit circle", LIGHT_GRAY, line=1)


def _circle(circle: pl.DataFrame) -> Figure:
    """Three panels: tokens on the circle, tokens scaled by their weights with the ball, and the tokens enlarged."""
    tokens = circle.with_columns(scaled_x=pl.col("x") * pl.col("weight"), scaled_y=pl.col("y") * pl.col("weight"))
    one = circle.row(0, named=True)
    radius, (cx, cy) = one["radius"], (one["context_x"], one["context_y"])
    scaled = tokens.select("selected", x="scaled_x", value="scaled_y")
    across, up = scaled["x"].to_numpy(), scaled["value"].to_numpy()
    center = (float(across.min() + across.max()) / 2, float(up.min() + up.max()) / 2)
    half = 0.58 * max(float(np.ptp(across)), float(np.ptp(up)), 1e-6)
    ball = (BALL, _ring(cx, cy, radius))
    middle = pl.DataFrame({"x": [cx], "value": [cy]})
    near = max(abs(cx - center[0]), abs(cy - center[1])) < half
    reach = max(1.12, *(abs(at) + radius for at in (cx, cy)))
    unit = (UNIT, _ring(0, 0, 1))
    on_circle = _tokens(tokens.select("selected", x="x", value="y"))
    enlarged: list[Series] = [ball, *_tokens(scaled), (CONTEXT, middle if near else middle.clear())]
    panels = [
        _square("tokens on the circle", [unit, *on_circle], (0, 0), 1.12),
        _square("scaled by their weights", [unit, ball, *_tokens(scaled), (CONTEXT, middle)], (0, 0), reach),
        _square("the same, enlarged", enlarged, center, half),
    ]
    count, inside = int(circle["selected"].sum()), int(circle["inside"].sum())
    notes = [
        f"{head_name(one['layer'], one['head'])}, last row of {len(circle)} tokens, N = {count}: real weights, "
        f"{one['vectors']} vectors in the plane where they spread most",
        f"{inside} of {count} lie in the ball here; in all dimensions {one['separability']:.2f} of the top set do",
    ]
    return Figure("Figure 1. What it takes to tell tokens apart", notes, [panels], circle)


def _tokens(table: pl.DataFrame) -> list[Series]:
    return [(LEFT_OUT, table.filter(~pl.col("selected"))), (SELECTED, table.filter("selected"))]


def _ring(x: float, y: float, radius: float) -> pl.DataFrame:
    angles = [2 * math.pi * k / 240 for k in range(241)]
    return pl.DataFrame(
        {
            "x": [x + radius * math.cos(angle) for angle in angles],
            "value": [y + radius * math.sin(angle) for angle in angles],
            "order": range(len(angles)),
        }
    )


def _square(heading: str, series: list[Series], center: tuple[float, float], half: float) -> Panel:
    """A square panel around a center; rings are cut off at its edges."""
    x, y = (
        {
            "shorthand": f"{name}:Q",
            "title": None,
            "scale": alt.Scale(domain=[middle - half, middle + half], nice=False, zero=False),
            "axis": alt.Axis(tickCount=3, grid=False, format="~g"),
        }
        for name, middle in zip(("x", "value"), center, strict=True)
    )
    return Panel(heading, x, y, series, square=True)


# Figures 2a and 2b. The distance may coincide with its printed expectation: its line is wider, its points are larger,
# and drawn first.

DISTANCE_MARK = Mark(label("distance"), GREEN, line=3, point="circle", size=44, band=0.18)
EXPECTED = Mark(label("expected_printed"), BLUE, dash=(6, 2), point="square", band=0.18)
BOUND = Mark(label("distance_bound_printed"), RED, dash=(2, 2), point="triangle-up", size=24, band=0.18)
E1 = Mark(f"{label('expected_lower')} to upper (E1)", SKY, line=0, band=0.45, edge=1.2)
AS_PRINTED = {"distance": DISTANCE_MARK, "expected_printed": EXPECTED, "bound_printed": BOUND}


def _against_length(chosen: list[Evidence], vectors: str) -> Figure:
    tables = {e.labels["rows"]: _medians(e.table(DISTANCE).filter(n=FIXED_N), "length") for e in chosen}
    x = log_axis("length", "L, tokens", next(iter(tables.values()))["length"])
    note = f"Algorithm 1, N = {FIXED_N}, {vectors} vectors; {_OVER}"
    return _distances(tables, x, "Figure 2a. Distance against length", note)


def _against_n(chosen: list[Evidence], vectors: str) -> Figure:
    longest = max(int(e.table(DISTANCE)["length"].to_numpy().max()) for e in chosen)
    tables = {e.labels["rows"]: _medians(e.table(DISTANCE).filter(length=longest), "n") for e in chosen}
    x = log_axis("n", "N, size of the top set", next(iter(tables.values()))["n"])
    note = f"Algorithm 2, L = {longest:,}, {vectors} vectors; {_OVER}"
    return _distances(tables, x, "Figure 2b. Distance against N", note)


def _medians(table: pl.DataFrame, by: str) -> pl.DataFrame:
    columns = {name: pl.median(name) for name in (*AS_PRINTED, *(f"expected_{end}" for end in ENDS))}
    return over_windows(table, [by], columns)


def _distances(tables: dict[str, pl.DataFrame], x: Channel, title: str, note: str) -> Figure:
    """A row per reading: distance, printed expectation and bound; distance and the proved range of the expectation."""
    every = pl.concat([table.with_columns(rows=pl.lit(rows)) for rows, table in tables.items()])
    positive = every.filter(pl.col("low") > 0)
    low, high = float(positive["low"].to_numpy().min()), float(positive["high"].to_numpy().max())
    y = log_range("value", label("distance"), low, high)
    rows = []
    for name, medians in tables.items():
        printed: list[Series] = [(mark, medians.filter(series=one)) for one, mark in AS_PRINTED.items()]
        corrected: list[Series] = [(E1, _expected_range(medians)), (DISTANCE_MARK, medians.filter(series="distance"))]
        panels = ((PRINTED, printed), (CORRECTED, corrected))
        rows.append([Panel(f"{name} rows, {form}", x, y, series) for form, series in panels])
    return Figure(title, [note], rows, every)


def _expected_range(medians: pl.DataFrame) -> pl.DataFrame:
    """The medians of both ends of E1 as `low` and `high`."""
    by = next(name for name in ("length", "n") if name in medians.columns)
    ends = {"expected_lower": "low", "expected_upper": "high"}
    edges = medians.filter(pl.col("series").is_in(list(ends))).pivot(on="series", index=by, values="value")
    return edges.rename(ends).sort(by)


# Figure 2c. Marks by series: the first critical N, and the persistent one as an outline. Series that may coincide have
# lines of different widths, the widest drawn first.

GUIDE = Mark(f"{SHARE:g} L", BLACK, line=1, dash=(2, 2))
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


def _critical(chosen: list[Evidence], vectors: str) -> Figure:
    """Critical N against L for the printed expectation and for both ends of E1, and against the number of heads."""
    rows, tables = [], []
    for name in _values(chosen, "rows"):
        of = {e.labels["significance"]: e for e in _having(chosen, "rows", name)}
        printed = pl.concat(
            [
                _critical_medians(e, "printed").with_columns(series=pl.lit(f"at {level}"))
                for level, e in sorted(of.items())
            ]
        )
        level = min(of)
        ends = pl.concat([_critical_medians(of[level], end).with_columns(series=pl.lit(f"E1 {end}")) for end in ENDS])
        heads = pl.concat([_by_heads(e) for _, e in sorted(of.items())])
        lengths = printed["length"].unique().sort().to_list()
        x, y = log_axis("length", "L, tokens", lengths), log_range("value", "critical N", 1, max(lengths))
        line = [max(min(lengths), 1 / SHARE), max(lengths)]  # 0.06 L, from N = 1 on
        guide = GUIDE, pl.DataFrame({"length": line, "value": [SHARE * end for end in line]})
        panels = [
            Panel(f"{name} rows, {PRINTED}", x, y, [*_by_length(printed), guide]),
            Panel(f"{name} rows, {CORRECTED}, at {level}", x, y, [*_by_length(ends), guide]),
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
        "median over windows, bars: range over windows, quartiles of subsets against heads; series are shifted "
        "sideways so that none hides another",
    ]
    return Figure("Figure 2c. Critical N", notes, rows, pl.concat(tables))


def _by_length(table: pl.DataFrame) -> list[Series]:
    marks = [
        (mark, table.filter(series=name, kind=kind))
        for name in table["series"].unique(maintain_order=True)
        for kind, mark in (("first", _FIRST[name]), ("persistent", _PERSISTENT[name]))
    ]
    shifted = dodged([lines for _, lines in marks], "length")
    return [(mark, lines) for (mark, _), lines in zip(marks, shifted, strict=True)]


def _critical_medians(e: Evidence, expectation: str) -> pl.DataFrame:
    """First and persistent critical N by length: median and range over windows."""
    return pl.concat(
        [
            criticals(e, expectation, kind)
            .group_by("length")
            .agg(value=pl.median("n"), low=pl.min("n"), high=pl.max("n"), none=pl.mean("none"))
            .with_columns(kind=pl.lit(kind))
            .sort("length")
            for kind in ("first", "persistent")
        ]
    )


def _by_heads(e: Evidence) -> pl.DataFrame:
    """The first critical N against the number of heads in the test, at the longest length, printed expectation."""
    n = pl.col("first").fill_null(pl.col("length")).cast(pl.Float64)
    return (
        e.longest("protocol_subsets")
        .filter(expectation="printed")
        .group_by("heads")
        .agg(value=n.median(), low=n.quantile(0.25), high=n.quantile(0.75))
        .with_columns(series=pl.lit(f"at {e.labels['significance']}"))
        .sort("heads")
    )


# Figure 3

CLAIMED = (0.70, 0.85)  # where the paper says that it saturates
WHISKER = Mark("5% to 95% of heads", GREEN, line=0, bar=1)
BOX = Mark("quartiles over heads", GREEN, line=0, bar=8, bar_opacity=0.5)
MEDIAN = Mark("median over heads", GREEN, line=0, point="stroke", size=90)
WINDOWS = Mark("medians of single windows", BLACK, line=0, bar=2.2)
LARGEST = Mark("largest", GREEN, line=0, point="diamond", size=20, fill="white")
RANGE = Mark("0.70 to 0.85, as the paper states", LIGHT_GRAY, line=0, band=0.3)
UPPER = Mark(label("separability_upper_printed"), RED, line=1.2, dash=(6, 2))
LOWER = Mark(label("separability_lower_printed"), BLUE, line=1.2, dash=(2, 2))


def _separability(chosen: list[Evidence], vectors: str) -> Figure:
    """Box plots over heads: the closed ball as printed, the open ball, and visible rows."""
    panels, tables = [], []
    for e in sorted(chosen, key=lambda one: (one.labels["rows"], one.labels["ball"] != CLOSED)):
        rows, ball = e.labels["rows"], e.labels["ball"]
        quantiles = _quantiles(e)
        each = 2 if len(chosen) > 2 else 1  # panels of a third of the width have no room for all numbers
        panels.append(_boxes(f"{rows} rows, {ball} ball", quantiles, each))
        tables.append(quantiles.with_columns(rows=pl.lit(rows), ball=pl.lit(ball)))
    notes = [
        f"Algorithm 4, {vectors} vectors; {PRINTED}: closed ball, {CORRECTED}: open ball",
        "each head's mean over rows, heads of all windows; bounds: median over heads, negative ones drawn at 0",
    ]
    return Figure("Figure 3. Separability against N", notes, [panels], pl.concat(tables))


def _quantiles(e: Evidence) -> pl.DataFrame:
    """Quantiles of separability over heads and windows at each N, and the median of the bounds."""
    table = e.longest(SEPARABILITY).filter(pl.col("n").is_in(SEPARABILITY_N))
    s = pl.col("separability")
    by_window = table.group_by("n", "window").agg(m=s.median()).group_by("n")
    return (
        table.group_by("n")
        .agg(
            q05=s.quantile(0.05), q25=s.quantile(0.25), q50=s.median(), q75=s.quantile(0.75), q95=s.quantile(0.95),
            most=s.max(), upper_printed=pl.median("upper_printed"),
            lower_printed=pl.median("lower_printed").clip(lower_bound=0),
        )
        .join(by_window.agg(window_low=pl.min("m"), window_high=pl.max("m")), on="n")
        .sort("n")
    )  # fmt: skip


def _boxes(heading: str, quantiles: pl.DataFrame, each: int) -> Panel:
    """Box plots over heads with the medians of the bounds; one N of `each` has a number, the last too."""
    named = quantiles["n"].to_list()[::-1][::each]
    axis = alt.Axis(labelAngle=0, labelExpr=f"indexof({named}, datum.value) < 0 ? '' : datum.label")
    x = {"shorthand": "n:O", "title": "N, size of the top set", "axis": axis}
    window = quantiles.with_columns(  # a range of zero length is drawn as a short bar
        window_low=pl.col("window_low") - 0.01, window_high=pl.col("window_high") + 0.01
    )
    series: list[Series] = [
        (RANGE, quantiles.select("n").with_columns(low=pl.lit(CLAIMED[0]), high=pl.lit(CLAIMED[1]))),
        (WHISKER, _columns(quantiles, low="q05", high="q95")),
        (BOX, _columns(quantiles, low="q25", high="q75")),
        (WINDOWS, _columns(window, low="window_low", high="window_high")),
        (UPPER, _columns(quantiles, value="upper_printed")),
        (LOWER, _columns(quantiles, value="lower_printed")),
        (MEDIAN, _columns(quantiles, value="q50")),
        (LARGEST, _columns(quantiles, value="most")),
    ]
    return Panel(heading, x, linear_range("value", label("separability"), 0, 1), series)


def _columns(quantiles: pl.DataFrame, **columns: str) -> pl.DataFrame:
    return quantiles.select("n", **{name: pl.col(column) for name, column in columns.items()})


# Figure 4. Curves of different eps coincide for large T: the line of a smaller eps is wider and drawn first.

CURVES = {
    step: Mark(f"eps = {step:g}", color, line=width, band=0.18)
    for step, color, width in zip(STEPS, (BLUE, GREEN, ORANGE), (4.2, 2.4, 1.0), strict=True)
}
LIMIT = Mark("1/(2T), exact supremum for small eps", LIGHT_GRAY, line=7, line_opacity=0.45)
DASHED = Mark("min{1/(4T), \u221a2}, as printed", BLACK, line=1.2, dash=(6, 3))
SUPREMUM = "exact supremum: (\u221a2/eps) tanh(eps/(2\u221a2 T)), at most 1/(2T)"


def _gradient(chosen: list[Evidence], logits: str) -> Figure:
    """A row per reading: a random direction as in the paper, the worst one, and its share of the exact supremum."""
    tables = {e.labels["rows"]: _largest(e) for e in chosen}
    every = pl.concat([table.with_columns(rows=pl.lit(rows), logits=pl.lit(logits)) for rows, table in tables.items()])
    least = float(every.filter(pl.col("low") > 0)["low"].to_numpy().min())
    x = log_axis("temperature", "temperature T", (0.01, 0.1, 1.0, 10.0))
    y = log_range("value", "largest g over heads", least, 0.5 / TEMPERATURES[0])
    share = linear_range("value", "g / exact supremum", 0, 1)
    ends = pl.DataFrame({"temperature": [TEMPERATURES[0], TEMPERATURES[-1]]})
    limit = (LIMIT, ends.with_columns(value=0.5 / pl.col("temperature")))
    rows = []
    for name, curves in tables.items():
        random, worst = (curves.filter(direction=direction) for direction in ("random", "worst"))
        shares = worst.with_columns(pl.col("value", "low", "high") / pl.col("exact"))
        dashed = (DASHED, worst.filter(step=STEPS[0]).select("temperature", value="printed"))
        rows.append(
            [
                Panel(f"{name} rows, random direction", x, y, [*_curves(random), dashed]),
                Panel(f"{name} rows, worst direction", x, y, [limit, *_curves(worst), dashed]),
                Panel(f"{name} rows, share of supremum", x, share, _curves(shares)),
            ]
        )
    what = "q.k, as in eq. (2)" if logits == "raw" else "q.k / sqrt d: T = 1 is the model itself"
    note = f"Algorithm 5, logits {what}; largest of the heads' means over rows, median over windows, {SPREAD}"
    return Figure("Figure 4. Largest g(T, eps) over heads against temperature", [note, SUPREMUM], rows, every)


def _largest(e: Evidence) -> pl.DataFrame:
    """Largest g over heads: median, minimum and maximum over windows, with every bound."""
    both = [maxima(e, direction).with_columns(direction=pl.lit(direction)) for direction in ("random", "worst")]
    bounds = [pl.first("printed"), pl.first("exact")]
    return (
        pl.concat(both)
        .group_by("direction", "temperature", "step")
        .agg(pl.median("g").alias("value"), pl.min("g").alias("low"), pl.max("g").alias("high"), *bounds)
        .sort("direction", "step", "temperature")
    )


def _curves(table: pl.DataFrame) -> list[Series]:
    return [(mark, table.filter(pl.col("low") > 0, step=step)) for step, mark in CURVES.items()]
