"""What a scan gives back, and what it says on the way."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from attnscope import tables
from attnscope.errors import OutputError


class Step(NamedTuple):
    """How far a scan has come: layers done of all, and where it is."""

    done: int
    total: int
    window: int
    windows: int
    layer: int
    doing: str = ""  # what goes on beside scanning


Progress = Callable[[Step], None]
"""Called after each layer, and after each step of a diagnosis."""


@dataclass(frozen=True)
class ScanResult:
    """The tables of a scan and the record of how it was run."""

    rows: pl.DataFrame
    topn: pl.DataFrame
    run: dict[str, Any]
    token_weights: tables.TokenWeights | None = None
    findings: dict[str, Any] | None = None  # what a diagnosis found, if one was asked for

    @property
    def skipped_heads(self) -> list[dict[str, Any]]:
        """Heads left out of the tables, with the reason."""
        skipped: list[dict[str, Any]] = self.run["skipped_heads"]
        return skipped

    def save(self, folder: str | Path) -> Path:
        """Write the tables, `run.json` and `report.html` to a folder."""
        with tables.output_folder(Path(folder)) as place:
            self.write_tables(place)
            self.write_report(place)
        return place

    def write_tables(self, place: Path) -> None:
        """Write everything but the report into a folder that is held."""
        tables.save_run(place, self.rows, self.topn, self.run, self.token_weights, self.findings)

    def write_report(self, place: Path) -> None:
        """Write the report beside the tables; whatever goes wrong, they are saved, and the error says so."""
        try:
            from attnscope.report.page import render

            report = render(self.rows, self.topn, self.run, findings=self.findings, token_weights=self.token_weights)
            tables.save_report(place, report)
        except Exception as error:
            with suppress(OSError):  # an older report would not match the tables
                (place / "report.html").unlink()
            saved = "the tables" if self.findings is None else "the tables and findings.json"
            reason = str(error) if isinstance(error, OutputError) else f"{type(error).__name__}: {error}"
            raise OutputError(
                f"{saved} are saved in {str(place)!r}, but report.html could not be made ({reason}); "
                f"attnscope.ScanResult.load({str(place)!r}).save({str(place)!r}) tries again without measuring anew"
            ) from error

    @classmethod
    def load(cls, folder: str | Path) -> ScanResult:
        """Read a run that was saved before."""
        place = Path(folder)
        return cls(
            *tables.load_run(place),
            token_weights=tables.load_token_weights(place),
            findings=tables.load_findings(place),
        )
