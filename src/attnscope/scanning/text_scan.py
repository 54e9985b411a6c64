"""Scan a model on the windows of a text or a corpus, block by block."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope import tables
from attnscope.capture.token_texts import token_texts
from attnscope.capture.windows import window_tokens
from attnscope.engine.blocks import Blocks, Work, block_size
from attnscope.engine.parts import merge_notes
from attnscope.engine.store import MemoryParts, Parts, PartStore, collect
from attnscope.engine.windows import WindowPlan, plan_windows
from attnscope.scanning.measuring import ScanMeasurer
from attnscope.scanning.record import identity, model_identity, model_record, run_record
from attnscope.scanning.result import ScanResult

if TYPE_CHECKING:
    from attnscope.capture.tokens import TokenizedText, WindowChoice
    from attnscope.engine.blocks import Engine
    from attnscope.planning import Settings
    from attnscope.progress import Report


@dataclass(frozen=True)
class TextScan:
    """A scan that is planned: which windows of the text, in which blocks, and what is measured in each."""

    engine: Engine
    text: TokenizedText
    choice: WindowChoice
    settings: Settings
    plan: WindowPlan
    blocks: Blocks

    @classmethod
    def planned(cls, engine: Engine, text: TokenizedText, choice: WindowChoice, settings: Settings) -> TextScan:
        """Choose the windows; refuses a text that is too short."""
        model = engine.facts
        windows = window_tokens(model, text, settings.length, settings.windows, settings.bos, choice)
        plan = plan_windows(model, settings.lengths, settings.positions)
        others = len(settings.normalizers)
        normalizers = 1 + others + len(settings.temperatures) * (1 + others)
        lines = model.heads * plan.rows * normalizers * len(settings.top_n)
        return cls(engine, text, choice, settings, plan, Blocks(windows, block_size(len(windows), lines)))

    def store(self, folder: Path | None) -> PartStore:
        """Where finished blocks are kept: those of a run in one block are not worth keeping on disk."""
        if folder is None or len(self.blocks) == 1:
            return MemoryParts()
        plan = identity(self.engine.call(model_identity), self.text, self.choice, self.settings)
        names = {"model": self.engine.facts.name, "text": self.text.source}
        return Parts(folder, plan, self.blocks, names)

    def run(self, store: PartStore, report: Report, load_seconds: float) -> ScanResult:
        """Run the blocks that the store does not have yet; the result is that of all."""
        started = time.perf_counter()
        work = Work(self.plan, ScanMeasurer(self.settings), store.finish)
        collect(self.engine, work, self.blocks, store, report)
        timings = {"load_seconds": load_seconds, "scan_seconds": time.perf_counter() - started}
        text = self.text.as_json() | self.choice.as_json()
        notes = merge_notes(store.notes())
        run = run_record(self.engine.call(model_record), text, self.settings, timings, notes) | self._workers(store)
        shown = self._token_weights(store)
        if isinstance(store, Parts) and store.manifest.lines("topn") > tables.MOST_LINES:
            return ScanResult.of_parts(store.manifest, run, shown)
        rows, topn = (store.table(name, tables.SCANNED[name]) for name in ("rows", "topn"))
        return ScanResult(rows, topn, run, shown)

    def _workers(self, store: PartStore) -> dict[str, Any]:
        """What `run.json` says about blocks and workers; nothing for a run in one block."""
        if len(self.blocks) == 1:
            return self.engine.described
        blocks = {"count": len(self.blocks), "windows": self.blocks.size, "failed": store.failed}
        return {**self.engine.described, "blocks": blocks}

    def _token_weights(self, store: PartStore) -> tables.TokenWeights | None:
        """What the report shows over the text of the first window; None if that could not be measured."""
        if store.numbers()[:1] != [0]:
            return None
        tokens = self.plan.window(0, self.blocks.windows[0:1].tolist()[0]).forwards[-1].tokens
        found = store.part(0).tables
        weights, patterns = (found.get(name, tables.SCANNED[name].to_frame()) for name in ("weights", "patterns"))
        return tables.TokenWeights(weights, *token_texts(self.engine.facts.tokenizer, tokens), patterns)
