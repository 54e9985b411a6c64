"""What a scan runs on: the windows of a text or a corpus, block by block, or a module's tensors in one forward.

Nothing is known of such a module before it runs, so every attention call says for itself how many rows it has.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import torch
from torch.utils._pytree import tree_leaves

from attnscope.capture.forward import Inputs
from attnscope.capture.models import PlainModel
from attnscope.capture.tokens import token_texts, window_tokens
from attnscope.engine.blocks import Blocks, Work, block_size
from attnscope.engine.record import identity, model_identity, model_record, run_record
from attnscope.engine.run import WindowPlan, merge_notes, plan_windows, run_inputs
from attnscope.engine.store import BlocksInMemory, BlocksOnDisk, PartStore, collect
from attnscope.errors import InputError
from attnscope.measure.settings import Settings
from attnscope.progress import OnStep
from attnscope.scanning.measuring import ScanMeasurer
from attnscope.scanning.result import ScanResult
from attnscope.store import tables
from attnscope.store.tables import TokenWeights

if TYPE_CHECKING:
    from attnscope.capture.tokens import TokenizedText, WindowChoice
    from attnscope.engine.blocks import Engine


def scan_inputs(
    model: PlainModel,
    inputs: Inputs,
    settings: Settings,
    tokenizer: Any,
    report: OnStep,
    load_seconds: float,
) -> ScanResult:
    """Run the module once on tensors and measure whatever attends in it."""
    started = time.perf_counter()
    parts = list(run_inputs(model, inputs, ScanMeasurer(settings), settings.positions, progress=report))
    if not parts:
        raise InputError("the inputs hold no items: a batch of size 0 has nothing to measure")
    longest = max(int(part.tables["rows"]["length"].max() or 0) for part in parts)  # type: ignore[arg-type]
    settings = replace(settings, length=longest, lengths=(longest,), windows=len(parts))
    rows, topn = (pl.concat([part.tables[name] for part in parts]) for name in ("rows", "topn"))
    notes = merge_notes(part.notes for part in parts)
    text = {"source": "inputs", "sha256": _digest(inputs), "characters": None, "tokens": notes["tokens"]}
    timings = {"load_seconds": load_seconds, "scan_seconds": time.perf_counter() - started}
    run = run_record("scan", model_record(model), text, settings, timings, notes)
    first = parts[0].tables
    names = _key_names(inputs, tokenizer, longest)
    return ScanResult(rows, topn, run, TokenWeights(first["weights"], *names, first["patterns"]))


def _key_names(inputs: Inputs, tokenizer: Any, length: int) -> tuple[list[str], list[str]]:
    """What the report calls the keys of the first item: its tokens if they are known, else their positions."""
    ids = inputs.get("input_ids") if isinstance(inputs, Mapping) else None
    if tokenizer is not None and isinstance(ids, torch.Tensor):
        return token_texts(tokenizer, ids.reshape(-1, ids.shape[-1])[0].tolist())
    positions = [str(position) for position in range(length)]
    return positions, [f" {position}" for position in positions]


def _digest(inputs: Inputs) -> str | None:
    """SHA-256 of the tensors among the inputs; None if a function makes them."""
    tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
    if not tensors:
        return None
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


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
            return BlocksInMemory()
        plan = identity(self.engine.call(model_identity), self.text, self.choice, self.settings)
        names = {"kind": "scan", "model": self.engine.facts.name, "text": self.text.source}
        return BlocksOnDisk(folder, plan, self.blocks, names)

    def run(self, store: PartStore, report: OnStep, load_seconds: float) -> ScanResult:
        """Run the blocks that the store does not have yet; the result is that of all."""
        started = time.perf_counter()
        work = Work(self.plan, ScanMeasurer(self.settings), store.finish)
        collect(self.engine, work, self.blocks, store, report)
        timings = {"load_seconds": load_seconds, "scan_seconds": time.perf_counter() - started}
        text = self.text.as_json() | self.choice.as_json()
        notes = merge_notes(store.notes())
        model = self.engine.call(model_record)
        run = run_record("scan", model, text, self.settings, timings, notes) | self._workers(store)
        shown = self._token_weights(store)
        if isinstance(store, BlocksOnDisk) and store.manifest.lines("topn") > tables.MOST_LINES:
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
        if store.finished_blocks()[:1] != [0]:
            return None
        tokens = self.plan.window(0, self.blocks.windows[0:1].tolist()[0]).forwards[-1].tokens
        found = store.part(0).tables
        weights, patterns = (found.get(name, tables.SCANNED[name].to_frame()) for name in ("weights", "patterns"))
        return tables.TokenWeights(weights, *token_texts(self.engine.facts.tokenizer, tokens), patterns)
