"""The tables and the record that a scan returns."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from attnscope._process import refuses_after_fork
from attnscope.diagnosis.result import Diagnosis
from attnscope.errors import OutputError
from attnscope.show.result import Result
from attnscope.store import kinds, tables
from attnscope.store.manifest import FINISHED, Manifest

if TYPE_CHECKING:
    from attnscope.scanning.head import HeadResult
    from attnscope.scanning.overview import Overview
    from attnscope.scanning.plots import ScanPlots
    from attnscope.show.blocks import Block


@dataclass(frozen=True, repr=False, eq=False)
class ScanResult(Result):
    """The tables of a scan, the record of how it was run, and what they look like.

    >>> result = attnscope.scan(length=64, progress=False)
    >>> result.heads.columns[:5]
    ['layer', 'head', 'state', 'sureness', 'edge']
    >>> result.head(0, 1).name
    'L0H1'
    >>> result.plot.map("participation").save("participation.svg")

    Attributes
    ----------
    rows
        One line for each window, layer, head and row (`rows.parquet`); of a large run in parts, a lazy frame.
    topn
        One line for each window, layer, head, row and size N of the top set (`topn.parquet`); the same.
    run
        What was run (`run.json`).
    token_weights
        The largest weights of the last row of each head, the patterns of all heads, and the tokens; runs of older
        versions may have none.
    findings
        The diagnosis, if one was asked for.
    joined
        What studies found in the same folder, by their kind: that of `attnscope.horizon` is `horizon`.
    folder
        Where the run was saved, if it was.
    parts
        The manifest of a large run's tables, which are on disk; None if `rows` and `topn` are in memory.
    """

    rows: pl.DataFrame
    topn: pl.DataFrame
    run: dict[str, Any]
    token_weights: tables.TokenWeights | None = None
    findings: Diagnosis | None = None
    joined: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    folder: Path | None = field(default=None, kw_only=True)
    parts: Manifest | None = field(default=None, kw_only=True)

    @classmethod
    def of_parts(
        cls, parts: Manifest, run: dict[str, Any], token_weights: tables.TokenWeights | None = None
    ) -> ScanResult:
        """The result of a run whose tables are in parts on disk."""
        return cls(*tables.part_frames(parts), run, token_weights, parts=parts)

    @property
    def horizon(self) -> Any:
        """What `attnscope.horizon` predicted in the same folder, if it did."""
        return self.joined.get("horizon")

    @property
    def skipped_heads(self) -> list[dict[str, Any]]:
        """Heads left out of the tables, with the reason."""
        skipped: list[dict[str, Any]] = self.run["skipped_heads"]
        return skipped

    @cached_property
    def heads(self) -> pl.DataFrame:
        """One line for each head: its state and all its numbers, in the order of layers and heads.

        Measures of the scan are means over windows and over the rows that represent a head: the last row of the longest
        length, or the second half of a window if many rows were measured. With several windows, `<measure>_spread` is
        the standard deviation over them. What a diagnosis adds is null without one. Heads that were left out have no
        line (`skipped_heads`). docs/python.md lists the columns.
        """
        from attnscope.scanning.overview import heads_table

        return heads_table(self.overview, self.findings)

    @cached_property
    def overview(self) -> Overview:
        """Means over windows and how much windows differ, in small tables."""
        from attnscope.scanning.overview import Overview, summarize

        if self.parts is None:
            return Overview.of(self.rows, self.topn, self.run)
        try:
            return Overview.load(self.parts.folder, self.run)
        except (OSError, ValueError, KeyError, TypeError, pl.exceptions.PolarsError):  # not made yet
            chunks = self.parts.chunks({"rows": tables.ROWS, "topn": tables.TOPN})
            return summarize(chunks, self.run, self.parts.windows)

    @property
    def over_windows(self) -> pl.DataFrame:
        """How much windows differ: one line for each head, length, N and measure.

        >>> result = attnscope.scan(length=64, windows=3, progress=False)
        >>> result.over_windows.columns[4:]
        ['measure', 'windows', 'mean', 'spread', 'q05', 'q50', 'q95']

        `spread` is the standard deviation over windows; `q05`, `q50` and `q95` are quantiles, to two significant
        figures. `n` is null for measures of a row.
        """
        return self.overview.over_windows()

    def head(self, layer: int, head: int) -> HeadResult:
        """One head, with its numbers, weights, pattern and charts.

        >>> result = attnscope.scan(length=64, progress=False)
        >>> result.head(0, 1)["participation"] >= 1
        True

        Parameters
        ----------
        layer, head
            Which head, both counted from 0: L3H5 is `head(3, 5)`.

        Returns
        -------
        HeadResult
            attnscope.InputError names the ranges if there is no such head.
        """
        from attnscope.scanning.head import find_head

        return find_head(self, layer, head)

    @property
    def plot(self) -> ScanPlots:
        """Altair charts: `plot.map("separability")`, `plot.curve(...)`, `plot.weights(3, 5)`, `plot.pattern(3, 5)`."""
        from attnscope.scanning.plots import ScanPlots

        return ScanPlots(self)

    def write(self, folder: Path) -> None:
        """Write the tables, `run.json` and `report.html` into a folder that is locked already."""
        self.write_tables(folder)
        self.write_report(folder)

    def write_tables(self, folder: Path) -> ScanResult:
        """Write everything but the report into a folder that is locked already; returns the result as it is there."""
        findings = None if self.findings is None else self.findings.content
        written = self.parts or {"rows": self.rows, "topn": self.topn}
        if self.parts is not None:
            self.overview.save(self.parts.folder)
        tables.save_run(folder, written, self.run, self.token_weights, findings)
        kinds.write_joined(folder, "scan", self.joined)
        return replace(self, folder=folder) if self.parts is None else ScanResult.load(folder)

    def write_report(self, folder: Path) -> None:
        """Write the report beside the tables; if that fails the tables are saved, and the error says so."""
        try:
            tables.save_report(folder, self.page())
        except Exception as error:
            with suppress(OSError):  # an older report would not match the tables
                (folder / "report.html").unlink()
            saved = "the tables" if self.findings is None else "the tables and findings.json"
            reason = str(error) if isinstance(error, OutputError) else f"{type(error).__name__}: {error}"
            raise OutputError(
                f"{saved} are saved in {str(folder)!r}, but report.html could not be made ({reason}); "
                f"attnscope.load_run({str(folder)!r}).save({str(folder)!r}) tries again without measuring again"
            ) from error

    @classmethod
    @refuses_after_fork
    def load(cls, folder: str | Path) -> ScanResult:
        """Read a run that was saved before."""
        path = Path(folder)
        rows, topn, run = tables.load_run(path)
        found = tables.load_findings(path)
        findings = None if found is None else Diagnosis(found)
        parts = Manifest.read(path / FINISHED)
        weights, joined = tables.load_token_weights(path), kinds.load_joined(path, "scan")
        return cls(rows, topn, run, weights, findings, joined=joined, folder=path, parts=parts)

    def page(self) -> str:
        """The report, as one HTML document."""
        from attnscope.scanning.page_data import render

        findings = None if self.findings is None else self.findings.content
        joined = {name: result.page_data() for name, result in self.joined.items()}
        return render(self.overview, findings, self.token_weights, joined=joined)

    def _page_file(self) -> Path:
        saved = self.folder and self.folder / "report.html"
        return saved.resolve() if saved and saved.is_file() else super()._page_file()

    def blocks(self, verbose: bool = False) -> list[Block]:
        """The verdict, a map of the heads, key numbers; all tables and findings behind folds."""
        from attnscope.scanning import view

        findings = None if self.findings is None else self.findings.content
        return view.blocks(self.overview, findings, verbose)

    def brief(self) -> list[str]:
        """What was run, the verdict, key numbers."""
        from attnscope.scanning import view

        return view.brief(self)

    def calls(self) -> tuple[str, ...]:
        """What to call next."""
        more = () if self.findings is None else (".findings",)
        return (
            ".summary()",
            ".heads",
            ".head(layer, head)",
            *more,
            '.plot.map("separability")',
            ".show()",
            ".save(folder)",
        )


def served_page(place: Mapping[str, Any], *folders: Path) -> str:
    """The page of a scan on a server, or of two side by side; `place` has the addresses of other pages."""
    from attnscope.scanning.page_data import page_data
    from attnscope.show.page import scan_page

    data = []
    for result in map(ScanResult.load, folders):
        findings = None if result.findings is None else result.findings.content
        page = page_data(result.overview, findings, result.token_weights)
        data.append(page | {name: other.page_data() for name, other in result.joined.items()})
    return scan_page(data[0], data[1] if len(data) > 1 else None, {"home": place["home"], "names": place["names"]})
