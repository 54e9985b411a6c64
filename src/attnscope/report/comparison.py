"""A comparison of normalizers as a table for the terminal and as a chart."""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl
from rich.console import Console
from rich.table import Table

from attnscope.tables import COMPARED, comparable

COLORS = ["#0072b2", "#d55e00", "#009e73", "#e69f00", "#cc79a7", "#56b4e9", "#000000"]  # Okabe-Ito

# Headings short enough for all columns to fit into 80.
_COLUMNS = {
    "perplexity": "perpl.",
    "agreement": "agree",
    "kl": "KL",
    "separability": "separ.",
    "distance_ratio": "dist.",
    "entropy_ratio": "entr.",
    "sink_weight": "sink",
    "support": "supp.",
    "jacobian_norm": "Jac.",
    "time_ratio": "time",
    "memory_ratio": "mem.",
}
_NOTE = (
    "perpl.: perplexity; agree, KL: with the model itself; separ.: separability; dist.: distance ratio; "
    "entr.: entropy ratio; sink: sink weight; supp.: support; Jac.: Jacobian norm; time, mem.: times the model's own"
)
_PARTLY = "*: mean over the rows with N keys of weight, too few to compare"


def named(table: pl.DataFrame) -> pl.DataFrame:
    """The table with a column `name`: the normalizer and its calibrated setting."""
    value = pl.col("value").round_sig_figs(3).cast(pl.String)
    calibrated = pl.concat_str([pl.col("normalizer"), pl.lit(" "), pl.col("parameter"), pl.lit("="), value])
    heads = pl.concat_str([pl.col("normalizer"), pl.lit(" "), pl.col("parameter"), pl.lit(" per head")])
    choice = pl.when(calibration="none").then("normalizer").when(calibration="global").then(calibrated).otherwise(heads)
    return table.with_columns(name=choice)


def _number(value: float) -> str:
    """Three significant figures; 0 for magnitudes below 5e-5."""
    return "0" if abs(value) < 5e-5 else f"{value:.3g}"


def _cell(line: dict[str, Any], column: str) -> str:
    """A number of the table; separability of too few rows to be compared has an asterisk."""
    if line[column] is None:
        return ""
    return _number(line[column]) + ("*" if column == "separability" and line["defined"] < COMPARED else "")


def print_comparison(console: Console, table: pl.DataFrame, run: dict[str, Any]) -> None:
    """Print one table for each mode and length."""
    for (mode, length), part in named(table).group_by(["mode", "length"], maintain_order=True):
        columns = [c for c in _COLUMNS if part[c].is_not_null().any()]
        title = f"{run['model']}, {mode}, length {length:,}, top set of {part['n'][0]}"
        grid = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0), pad_edge=False)
        grid.add_column("normalizer", overflow="fold")
        for column in columns:
            grid.add_column(_COLUMNS[column], justify="right", no_wrap=True)
        for line in part.to_dicts():
            grid.add_row(line["name"], *(_cell(line, column) for column in columns))
        console.print(grid)
        console.print()
    partly = table.filter(pl.col("separability").is_not_null()).height > comparable(table).height
    console.print(_NOTE + (f"; {_PARTLY}" if partly else ""), style="dim")
    for calibrated in run["calibration"]:
        value = "one value per head" if calibrated["value"] is None else f"{calibrated['value']:.3g}"
        console.print(
            f"{calibrated['normalizer']}: {calibrated['parameter']} = {value}, KL {calibrated['kl_before']:.3g} "
            f"before, {calibrated['kl_after']:.3g} after, on windows that were not evaluated"
        )


def capacity_chart(table: pl.DataFrame) -> alt.LayerChart | alt.FacetChart:
    """Separability against perplexity at the longest length, one mark for each normalizer that can be compared."""
    longest = int(table["length"].to_numpy().max())
    part = (
        comparable(named(table))
        .filter(mode="swapped", length=longest)
        .select("name", "normalizer", "calibration", "perplexity", "separability", "kl", "jacobian_norm")
    )
    part = part.filter(pl.col("separability").is_not_null() & pl.col("perplexity").is_finite())
    low, high = part["separability"].min() or 0.0, part["separability"].max() or 0.0
    room = 0.08 * (float(high) - float(low) or 1.0)  # type: ignore[arg-type]
    base = alt.Chart(alt.InlineData(values=part.to_dicts())).encode(
        x=alt.X("perplexity:Q", title="perplexity (log scale)", scale=alt.Scale(type="log", nice=False, padding=60)),
        y=alt.Y(
            "separability:Q",
            title="separability, mean over heads",
            scale=alt.Scale(domain=[float(low) - room, float(high) + room], nice=False),  # type: ignore[arg-type]
        ),
        color=alt.Color("normalizer:N", title=None, scale=alt.Scale(range=COLORS), legend=None),
        shape=alt.Shape("calibration:N", title="calibrated", legend=alt.Legend(orient="bottom")),
        tooltip=[
            "name:N",
            alt.Tooltip("perplexity:Q", format=".4~g"),
            alt.Tooltip("separability:Q", format=".3~g"),
            alt.Tooltip("kl:Q", title="KL", format=".3~g"),
            alt.Tooltip("jacobian_norm:Q", title="Jacobian norm", format=".3~g"),
        ],
    )
    # The model's own mark lies under that of softmax: its label goes above, the others to the right.
    above = base.transform_filter("datum.name == 'own'").mark_text(align="left", dx=9, dy=-11, fontSize=11)
    beside = base.transform_filter("datum.name != 'own'").mark_text(align="left", dx=9, fontSize=11)
    labels = [part.encode(text="name:N", color=alt.value("#333")) for part in (above, beside)]
    return alt.layer(base.mark_point(size=110, filled=True, opacity=0.9), *labels).properties(
        title=alt.Title(
            "Capacity against perplexity", subtitle=f"normalizer swapped in every layer, {longest:,} tokens"
        ),
        width=560,
        height=340,
    )
