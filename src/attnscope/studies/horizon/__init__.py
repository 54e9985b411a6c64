"""How far a head reaches: what becomes of its selection at longer inputs, predicted from short windows.

| file | contents |
|---|---|
| `predicting` | `horizon`: windows, probes, measures, tables, page; back-test and check |
| `positions`, `extended_row` | how keys change as they move away; rows as they would be in a longer input |
| `measuring` | settings, the windows of the text, what is measured of every window |
| `prediction` | means, intervals, half lengths, reach, verdicts and the finding |
| `result` | `Horizon` |
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnscope.store.kinds import Description, Kind, Verb


def describe(folder: Path, run: Mapping[str, Any]) -> Description:
    """One prediction as a line of a list."""
    settings = run["settings"]
    size = f"horizon: {settings['windows']:,} x {settings['length']:,} tokens, to {settings['to']:,}"
    return Description(run["model"]["name"], run["text"]["source"], size, run["finding"]["title"])


KINDS = (
    Kind(
        "horizon",
        load="attnscope.studies.horizon.result:Horizon.load",
        describe="attnscope.studies.horizon:describe",
        record="horizon.json",
        needs=(("horizon.parquet",), ("heads.parquet",)),
        page="attnscope.studies.horizon.result:served_page",
        written=("horizon.parquet", "heads.parquet", "horizon.json"),
        joins="scan",
        verbs=(Verb("horizon", "attnscope.studies.horizon.verb:horizon", "Decide"),),
    ),
)
