"""What a scan returns: its tables and the record of it, and one head of it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from attnscope import columns
from attnscope._process import refuses_after_fork
from attnscope.diagnosis.result import Diagnosis, verdict_lines
from attnscope.errors import InputError, OutputError, whole_number
from attnscope.scanning import overview, view
from attnscope.scanning.overview import HEAD_MEASURES, ROW_MEASURES, SET_MEASURES, Overview, heads_table, summarize
from attnscope.scanning.page_data import page_data, pattern_cells, render
from attnscope.show import html, palette
from attnscope.show.blocks import Block, Grid, Heading, Note, Table
from attnscope.show.numbers import counted, measured, model_name, number, visible_token
from attnscope.show.page import scan_page
from attnscope.show.result import Result, bounded
from attnscope.store import kinds, tables
from attnscope.store.manifest import FINISHED, Manifest

if TYPE_CHECKING:
    from attnscope.scanning.plots import HeadPlots, ScanPlots


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

    @property
    def _content(self) -> dict[str, Any] | None:
        """What `findings.json` holds, if there is a diagnosis."""
        return None if self.findings is None else self.findings.content

    @cached_property
    def heads(self) -> pl.DataFrame:
        """One line for each head: its state and all its numbers, in the order of layers and heads.

        Measures of the scan are means over windows and over the rows that represent a head: the last row of the longest
        length, or the second half of a window if many rows were measured. With several windows, `<measure>_spread` is
        the standard deviation over them. What a diagnosis adds is null without one. Heads that were left out have no
        line (`skipped_heads`). docs/python.md lists the columns.
        """
        return heads_table(self.overview, self.findings)

    @cached_property
    def overview(self) -> Overview:
        """Means over windows and how much windows differ, in small tables."""
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
            attnscope.InputError names the ranges if there is no such head, and the reason if it was left out.
        """
        layer, head = whole_number("layer", layer, 0), whole_number("head", head, 0)
        counts = {entry["layer"]: entry["heads"] for entry in self.run["model"]["heads"]}
        if layer not in counts:
            known = f"0 to {max(counts)}" if list(counts) == list(range(len(counts))) else ", ".join(map(str, counts))
            raise InputError(f"no layer {layer}; this model has layers {known}")
        if head >= counts[layer]:
            raise InputError(f"no head {head} in layer {layer}, which has heads 0 to {counts[layer] - 1}")
        lines = self.heads.filter(layer=layer, head=head).to_dicts()
        if not lines:
            reasons = [one["reason"] for one in self.skipped_heads if (one["layer"], one["head"]) == (layer, head)]
            reason = reasons[0] if reasons else "it has no rows"
            raise InputError(f"{columns.head_name(layer, head)} was left out of this run: {reason}")
        return HeadResult(self, layer, head, lines[0])

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
        written = self.parts or {"rows": self.rows, "topn": self.topn}
        if self.parts is not None:
            self.overview.save(self.parts.folder)
        tables.save_run(folder, written, self.run, self.token_weights, self._content)
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
        joined = {name: result.page_data() for name, result in self.joined.items()}
        return render(self.overview, self._content, self.token_weights, joined=joined)

    def _page_file(self) -> Path:
        saved = self.folder and self.folder / "report.html"
        return saved.resolve() if saved and saved.is_file() else super()._page_file()

    def blocks(self, verbose: bool = False) -> list[Block]:
        """The verdict, a map of the heads, key numbers; all tables and findings behind folds."""
        return view.blocks(self.overview, self._content, verbose)

    def brief(self) -> list[str]:
        """What was run, the verdict, key numbers."""
        found = [f"ScanResult: {model_name(self.run)}, {view.subject(self.run)}"]
        if self.findings is not None:
            found += verdict_lines(self.findings)
        if not self.heads.is_empty():
            medians: dict[str, Any] = {name: self.heads[name].median() for name in _IN_REPR}
            words = (f"{columns.label(name, self.overview.n)} {measured(name, each)}" for name, each in medians.items())
            found.append(f"Median over heads {overview.shown_rows(self.run)}: {', '.join(words)}")
        if self.skipped_heads:
            found.append(f"Left out: {counted(len(self.skipped_heads), 'head')} (.skipped_heads has the reasons)")
        if self.findings is None:
            found.append("Without labels: attnscope.scan(..., diagnose=True) says which heads need many tokens.")
        return found

    def calls(self) -> tuple[str, ...]:
        more = () if self.findings is None else (".findings",)
        plots = (*more, '.plot.map("separability")')
        return (".summary()", ".heads", ".head(layer, head)", *plots, ".show()", ".save(folder)")


