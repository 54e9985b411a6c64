"""Run the model window by window and hand every attention call to those who measure it.

Requirement: what one layer leaves behind are lines of tables; its tensors are dropped before the next layer runs.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import polars as pl

from attnscope import tables
from attnscope.capture.forward import forward
from attnscope.capture.models import Model
from attnscope.capture.modes import evaluating
from attnscope.capture.text import Text, token_texts, tokenize
from attnscope.capture.vectors import VectorSource
from attnscope.capture.windows import inputs_by_length, window_tokens
from attnscope.planning import Settings
from attnscope.scanning.measuring import Measuring, Window
from attnscope.scanning.record import run_record
from attnscope.scanning.result import Progress, ScanResult, Step

if TYPE_CHECKING:
    from attnscope.capture.attention import Call


@dataclass
class Scan:
    """One scan in progress."""

    model: Model
    text: Text
    settings: Settings
    progress: Progress | None
    loading: float
    measure_seconds: float = 0.0

    def run(self, parts: tables.Parts | None) -> ScanResult:
        """Scan every window; those among the parts are done already."""
        started = time.perf_counter()
        tokens = self.tokens
        plans = [self._forwards(window) for window in self._windows(tokens)]
        done = [self._window(number, forwards, parts) for number, forwards in enumerate(plans)]
        timings = {
            "load_seconds": round(self.loading, 3),
            "scan_seconds": round(time.perf_counter() - started, 3),
            "measure_seconds": round(self.measure_seconds, 3),
        }
        rows, topn = (pl.concat([part.tables[name] for part in done]) for name in ("rows", "topn"))
        token_weights = tables.TokenWeights(
            done[0].tables["weights"], *token_texts(self.model.tokenizer, plans[0][-1][0])
        )
        text = {
            "source": self.text.source,
            "sha256": self.text.digest,
            "characters": len(self.text.content),
            "tokens": len(tokens),
        }
        notes = [part.notes for part in done]
        return ScanResult(
            rows, topn, run_record(self.model, text, self.settings, timings, notes), token_weights=token_weights
        )

    def _window(
        self, number: int, forwards: list[tuple[list[int], tuple[int, ...]]], parts: tables.Parts | None
    ) -> tables.Part:
        """One window, measured now or taken from an earlier run that was interrupted."""
        kept = None if parts is None else parts.get(number)
        if kept is not None:
            return kept
        window = Window(number)
        module = self.model.module
        source = VectorSource(module, self.settings.vectors)
        try:
            with evaluating(module):
                for index, (ids, positions) in enumerate(forwards):
                    self._forward(window, ids, positions, source, index, len(forwards))
        finally:
            source.close()
        part = window.part()
        if parts is not None and self.settings.windows > 1:
            parts.add(number, part)
        return part

    @cached_property
    def tokens(self) -> list[int]:
        """The text's tokens."""
        return tokenize(self.model.tokenizer, self.text)

    def _windows(self, tokens: list[int]) -> list[list[int]]:
        settings = self.settings
        return window_tokens(self.model, tokens, settings.length, settings.windows, settings.bos, self.text.source)

    def _forwards(self, window: list[int]) -> list[tuple[list[int], tuple[int, ...]]]:
        """The inputs to run for a window, each with the positions of the rows wanted from it."""
        settings = self.settings
        if self.model.causal:
            last = tuple(length - 1 for length in settings.lengths)
            return [(window, last if settings.rows == "last" else settings.positions(len(window)))]
        return [
            (ids, settings.positions(lengths[-1]))
            for ids, lengths in inputs_by_length(self.model, window, settings.lengths)
        ]

    def _forward(
        self,
        window: Window,
        ids: list[int],
        positions: tuple[int, ...],
        source: VectorSource,
        index: int,
        forwards: int,
    ) -> None:
        layers = self.model.module.config.get_text_config().num_hidden_layers
        window.last = positions[-1]
        calls = 0

        def collect(call: Call) -> None:
            nonlocal calls
            started = time.perf_counter()
            layer = source.layer(call.module, calls)
            Measuring(self.model, self.settings).measure(window, layer, call, positions, source)
            self.measure_seconds += time.perf_counter() - started
            calls += 1
            if self.progress is not None:
                total = self.settings.windows * forwards * layers
                done = (window.number * forwards + index) * layers + min(calls, layers)
                self.progress(Step(done, total, window.number, self.settings.windows, layer))

        forward(self.model, ids, collect)
