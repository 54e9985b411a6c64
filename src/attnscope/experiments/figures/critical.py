"""Figure 2c: the critical N against L, and against the number of heads in the test."""

from __future__ import annotations

from typing import Any

import polars as pl

from attnscope.columns import label
from attnscope.experiments.claims.distance import common_criticals, criticals
from attnscope.experiments.figures.statistics import dodged
from attnscope.intervals import window_bootstrap_median
from attnscope.show.figures import BLACK, BLUE, GREEN, ORANGE, Figure, Mark, Panel, log_axis, log_range
from attnscope.studies.paper.evidence import Evidence, window_values

SHARE = 0.06  # of L, as the paper states
GUIDE = Mark(f"{SHARE:g} L", BLACK, line=1, dash=(2, 2))
# Series may coincide: their lines have different widths, the widest drawn first.
FORMS = {
    "printed": Mark(label("expected_printed"), BLUE, line=3, point="circle", bar=1.2),
    "lower": Mark(f"{label('expected_lower')} (E1)", ORANGE, line=1.8, point="triangle-up", bar=1.2),
    "upper": Mark(f"{label('expected_upper')} (E1)", GREEN, line=0.9, point="triangle-down", bar=1.2),
}
SHIFTED = "series are shifted sideways so that none hides another"


def guide(lengths: list[int]) -> tuple[Mark, pl.DataFrame]:
    """The line 0.06 L, from N = 1 on."""
    ends = [max(min(lengths), 1 / SHARE), max(lengths)]
    return GUIDE, pl.DataFrame({"prefix": ends, "value": [SHARE * end for end in ends]})


def data(e: Evidence) -> pl.DataFrame:
    """First and persistent critical N by length and form: median over windows with its bootstrap interval."""
    lines = []
    for form in FORMS:
        for kind in ("first", "persistent"):
            for (prefix,), table in criticals(e, form, kind).group_by(["prefix"], maintain_order=True):
                estimate = window_bootstrap_median(window_values(table, pl.first("n").cast(pl.Float64)))
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


def figure(e: Evidence) -> Figure:
    """The first and the persistent critical N against L, and the first against the number of heads."""
    medians, subsets = data(e), subset_data(e)
    lengths = medians["prefix"].unique().sort().to_list()
    x, y = log_axis("prefix", "L, tokens", lengths), log_range("value", "critical N", 1, max(lengths))
    panels = [
        Panel(heading, x, y, [*_series(medians.filter(kind=kind), "prefix"), guide(lengths)])
        for kind, heading in (("first", "first N accepted"), ("persistent", "N from which on all are accepted"))
    ]
    heads = log_axis("heads", "heads in the test", subsets["heads"])
    panels.append(Panel(f"first N against heads, L = {max(lengths):,}", heads, y, _series(subsets, "heads")))
    both = pl.concat(
        [medians.with_columns(panel=pl.lit("length")), subsets.with_columns(panel=pl.lit("heads"))], how="diagonal"
    )
    notes = [
        "two-sample KS test at 0.01; median over windows, bars: bootstrap interval, against heads the quartiles",
        SHIFTED,
        *(_fit(e, form) for form in ("printed", "upper")),
        _missing(medians),
    ]
    return Figure("Figure 2c. Critical N", notes, [panels], both)


def _series(table: pl.DataFrame, x: str) -> list[tuple[Mark, pl.DataFrame]]:
    return list(zip(FORMS.values(), dodged([table.filter(form=form) for form in FORMS], x), strict=True))


def _fit(e: Evidence, form: str) -> str:
    fit = e.fit(common_criticals(e, form), pl.first("n"))
    name = FORMS[form].label
    if fit is None:
        return f"{name}: too few lengths have a critical N to fit c L^b"
    b, c = fit
    interval = f", exponent {b.low:.2f} to {b.high:.2f}" if b.has_interval else " (one window: no interval)"
    return f"{name}: N = {c.value:.2g} L^{b.value:.2f}{interval}"


def _missing(medians: pl.DataFrame) -> str:
    """The forms and lengths at which some windows have no critical N, as a sentence."""
    missing = medians.filter((pl.col("none") > 0) & (pl.col("kind") == "first"))
    if missing.is_empty():
        return "every window has a critical N at every length"
    where = ", ".join(
        f"{FORMS[row['form']].label} at L = {row['prefix']:,} ({row['none']:.0%})" for row in missing.head(3).to_dicts()
    )
    return f"no critical N, drawn at L: {where}{' and more' if len(missing) > 3 else ''}"
