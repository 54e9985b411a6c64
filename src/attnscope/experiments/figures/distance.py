"""Figure 2: distance, expectation and bounds against L and against N; critical N against L."""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl

from attnscope.experiments.claims.distance import common_criticals, criticals
from attnscope.experiments.claims.evidence import Evidence, window_values
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
    side_by_side,
)  # fmt: skip
from attnscope.experiments.intervals import bootstrap
from attnscope.experiments.settings import FIXED_N

DISTANCE, EXPECTED, BOUND = "distance", "expectation, printed", "bound, printed"
DRAWN, LOWER, UPPER, B3, B4 = "expectation", "E1 lower", "E1 upper", "B3, upper bound", "B4, lower bound"
AS_PRINTED = {DISTANCE: GREEN, EXPECTED: BLUE, BOUND: RED}
AS_CORRECTED = {DISTANCE: GREEN, B3: RED, B4: ORANGE, DRAWN: BLUE}
BAND = "its proved range, E1"


def data(e: Evidence, at: pl.Expr, by: str) -> pl.DataFrame:
    """Medians over heads by L or N, with their range over windows."""
    topn = e.table("topn").filter(at)
    drawn = e.table("drawn").filter(at)
    columns = {
        DISTANCE: pl.median("distance"),
        EXPECTED: pl.median("expected_printed"),
        BOUND: pl.median("distance_bound_printed"),
        LOWER: pl.median("expected_lower"),
        UPPER: pl.median("expected_upper"),
        B3: pl.median("distance_upper"),
        B4: pl.median("distance_lower"),
    }
    return pl.concat([over_windows(topn, [by], columns), over_windows(drawn, [by], {DRAWN: pl.median("drawn_mean")})])


def against_length(e: Evidence) -> tuple[alt.HConcatChart, pl.DataFrame]:
    """Figure 2a: distance, expectation and bounds against L at a fixed N."""
    medians = data(e, pl.col("n") == FIXED_N, "prefix")
    x = log_axis("prefix", "L, tokens", medians["prefix"].unique().sort().to_list())
    note = f"N = {FIXED_N}; median over heads, bands: spread over windows"
    return _two_panels(medians, x, "Figure 2a. Distance against length", note), medians


def against_n(e: Evidence) -> tuple[alt.HConcatChart, pl.DataFrame]:
    """Figure 2b: distance, expectation and bounds against N at the longest length."""
    longest = int(e.table("topn")["prefix"].to_numpy().max())
    medians = data(e, (pl.col("prefix") == longest), "n")
    x = log_axis("n", "N, size of the top set", [1, 5, 10, 20, 100, 500])
    note = f"L = {longest:,}; median over heads, bands: spread over windows"
    return _two_panels(medians, x, "Figure 2b. Distance against N", note), medians


def _two_panels(medians: pl.DataFrame, x: dict[str, Any], title: str, note: str) -> alt.HConcatChart:
    positive = medians.filter(pl.col("low") > 0)
    ends = [float(positive["low"].to_numpy().min()) * 0.8, float(positive["high"].to_numpy().max()) * 1.25]
    y = log_axis("value", "summed distance", domain=ends)
    by = str(x["shorthand"]).split(":")[0]
    edges = medians.filter(pl.col("series").is_in([LOWER, UPPER])).pivot(on="series", index=by, values="value").sort(by)
    edges = edges.rename({LOWER: "edge_low", UPPER: "edge_high"}).with_columns(series=pl.lit(BAND))
    palette = AS_CORRECTED | {BAND: SKY}
    # B3 and B4 often coincide with the distance, so they are drawn wider and below it.
    bounds = [
        alt.Chart(inline(medians.filter(pl.col("series") == name)))
        .mark_line(strokeWidth=size, color=color, opacity=0.55)
        .encode(x=alt.X(**x), y=alt.Y(**y))
        for name, color, size in ((B3, RED, 8), (B4, ORANGE, 4.5))
    ]
    lines = {name: color for name, color in AS_CORRECTED.items() if name not in (B3, B4)}
    corrected = [*bounds, *median_lines(medians, lines, x, y, legend=palette)]
    low = y | {"shorthand": "edge_low:Q"}
    band = (
        alt.Chart(inline(edges))
        .mark_area(opacity=0.35, color=SKY)
        .encode(x=alt.X(**x), y=alt.Y(**low), y2="edge_high:Q")
    )
    return side_by_side(
        panel(median_lines(medians, AS_PRINTED, x, y, (BOUND,)), PRINTED),
        panel([band, *corrected], CORRECTED),
        title=title,
        subtitle=[note, _tightness(medians, by)],
    )


def _tightness(medians: pl.DataFrame, by: str) -> str:
    """The largest relative gap between the distance and its proved bounds, as a line of the subtitle."""
    wide = medians.filter(pl.col("series").is_in([DISTANCE, B3, B4])).pivot(on="series", index=by, values="value")
    ratios = [(wide[B3] / wide[DISTANCE]).to_numpy().max(), (wide[DISTANCE] / wide[B4]).to_numpy().max()]
    gap = max(map(float, ratios)) - 1
    return (
        f"corrected: the bounds B3 and B4 (wide lines) are within {max(gap, 1e-3):.1%} of the distance at every point"
    )


FORMS = {"printed": ("expectation as printed", BLUE), "lower": ("E1 lower", ORANGE), "upper": ("E1 upper", GREEN)}


