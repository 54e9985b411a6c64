"""The tables of a prediction, and the record of how it was made."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from attnscope.errors import OutputError
from attnscope.show.numbers import short_path
from attnscope.show.result import Result
from attnscope.store.folders import as_file, without_infinities, write_all
from attnscope.store.kinds import name_kind

if TYPE_CHECKING:
    from attnscope.show.blocks import Block
    from attnscope.studies.horizon.view import HorizonPlots

KEYS = {"normalizer": pl.String, "layer": pl.Int32, "head": pl.Int32}
CURVES = pl.Schema(
    KEYS
    | {
        "length": pl.Int32,
        "measure": pl.String,  # top5, participation, entropy_ratio or max_weight
        "predicted": pl.Float64,  # up to the window's length: measured in the windows
        "lower": pl.Float64,
        "upper": pl.Float64,
    }
)
CHECKED = pl.Schema(dict(CURVES) | {"measured": pl.Float64})  # on long inputs, with a check
HEADS = pl.Schema(
    KEYS
    | {
        "half_length": pl.Float64,  # null: not before the last length
        "reach": pl.Float64,  # null: further than the last length
        "verdict": pl.String,
    }
)


@dataclass(frozen=True, repr=False, eq=False)
class Horizon(Result):
    """What is predicted of every head at longer inputs, and how it was done.

    >>> result = attnscope.horizon(length=64, to=256, windows=2, progress=False)
    >>> result.table.columns[:5]
    ['normalizer', 'layer', 'head', 'length', 'measure']

    Attributes
    ----------
    table
        One line for each normalizer, head, length and measure (`horizon.parquet`).
    heads
        One line for each normalizer and head: half length, reach, verdict (`heads.parquet`).
    run
        Model, text, settings, back-test, check, finding (`horizon.json`).
    folder
        Where it was read from, with the scan that its page is of; None if it was not.
    """

    table: pl.DataFrame
    heads: pl.DataFrame
    run: dict[str, Any]
    folder: Path | None = field(default=None, kw_only=True)

    @property
    def plot(self) -> HorizonPlots:
        """Altair charts: `plot.curve(3, 5)`, `plot.map()`."""
        from attnscope.studies.horizon.view import HorizonPlots

        return HorizonPlots(self)

    @property
    def skipped_heads(self) -> list[dict[str, Any]]:
        skipped: list[dict[str, Any]] = self.run["skipped_heads"]
        return skipped

    def write(self, folder: Path) -> None:
        """Write `horizon.parquet`, `heads.parquet` and `horizon.json` into a folder that is locked already."""
        tables = {"horizon.parquet": self.table.write_parquet, "heads.parquet": self.heads.write_parquet}
        write_all(folder, {**tables, "horizon.json": as_file(without_infinities(self.run))})
        name_kind(folder, "horizon")

    @classmethod
    def load(cls, folder: str | Path) -> Horizon:
        """Read a prediction that was saved before."""
        path = Path(folder)
        try:
            run = json.loads((path / "horizon.json").read_text("utf-8"))
            schema = CHECKED if run["check"] else CURVES
            table = pl.read_parquet(path / "horizon.parquet", schema=schema)
            return cls(table, pl.read_parquet(path / "heads.parquet", schema=HEADS), run, folder=path)
        except (OSError, ValueError, KeyError, TypeError, RecursionError, pl.exceptions.PolarsError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise OutputError(f"{str(path)!r} is not a readable prediction: {reason}; predict again") from error

    def page_data(self) -> dict[str, Any]:
        """What the page of a scan shows of it."""
        from attnscope.studies.horizon.view import horizon_data

        return horizon_data(self.table, self.heads, self.run)

    def page(self) -> str:
        """The page of the scan that lies beside it, with the prediction, or else of the prediction alone."""
        from attnscope.scanning.result import ScanResult

        try:
            scan = None if self.folder is None else ScanResult.load(self.folder)
        except OutputError:
            scan = None
        return super().page() if scan is None else scan.page()

    def blocks(self, verbose: bool = False) -> list[Block]:
        """The finding, a map of verdicts, curves, back-test and check; with `verbose` of all measures."""
        from attnscope.studies.horizon.view import blocks

        return blocks(self, verbose)

    def page_title(self) -> str:
        """What a browser calls the page."""
        return f"prediction for {short_path(self.run['model']['name'])}"

    def calls(self) -> Sequence[str]:
        plots = (".plot.map()", ".plot.curve(layer, head)")
        return (".summary()", ".heads", ".table", *plots, ".show()", ".save(folder)")


def served_page(place: Mapping[str, Any], folder: Path) -> str:
    """Its page on a server; `place` has the addresses of other pages."""
    from attnscope.scanning import result as scans

    try:
        return scans.served_page(place, folder)
    except OutputError:
        home = f'<body><p><a href="{place["home"]}">attnscope: all runs</a></p>'
        return Horizon.load(folder).page().replace("<body>", home, 1)
