"""The tables and the record that a scan returns."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from attnscope import tables
from attnscope._forks import uses_threads
from attnscope.errors import OutputError


@dataclass(frozen=True)
class ScanResult:
    """The tables of a scan and the record of how it was run."""

    rows: pl.DataFrame
    topn: pl.DataFrame
    run: dict[str, Any]
    token_weights: tables.TokenWeights | None = None
    findings: dict[str, Any] | None = None  # of a diagnosis, if one was asked for

    @property
    def skipped_heads(self) -> list[dict[str, Any]]:
        """Heads left out of the tables, with the reason."""
        skipped: list[dict[str, Any]] = self.run["skipped_heads"]
        return skipped

    @uses_threads
    def save(self, folder: str | Path) -> Path:
        """Write the tables, `run.json` and `report.html` to a folder."""
        with tables.output_folder(Path(folder)) as path:
            self.write_tables(path)
            self.write_report(path)
        return path

    def write_tables(self, folder: Path) -> None:
        """Write everything but the report into a folder that is locked already."""
        tables.save_run(folder, self.rows, self.topn, self.run, self.token_weights, self.findings)

    def write_report(self, folder: Path) -> None:
        """Write the report beside the tables; if that fails the tables are saved, and the error says so."""
        try:
            from attnscope.report.page import render

            report = render(self.rows, self.topn, self.run, findings=self.findings, token_weights=self.token_weights)
            tables.save_report(folder, report)
        except Exception as error:
            with suppress(OSError):  # an older report would not match the tables
                (folder / "report.html").unlink()
            saved = "the tables" if self.findings is None else "the tables and findings.json"
            reason = str(error) if isinstance(error, OutputError) else f"{type(error).__name__}: {error}"
            raise OutputError(
                f"{saved} are saved in {str(folder)!r}, but report.html could not be made ({reason}); "
                f"attnscope.ScanResult.load({str(folder)!r}).save({str(folder)!r}) tries again without measuring again"
            ) from error

    @classmethod
    @uses_threads
    def load(cls, folder: str | Path) -> ScanResult:
        """Read a run that was saved before."""
        path = Path(folder)
        return cls(
            *tables.load_run(path),
            token_weights=tables.load_token_weights(path),
            findings=tables.load_findings(path),
        )
