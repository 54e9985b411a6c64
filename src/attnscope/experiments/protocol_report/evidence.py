"""The protocol's tables, one reading at a time, in the form on which the paper's claims are measured.

A line of a protocol table is a head's average over rows; a line of the tables of last rows is one row. Renamed and
restricted to one reading, the first can be measured by the claims of the second (`attnscope.experiments.claims`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import polars as pl
import torch

from attnscope.experiments.claims import Evidence, Labels
from attnscope.theory.gradient import finite_difference_bound, softmax_bound_printed

TABLES = ("protocol_distance", "protocol_separability", "protocol_gradient", "protocol_critical")
OPEN, CLOSED = "open", "closed"
_LENGTH = {"length": "prefix"}


class Kind(NamedTuple):
    """A table of the protocol: the columns that distinguish its readings, and its shape as evidence."""

    labels: tuple[str, ...]
    shape: Callable[[pl.DataFrame], dict[str, pl.DataFrame]]


def readings(tables: dict[str, pl.DataFrame], name: str) -> list[tuple[Labels, Evidence]]:
    """Every reading of a table, with its labels; in the order of the table."""
    kind = KINDS[name]
    table = _balls(tables[name]) if name == "protocol_separability" else tables[name]
    columns = list(kind.labels)
    shaped_readings = []
    for values in table.select(columns).unique(maintain_order=True).rows():
        chosen = table.filter(*(pl.col(column) == value for column, value in zip(columns, values, strict=True)))
        labels = {
            "rows" if column == "reading" else column: f"{value:g}" if isinstance(value, float) else str(value)
            for column, value in zip(columns, values, strict=True)
        }
        shaped = kind.shape(chosen.with_columns(row=0))
        evidence = Evidence(shaped, labels.get("vectors", ""), "kept")
        shaped_readings.append((labels | {"first_key": "kept"}, evidence))
    return shaped_readings


def _balls(table: pl.DataFrame) -> pl.DataFrame:
    """Lines for the open ball, then for the closed one where it was measured."""
    opened = table.drop("separability_closed").with_columns(ball=pl.lit(OPEN))
    closed = table.drop("separability").rename({"separability_closed": "separability"})
    closed = closed.filter(pl.col("separability").is_not_null()).with_columns(ball=pl.lit(CLOSED))
    return pl.concat([opened, closed.select(opened.columns)])


def _distance(table: pl.DataFrame) -> dict[str, pl.DataFrame]:
    renamed = table.rename(_LENGTH | {"bound_printed": "distance_bound_printed"})
    return {"topn": renamed, "drawn": renamed}


def _separability(table: pl.DataFrame) -> dict[str, pl.DataFrame]:
    bounds = {f"{side}_printed": f"separability_{side}_printed" for side in ("lower", "upper")}
    return {"topn": table.rename(_LENGTH | bounds)}


def _gradient(table: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """One column per direction, with the bounds; the reading of T has already been chosen."""
    keys = ["window", "row", "layer", "head", "temperature", "step"]
    wide = table.pivot(on="direction", index=keys, values="g")
    temperature, step = (torch.tensor(wide[name].to_list(), dtype=torch.float64) for name in ("temperature", "step"))
    return {
        "gradient": wide.with_columns(
            reading=pl.lit("scaled"),
            bound_printed=pl.Series(softmax_bound_printed(temperature).tolist()),
            bound_exact=pl.Series(finite_difference_bound(temperature, step).tolist()),
        )
    }


def _critical(table: pl.DataFrame) -> dict[str, pl.DataFrame]:
    return {"critical": table.with_columns(prefix=pl.col("length"))}


KINDS = {
    "protocol_distance": Kind(("reading", "vectors"), _distance),
    "protocol_critical": Kind(("reading", "vectors", "significance"), _critical),
    "protocol_separability": Kind(("reading", "vectors", "ball"), _separability),
    "protocol_gradient": Kind(("reading", "logits"), _gradient),
}
