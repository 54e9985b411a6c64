"""Tables for the summary and the page: one line for each head, N and length, averaged over rows and windows.

They are about the model's own weights. Where a run measured the last row of each length, the row of the longest one
represents a head; where it measured many rows of a window, the mean over the rows of its second half, whose lengths are
within a factor of two.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from attnscope.report.measures import HEAD_MEASURES, ROW_MEASURES, SET_MEASURES
from attnscope.results.words import counted
from attnscope.tables import OWN

# The size of the top set where only one is shown; else the nearest measured size.
USUAL_N = 20

# What is drawn against N.
CURVES = (
    "top_mass",
    "distance",
    "distance_lower",
    "distance_upper",
    "distance_bound_printed",
    "expected_lower",
    "expected_upper",
    "expected_printed",
    "separability",
    "separability_lower",
    "separability_upper",
    "separability_lower_printed",
    "separability_upper_printed",
)


# Groups of lengths where a run measured many rows, each half as long as the one before.
_HALVINGS = 6


def head_rows(table: pl.DataFrame, run: dict[str, Any], normalizer: str = OWN) -> pl.DataFrame:
    """The lines of a table that represent a head: those of the longest group."""
    return by_group(table, run, normalizer).filter(group=0).drop("group")


def by_group(table: pl.DataFrame, run: dict[str, Any], normalizer: str = OWN) -> pl.DataFrame:
    """The lines of one normalizer with a column `group`: lines of about the same length, 0 for the longest."""
    lines = table.filter(normalizer=normalizer)
    settings = run["settings"]
    if settings["rows"] == "last":
        # Items of a batch and layers of a module may differ in their last position: each has its own order.
        order = pl.col("position").rank("dense", descending=True).over("window", "layer")
        return lines.with_columns(group=order.cast(pl.Int32) - 1)
    if len(settings["lengths"]) > 1:  # an encoder, run once for each length
        return lines.with_columns(group=pl.col("length").rank("dense", descending=True).cast(pl.Int32) - 1)
    length = pl.col("position") + 1
    halvings = (length.max().over("window", "layer") / length).log(2).floor().cast(pl.Int32)
    return lines.with_columns(group=halvings.clip(upper_bound=_HALVINGS - 1))


def groups(rows: pl.DataFrame, run: dict[str, Any]) -> list[str]:
    """The lengths of each group in words, the longest first."""
    spans = by_group(rows, run).group_by("group").agg(low=pl.min("length"), high=pl.max("length")).sort("group")
    return [
        f"{high:,}" if low == high or run["settings"]["rows"] == "last" else f"{low:,} to {high:,}"
        for _, low, high in spans.iter_rows()
    ]


def scan_sources(rows: pl.DataFrame, run: dict[str, Any]) -> list[str]:
    """The rows that the numbers of each group are means over, in words, the longest group first."""
    counts = by_group(rows, run).group_by("group", "layer", "head").len().group_by("group").agg(pl.max("len"))
    windows = counted(int(rows["window"].n_unique()), "window")
    return [
        f"{counted(count, 'row')} that {'sees' if count == 1 else 'see'} {length} tokens, in {windows}"
        for length, count in zip(groups(rows, run), counts.sort("group")["len"], strict=True)
    ]


def diagnosis_source(findings: dict[str, Any] | None) -> str | None:
    """The rows that the numbers of a diagnosis are means over, in words."""
    if not findings or not findings.get("windows"):
        return None
    windows, length, rows = findings["windows"], findings["length"], findings.get("rows")
    where = f"{counted(windows, 'window')} of {length:,} tokens spread over the text"
    if rows is None:  # findings of an older version
        return where
    # The rows lie in the second half of a causal window.
    return f"{'' if rows <= length // 2 else 'up to '}{counted(rows, 'row')} in each of {where}"


def shown_rows(run: dict[str, Any]) -> str:
    """The rows that represent a head, in words."""
    settings = run["settings"]
    length = f"{settings['lengths'][-1]:,}"
    if settings["rows"] == "last" or len(settings["lengths"]) > 1:
        return f"at length {length}"
    return f"in the second half of {length} tokens"


def usual_n(topn: pl.DataFrame) -> int:
    """The measured N nearest to the usual one."""
    return min(topn["n"].unique().to_list(), key=lambda n: (abs(n - USUAL_N), n))


def heads(rows: pl.DataFrame, topn: pl.DataFrame, run: dict[str, Any]) -> pl.DataFrame:
    """One line for each layer and head: mean over rows and windows, and the spread over windows where there are some.

    The spread of a measure, its standard deviation over the windows' means, is in `<measure>_spread`.
    """
    keys = ["layer", "head"]
    by_window = head_groups(rows, topn, run, "window").filter(group=0)
    measures = pl.col(HEAD_MEASURES)
    spread = [measures.std().name.suffix("_spread")] if run["settings"]["windows"] > 1 else []
    return by_window.group_by(keys).agg(measures.mean(), *spread).sort(keys)


def head_groups(
    rows: pl.DataFrame, topn: pl.DataFrame, run: dict[str, Any], *more: str, normalizer: str = OWN
) -> pl.DataFrame:
    """One line for each head and group of lengths (and whatever else is named), mean over the rows in it."""
    keys = ["layer", "head", "group", *more]
    expected = (pl.col("expected_lower") + pl.col("expected_upper")) / 2
    chosen = by_group(topn, run, normalizer).filter(n=usual_n(topn))
    sets = chosen.with_columns(distance_ratio=pl.col("distance") / expected).group_by(keys)
    each = by_group(rows, run, normalizer).group_by(keys).agg(pl.col(ROW_MEASURES).mean())
    return each.join(sets.agg(pl.col(SET_MEASURES).mean()), on=keys, how="left").sort(keys)


def median_of_heads(rows: pl.DataFrame, topn: pl.DataFrame, run: dict[str, Any], normalizer: str) -> dict[str, Any]:
    """Medians over heads of the measures under one normalizer, the model's own or a what-if.

    `defined` is the share of rows that have a separability.
    """
    sets = head_rows(topn, run, normalizer).filter(n=usual_n(topn))
    lines = head_rows(rows, run, normalizer)
    keys = ["layer", "head"]
    measures = [
        sets.group_by(keys).agg(pl.col("separability", "top_mass").mean()),
        lines.group_by(keys).agg(pl.col("max_weight", "support", "jacobian_norm").mean()),
    ]
    medians = {name: table[name].median() for table in measures for name in table.columns[2:]}
    return medians | {"defined": sets["separability"].is_not_null().mean()}


def by_n(topn: pl.DataFrame, run: dict[str, Any]) -> pl.DataFrame:
    """One line for each layer, head and N, mean over rows and windows."""
    keys = ["layer", "head", "n"]
    return head_rows(topn, run).group_by(keys).agg(pl.col(CURVES).mean()).sort(keys)


def median_by_n(topn: pl.DataFrame, run: dict[str, Any]) -> pl.DataFrame:
    """Medians over heads for each N, with the 5% and 95% quantiles of the separability.

    With several windows, `separability_spread` is the standard deviation over windows of the median over heads.
    """
    values = pl.selectors.exclude("layer", "head", "n")
    table = (
        by_n(topn, run)
        .group_by("n")
        .agg(
            values.median(),
            pl.col("separability").quantile(0.05).alias("separability_q05"),
            pl.col("separability").quantile(0.95).alias("separability_q95"),
        )
    )
    each = head_rows(topn, run).group_by("window", "layer", "head", "n").agg(pl.col("separability").mean())
    medians = each.group_by("window", "n").agg(pl.col("separability").median())
    spread = medians.group_by("n").agg(pl.col("separability").std().alias("separability_spread"))
    return table.join(spread, on="n").sort("n")


def by_length(rows: pl.DataFrame, run: dict[str, Any], *measures: str) -> pl.DataFrame:
    """One line for each layer, head and `length` in tokens, mean over rows and windows.

    The lengths are those measured; where a run measured many rows, rows up to each power of two.
    """
    length = pl.col("position").cast(pl.Int64) + 1  # a row sees fewer keys where a window of attention hides some
    if run["settings"]["rows"] != "last":
        length = 2 ** pl.col("length").log(2).ceil().cast(pl.Int64)
    lines = rows.filter(normalizer=OWN).select("layer", "head", *measures, length=length)
    return lines.group_by("layer", "head", "length").agg(pl.col(measures).mean())


def median_by_length(rows: pl.DataFrame, run: dict[str, Any]) -> pl.DataFrame:
    """Medians over heads for each length."""
    measures = ("entropy_ratio", "max_weight", "sink_weight", "participation", "jacobian_norm")
    return by_length(rows, run, *measures).group_by("length").agg(pl.col(measures).median()).sort("length")