def served_page(place: Mapping[str, Any], *folders: Path) -> str:
    """The page of a scan on a server, or of two side by side; `place` has the addresses of other pages."""
    data = []
    for result in map(ScanResult.load, folders):
        page = page_data(result.overview, result._content, result.token_weights)
        data.append(page | {name: other.page_data() for name, other in result.joined.items()})
    return scan_page(data[0], data[1] if len(data) > 1 else None, {"home": place["home"], "names": place["names"]})


_IN_REPR = ("separability", "participation", "sink_weight", "jacobian_norm")
_WEIGHTS = {"position": pl.Int32, "key": pl.Int32, "token": pl.String, "weight": pl.Float64}
_TOKENS, _TOKENS_IN_REPR = 8, 5  # of the largest weights that are listed
_PICTURE = 32  # rows and runs of keys of the pattern in a notebook


@dataclass(frozen=True, repr=False, eq=False)
class HeadResult:
    """One head of a scan: its numbers, its largest weights, its pattern.

    >>> head = attnscope.scan(length=64, progress=False).head(0, 1)
    >>> head["support"]
    64.0
    >>> head.weights.columns
    ['position', 'key', 'token', 'weight']

    Attributes
    ----------
    result
        The scan.
    layer, head
        Which head, counted from 0.
    numbers
        Its line of `result.heads`.
    """

    result: ScanResult
    layer: int
    head: int
    numbers: dict[str, Any]

    @property
    def name(self) -> str:
        """How people read it: L3H5."""
        return columns.head_name(self.layer, self.head)

    @property
    def place(self) -> tuple[int, int]:
        """Layer and head."""
        return self.layer, self.head

    @property
    def rows(self) -> pl.DataFrame:
        """Its lines of `result.rows`."""
        return self.result.rows.filter(layer=self.layer, head=self.head)

    @property
    def topn(self) -> pl.DataFrame:
        """Its lines of `result.topn`."""
        return self.result.topn.filter(layer=self.layer, head=self.head)

    @property
    def weights(self) -> pl.DataFrame:
        """The largest weights of its last row, the largest first: `position`, `key`, `token`, `weight`."""
        kept = self.result.token_weights
        if kept is None:
            return pl.DataFrame(schema=_WEIGHTS)
        lines = kept.weights.filter(layer=self.layer, head=self.head).sort("weight", descending=True)
        texts = [kept.texts[key] if key < len(kept.texts) else "" for key in lines["key"]]
        return lines.with_columns(token=pl.Series(texts, dtype=pl.String)).select(*_WEIGHTS)

    @property
    def pattern(self) -> pl.DataFrame:
        """Its attention pattern: a line for each row (docs/columns.md, `patterns.parquet`)."""
        kept = self.result.token_weights
        if kept is None or kept.patterns is None:
            raise InputError("this run has no attention patterns (runs of older versions have none); scan again")
        return kept.patterns.filter(layer=self.layer, head=self.head)

    @property
    def plot(self) -> HeadPlots:
        """Charts: `plot.curve("separability")`, `plot.weights()`, `plot.pattern()`."""
        from attnscope.scanning.plots import HeadPlots

        return HeadPlots(self)

    def __getitem__(self, name: str) -> Any:
        try:
            return self.numbers[name]
        except KeyError:
            raise InputError(f"no number {name!r} of a head; there are {', '.join(self.numbers)}") from None

    def __repr__(self) -> str:
        run, n = self.result.run, self.result.overview.n
        lines = [
            f"{self.name} of {model_name(run)}, {overview.shown_rows(run)}",
            *([labels] if (labels := self._label()) else []),
            ", ".join(f"{columns.label(name)} {measured(name, self.numbers[name])}" for name in ROW_MEASURES),
            f"N = {n}: "
            + ", ".join(f"{columns.label(name)} {measured(name, self.numbers[name])}" for name in SET_MEASURES),
            *([f"Largest weights: {', '.join(largest)}"] if (largest := self._largest()) else []),
            'Next: ["support"], .rows, .plot.curve("separability"), .plot.pattern()',
        ]
        return bounded(lines)

    def _repr_html_(self) -> str:
        return html.fragment(self.blocks(), ('.plot.curve("separability")', ".plot.weights()", ".plot.pattern()"))

    def blocks(self) -> list[Block]:
        """Its state, its numbers, its largest weights, its pattern without the first key."""
        run, n = self.result.run, self.result.overview.n
        found: list[Block] = [Heading(f"{self.name} of {model_name(run)}", f"Means {overview.shown_rows(run)}")]
        labels = self._label()
        found += [Note(labels, "strong")] if labels else []
        numbers = [(columns.label(name, n), measured(name, self.numbers[name])) for name in HEAD_MEASURES]
        found.append(Table(("Quantity", "Value"), numbers))
        top = self.weights.head(_TOKENS).select("key", "token", "weight")
        if top.height:
            rows = [(str(key), visible_token(token), number(weight, "share")) for key, token, weight in top.iter_rows()]
            title = f"Largest weights of row {self.weights['position'][0]:,}"
            found.append(Table(("Key", "Token", "Weight"), rows, title, (1,)))
        return [*found, *self._picture()]

    def _label(self) -> str:
        numbers = self.numbers
        if numbers["state"] is None:
            return f"No label: {numbers['withdrawn']} did not hold inside the model" if numbers["withdrawn"] else ""
        needed = f"{columns.label('tokens_needed')} {measured('tokens_needed', numbers['tokens_needed'])}"
        grown = f"{columns.label('growth_exponent')} {measured('growth_exponent', numbers['growth_exponent'])}"
        nulls = f"separability {number(numbers['separability_diagnosed'], 'share')} on the rows of the diagnosis, "
        nulls += f"{number(numbers['null_uniform'], 'share')} with equal weights, "
        nulls += f"{number(numbers['null_random'], 'share')} for random sets"
        sure = f"sureness {number(numbers['sureness'], 'share')}"
        return f"{numbers['state'].capitalize()} ({sure}). {needed}, {grown}; {nulls}"

    def _largest(self) -> list[str]:
        top = self.weights.head(_TOKENS_IN_REPR).select("token", "weight")
        return [f"{visible_token(token)} {number(weight, 'share')}" for token, weight in top.iter_rows()]

    def _picture(self) -> list[Block]:
        """The pattern without the first key as a small picture."""
        kept = self.result.token_weights
        if kept is None or kept.patterns is None or self.pattern.is_empty():
            return []
        pattern = self.pattern.sort("position")
        pattern = pattern[:: -(-pattern.height // _PICTURE)]
        cells = pattern_cells(pattern, hide_first=True).with_columns(key=pl.col("first") - pl.col("first").min())
        wide = -(-(int(cells["key"].to_numpy().max()) + 1) // _PICTURE)
        merged = cells.group_by("position", pl.col("key") // wide).agg(pl.col("weight").sum())
        most = float(merged["weight"].to_numpy().max()) or 1.0
        rows = {position: index for index, position in enumerate(pattern["position"])}
        grid: list[list[str | None]] = [[None] * _PICTURE for _ in rows]
        for position, column, weight in merged.iter_rows():
            grid[rows[position]][column] = palette.color_of((weight / most) ** 0.5)
        note = "Rows from top to bottom, keys from left to right"
        return [Grid("Attention pattern without the first key", grid, note)]
