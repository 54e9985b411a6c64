"""A comparison of normalizers as a table for the terminal."""

from __future__ import annotations

from typing import Any

import polars as pl
from rich.console import Console
from rich.table import Table

from attnscope.tables import COMPARED, comparable, named

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
