"""Run the model window by window: the tables that figures and claims are made of.

A finished window is kept on disk until all are, so that an interrupted run goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl

from attnscope.capture.forward import forward
from attnscope.capture.modes import evaluating
from attnscope.capture.text import Text, tokenize
from attnscope.capture.vectors import VectorSource
from attnscope.capture.windows import inputs_by_length, window_tokens
from attnscope.experiments.store import NAMES
from attnscope.experiments.window import Window
from attnscope.tables import Part, Parts

if TYPE_CHECKING:
    from attnscope.capture.attention import Call
    from attnscope.capture.models import Model
    from attnscope.experiments.settings import Settings

Progress = Callable[[int, int], None]
"""Called with (layers done, layers in all)."""


@dataclass
class Collector:
    """A reproduction while the model runs."""

    model: Model
    text: Text
    settings: Settings
    progress: Progress | None = None
    parts: Parts | None = None  # where finished windows are kept
    heads: dict[int, int] = field(default_factory=dict)
    skipped: dict[tuple[int, int], str] = field(default_factory=dict)
    tokens: int = 0
    resumed: int = 0  # windows taken from an earlier run

    def run(self) -> dict[str, pl.DataFrame]:
        """Run the model on every window; the tables by name."""
        tokens = tokenize(self.model.tokenizer, self.text)
        self.tokens = len(tokens)
        settings = self.settings
        inputs = window_tokens(self.model, tokens, settings.longest, settings.windows, settings.bos, self.text.source)
        found: dict[str, list[pl.DataFrame]] = {name: [] for name in NAMES}
        for number, window in enumerate(inputs):
            part = self._window(number, window)
            self.heads |= {entry["layer"]: entry["heads"] for entry in part.notes["heads"]}
            for entry in part.notes["skipped"]:
                self.skipped.setdefault((entry["layer"], entry["head"]), entry["reason"])
            for name, table in part.tables.items():
                if table.width:
                    found[name].append(table)
        return {name: self._without_skipped(pl.concat(tables)) for name, tables in found.items() if tables} | {
            name: pl.DataFrame() for name, tables in found.items() if not tables
        }

    def _without_skipped(self, table: pl.DataFrame) -> pl.DataFrame:
        """A head that had to be left out of one window is left out of all."""
        if not self.skipped or "head" not in table.columns:
            return table
        bad = pl.DataFrame(list(self.skipped), schema={"layer": pl.Int64, "head": pl.Int64}, orient="row")
        return table.join(bad, on=["layer", "head"], how="anti", maintain_order="left")

    def _window(self, number: int, tokens: list[int]) -> Part:
        """One window, measured now or taken from an earlier run that was interrupted."""
        kept = None if self.parts is None else self.parts.get(number)
        if kept is not None:
            self.resumed += 1
            return kept
        module, window = self.model.module, Window(number, self.model, self.settings)
        sources = [VectorSource(module, kind) for kind in self.settings.vectors]
        try:
            with evaluating(module):
                for step, (ids, lengths) in enumerate(inputs_by_length(self.model, tokens, self.settings.lengths)):
                    self._forward(window, ids, lengths, sources, step)
        finally:
            for source in sources:
                source.close()
        notes: dict[str, Any] = {
            "heads": [{"layer": layer, "heads": heads} for layer, heads in sorted(window.heads.items())],
            "skipped": [
                {"layer": layer, "head": head, "reason": reason}
                for (layer, head), reason in sorted(window.skipped.items())
            ],
        }
        part = Part(window.tables(), notes)
        if self.parts is not None and self.settings.windows > 1:
            self.parts.add(number, part)
        return part

    def _forward(
        self, window: Window, ids: list[int], lengths: tuple[int, ...], sources: list[VectorSource], step: int
    ) -> None:
        layers = self.model.module.config.get_text_config().num_hidden_layers
        forwards = 1 if self.model.causal else len(self.settings.lengths)
        total = self.settings.windows * forwards * layers
        calls = 0

        def collect(call: Call) -> None:
            nonlocal calls
            window.layer(sources[0].layer(call.module, calls), call, lengths, sources)
            calls += 1
            if self.progress is not None:
                done = (window.number * forwards + step) * layers + min(calls, layers)
                self.progress(done, total)

        forward(self.model, ids, collect)
