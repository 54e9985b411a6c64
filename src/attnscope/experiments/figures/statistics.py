"""Statistics that the figures show: medians over heads, with their range over windows."""

from __future__ import annotations

import numpy as np
import polars as pl

from attnscope.studies.paper.evidence import UNIT


def over_windows(table: pl.DataFrame, by: list[str], columns: dict[str, pl.Expr]) -> pl.DataFrame:
    """Each statistic over the heads of a window, then its median, minimum and maximum over windows, in long form."""
    per_unit = table.group_by(*UNIT, *by).agg(**columns)
    long = per_unit.unpivot(on=list(columns), index=[*UNIT, *by], variable_name="series", value_name="value")
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
