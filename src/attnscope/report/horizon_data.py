"""What the page shows of a prediction for longer inputs: numbers and curves of every head, and the finding."""

from __future__ import annotations

from typing import Any

import polars as pl

from attnscope.columns import HORIZON
from attnscope.report.data import rounded_columns
from attnscope.report.measures import explained_measure
from attnscope.store.tables import OWN
from attnscope.studies.horizon.prediction import with_mass_kept

_CURVE_NUMBERS = 150_000  # that a page can hold


def horizon_data(table: pl.DataFrame, heads: pl.DataFrame, run: dict[str, Any]) -> dict[str, Any]:
    """The horizon of every head for the page; curves of what-ifs as far as there is room."""
    settings = run["settings"]
    names = [column.name for column in HORIZON]
    own = with_mass_kept(heads, table, settings).filter(normalizer=OWN)
    numbers = {"to": f"{settings['to']:,}", "base": f"{settings['base']:,}"}
    curves = table.filter(measure="top5").with_columns(
        measured=pl.col("measured") if "measured" in table.columns else pl.lit(None, pl.Float64)
    )
    lengths = curves["length"].unique().sort().to_list()
    room = max(1, _CURVE_NUMBERS // (own.height * len(lengths) * 4))
    labels = [OWN, *(label for label in heads["normalizer"].unique(maintain_order=True) if label != OWN)][:room]
    windows = f"{settings['windows']} windows of {settings['length']:,} tokens spread over the text"
    return {
        "heads": rounded_columns(own.select("layer", "head", "verdict", *names)),
        "measures": {name: explained_measure(name, None, numbers) for name in names},
        "source": f"prediction up to {settings['to']:,} tokens from {windows}",
        "settings": settings,
        "lengths": lengths,
        "curves": {
            label: rounded_columns(
                curves.filter(normalizer=label)
                .sort("layer", "head", "length")
                .select("predicted", "lower", "upper", "measured")
            )
            for label in labels
        },
        "finding": run["finding"],
    }