def critical_data(e: Evidence) -> pl.DataFrame:
    """First and persistent critical N by length and form: median over windows with its bootstrap interval."""
    lines = []
    for form in FORMS:
        for kind in ("first", "persistent"):
            for (prefix,), table in criticals(e, form, kind).group_by(["prefix"], maintain_order=True):
                estimate = bootstrap(window_values(table, pl.first("n").cast(pl.Float64)))
                ends = estimate[1:] if estimate.has_interval else (None, None)
                lines.append(
                    (form, kind, int(str(prefix)), estimate.value, *ends, float(table["none"].to_numpy().mean()))
                )
    schema: dict[str, Any] = {"form": pl.String, "kind": pl.String, "prefix": pl.Int64}
    schema |= dict.fromkeys(("value", "low", "high", "none"), pl.Float64)
    return pl.DataFrame(lines, schema=schema, orient="row")


def subset_data(e: Evidence) -> pl.DataFrame:
    """Quartiles of the critical N over subsets and windows, by number of heads, at the longest length L.

    A subset without a critical N counts as L.
    """
    table = e.table("subsets")
    longest = int(table["prefix"].to_numpy().max()) - (e.sink == "dropped")
    first = pl.col("first").fill_null(longest)
    return (
        table.group_by("form", "heads")
        .agg(value=first.median(), low=first.quantile(0.25), high=first.quantile(0.75))
        .sort("form", "heads")
    )


def critical(e: Evidence) -> tuple[alt.HConcatChart, pl.DataFrame]:
    """Figure 2c: the critical N against L, and against the number of heads in the test."""
    medians, subsets = critical_data(e), subset_data(e)
    labels = {form: label for form, (label, _) in FORMS.items()}
    labeled = medians.with_columns(series=pl.col("form").replace_strict(labels))
    palette = dict(FORMS.values())
    lengths = labeled["prefix"].unique().sort().to_list()
    y = log_axis("value", "critical N", [1, 3, 10, 30, 100, 300, 1000], domain=[0.8, 1.3 * max(lengths)])
    base = alt.Chart(inline(labeled)).encode(
        x=alt.X(**log_axis("prefix", "L, tokens", lengths)),
        color=colors(palette, columns=1),
        detail="kind:N",
        strokeDash=alt.condition("datum.kind == 'first'", alt.value([1, 0]), alt.value([4, 3])),
    )  # fmt: skip
    lines = base.mark_line(point=alt.OverlayMarkDef(size=26), strokeWidth=1.6).encode(y=alt.Y(**y))
    bars = base.mark_rule(strokeWidth=1.4).encode(y=alt.Y(**(y | {"shorthand": "low:Q"})), y2="high:Q")
    guide = pl.DataFrame({"prefix": lengths, "value": [0.06 * length for length in lengths]})
    dotted = (
        alt.Chart(inline(guide))
        .mark_line(strokeDash=[2, 2], color=BLACK, strokeWidth=1)
        .encode(x="prefix:Q", y="value:Q")
    )
    label = (
        alt.Chart(inline(guide.tail(1)))
        .mark_text(align="right", dx=-4, dy=-14, fontSize=10, color=BLACK)
        .encode(x="prefix:Q", y="value:Q", text=alt.value("0.06 L"))
    )
    heads = subsets.with_columns(series=pl.col("form").replace_strict(labels))
    counts = heads["heads"].unique().sort().to_list()
    by_heads = alt.Chart(inline(heads)).encode(
        x=alt.X(**log_axis("heads", "heads in the test", counts)),
        color=colors(palette, columns=1),
    )  # fmt: skip
    right = [
        by_heads.mark_rule(strokeWidth=1.4).encode(y=alt.Y(**(y | {"shorthand": "low:Q"})), y2="high:Q"),
        by_heads.mark_line(point=alt.OverlayMarkDef(size=26), strokeWidth=1.6).encode(y=alt.Y(**y)),
    ]
    chart = side_by_side(
        panel([dotted, label, bars, lines], "against L; solid: first, dashed: persistent"),
        panel(right, f"against the number of heads, L = {max(lengths):,}"),
        title="Figure 2c. Critical N by the two-sample KS test at 0.01, median and bootstrap over windows",
        subtitle=[_fit(e, form) for form in ("printed", "upper")] + [_missing(medians)],
    )
    both = pl.concat(
        [labeled.with_columns(panel=pl.lit("length")), heads.with_columns(panel=pl.lit("heads"))], how="diagonal"
    )
    return chart, both


def _fit(e: Evidence, form: str) -> str:
    fit = e.fit(common_criticals(e, form), pl.first("n"))
    if fit is None:
        return f"{FORMS[form][0]}: too few lengths have one to fit c L^b"
    b, c = fit
    interval = f", exponent {b.low:.2f} to {b.high:.2f}" if b.has_interval else " (one window: no interval)"
    return f"{FORMS[form][0]}: N = {c.value:.2g} L^{b.value:.2f}{interval}"


def _missing(medians: pl.DataFrame) -> str:
    """The forms and lengths at which some windows have no critical N, as a line of the subtitle."""
    missing = medians.filter((pl.col("none") > 0) & (pl.col("kind") == "first"))
    if missing.is_empty():
        return "every window has a critical N at every length"
    where = ", ".join(
        f"{row['form']} at L = {row['prefix']:,} ({row['none']:.0%})" for row in missing.head(3).to_dicts()
    )
    return f"no critical N, drawn at L: {where}{' and more' if len(missing) > 3 else ''}"
