"""One head of a scan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from attnscope import columns
from attnscope.errors import InputError
from attnscope.scanning import overview
from attnscope.scanning.overview import HEAD_MEASURES, ROW_MEASURES, SET_MEASURES
from attnscope.scanning.page_data import pattern_cells
from attnscope.show import html, palette
from attnscope.show.blocks import Block, Grid, Heading, Note, Table
from attnscope.show.numbers import measured, model_name, number, visible_token
from attnscope.show.result import bounded

if TYPE_CHECKING:
    from attnscope.scanning.plots import HeadPlots
    from attnscope.scanning.result import ScanResult

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


def find_head(result: ScanResult, layer: int, head: int) -> HeadResult:
    """The head of a scan; InputError names the ranges if there is none, and the reason if it was left out."""
    from attnscope.errors import whole_number

    layer, head = whole_number("layer", layer, 0), whole_number("head", head, 0)
    counts = {entry["layer"]: entry["heads"] for entry in result.run["model"]["heads"]}
    if layer not in counts:
        known = f"0 to {max(counts)}" if list(counts) == list(range(len(counts))) else ", ".join(map(str, counts))
        raise InputError(f"no layer {layer}; this model has layers {known}")
    if head >= counts[layer]:
        raise InputError(f"no head {head} in layer {layer}, which has heads 0 to {counts[layer] - 1}")
    lines = result.heads.filter(layer=layer, head=head).to_dicts()
    if not lines:
        reasons = [one["reason"] for one in result.skipped_heads if (one["layer"], one["head"]) == (layer, head)]
        reason = reasons[0] if reasons else "it has no rows"
        raise InputError(f"{columns.head_name(layer, head)} was left out of this run: {reason}")
    return HeadResult(result, layer, head, lines[0])
