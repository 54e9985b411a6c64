"""One line for each head: the means of a scan, and what a diagnosis found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from attnscope import columns
from attnscope.scanning.overview import HEAD_MEASURES, Overview

LABELS: dict[str, pl.DataType] = {
    "state": pl.String(),
    "sureness": pl.Float64(),
    "edge": pl.String(),
    "withdrawn": pl.String(),
}
# Measured by a scan and by a diagnosis, on other rows: the diagnosis has them under these names.
MEASURED_TWICE = {f"{name}_diagnosed": name for name in ("separability", "participation", "sink_weight", "max_weight")}
EVIDENCE = (
    *MEASURED_TWICE,
    *(
        name
        for column in columns.DIAGNOSIS
        if column.name not in LABELS
        for name in ((column.name, f"{column.name}_low", f"{column.name}_high") if column.interval else (column.name,))
    ),
)
_PLACE: dict[str, pl.DataType] = {"layer": pl.Int32(), "head": pl.Int32()}


def scanned_heads(view: Overview) -> pl.DataFrame:
    """The means of a scan for every head, over the rows that represent it (`report.overview`)."""
    if view.is_empty:
        return pl.DataFrame(schema=_PLACE | dict.fromkeys(HEAD_MEASURES, pl.Float64()))
    return view.heads


def diagnosed_heads(findings: Mapping[str, Any] | None) -> pl.DataFrame:
    """What a diagnosis found for every head; without a diagnosis no lines."""
    schema = _PLACE | LABELS | dict.fromkeys(EVIDENCE, pl.Float64())
    lines = [
        {name: head.get(name) for name in ("layer", "head", *LABELS)}
        | {name: _evidence(head, MEASURED_TWICE.get(name, name)) for name in EVIDENCE}
        for head in (findings["heads"] if findings else ())
    ]
    return pl.DataFrame(lines, schema=schema)


def _evidence(head: Mapping[str, Any], name: str) -> float | None:
    """A number of a head's entry or of its evidence; older findings lack some."""
    value: float | None = head["evidence"].get(name, head.get(name))
    return value


def heads_table(view: Overview, findings: Mapping[str, Any] | None) -> pl.DataFrame:
    """One line for each head of a scan, in the order of layers and heads; see `ScanResult.heads`."""
    scanned, diagnosed = scanned_heads(view), diagnosed_heads(findings)
    joined = scanned.join(diagnosed, on=["layer", "head"], how="left", maintain_order="left")
    first = ["layer", "head", *LABELS, "separability", "separability_diagnosed", "null_uniform", "null_random"]
    first += ["participation", "tokens_needed", "growth_exponent", "sink_weight", "jacobian_norm"]
    return joined.select(*first, pl.selectors.exclude(first))
