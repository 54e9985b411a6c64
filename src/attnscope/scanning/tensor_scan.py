"""Scan any module on inputs of its user's own: tensors instead of a text, in one forward.

Each item of the batch is a window.
Nothing is known of such a module before it runs, so every attention call says for itself how many rows it has.
Rows of padding are left out before rows are chosen: `last` is the last row of each item that sees a key.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import polars as pl
import torch
from torch.utils._pytree import tree_leaves

from attnscope import tables
from attnscope.capture.attention import unpadded
from attnscope.capture.forward import Inputs, run
from attnscope.capture.models import PlainModel
from attnscope.capture.modes import evaluating
from attnscope.capture.text import token_texts
from attnscope.capture.vectors import VectorSource
from attnscope.errors import InputError
from attnscope.planning import Settings
from attnscope.scanning.measuring import Measuring, Window
from attnscope.scanning.record import run_record
from attnscope.scanning.result import Progress, ScanResult, Step

if TYPE_CHECKING:
    from attnscope.capture.attention import Call


@dataclass
class InputsScan:
    """One scan of a module in progress."""

    model: PlainModel
    inputs: Inputs
    settings: Settings
    tokenizer: Any
    progress: Progress | None
    loading: float
    windows: dict[int, Window] = field(default_factory=dict)  # by item of the batch
    tokens: int = 0
    measure_seconds: float = 0.0

    def run(self) -> ScanResult:
        """Run the module once and measure whatever attends in it."""
        started = time.perf_counter()
        module = self.model.module
        source = VectorSource(module, self.settings.vectors)
        calls = 0

        def collect(call: Call) -> None:
            nonlocal calls
            begun = time.perf_counter()
            layer = source.layer(call.module, calls)
            for item in range(call.batch):
                self._item(call.only(item), item, layer, source, calls == 0)
            self.measure_seconds += time.perf_counter() - begun
            calls += 1
            if self.progress is not None:  # how many layers will come is not known
                self.progress(Step(calls, calls, 0, 1, layer))

        try:
            with evaluating(module):
                run(module, self.inputs, collect)
        finally:
            source.close()
        return self._result(started)

    def _item(self, call: Call, item: int, layer: int, source: VectorSource, first: bool) -> None:
        window = self.windows.setdefault(item, Window(item))
        places = unpadded(call)
        window.dropped_rows += call.heads * (call.queries - len(places))
        if first:
            self.tokens += len(places)
        if not places:
            return
        positions = tuple(places[index] for index in self.settings.positions(len(places)))
        window.last = positions[-1]
        Measuring(self.model, self.settings).measure(window, layer, call, positions, source)

    def _result(self, started: float) -> ScanResult:
        if not self.windows:
            raise InputError("the inputs hold no items: a batch of size 0 has nothing to measure")
        done = [self.windows[item].part() for item in sorted(self.windows)]
        rows, topn = (pl.concat([part.tables[name] for part in done]) for name in ("rows", "topn"))
        timings = {
            "load_seconds": round(self.loading, 3),
            "scan_seconds": round(time.perf_counter() - started, 3),
            "measure_seconds": round(self.measure_seconds, 3),
        }
        longest = int(rows["length"].max() or 0)  # type: ignore[arg-type]
        settings = replace(self.settings, length=longest, lengths=(longest,), windows=len(done))
        text = {"source": "inputs", "sha256": _digest(self.inputs), "characters": None, "tokens": self.tokens}
        token_weights = tables.TokenWeights(done[0].tables["weights"], *self._names(longest))
        notes = [part.notes for part in done]
        return ScanResult(
            rows, topn, run_record(self.model, text, settings, timings, notes), token_weights=token_weights
        )

    def _names(self, length: int) -> tuple[list[str], list[str]]:
        """What the report calls the keys of the first item: its tokens if they are known, else their places."""
        ids = self.inputs.get("input_ids") if isinstance(self.inputs, Mapping) else None
        if self.tokenizer is not None and isinstance(ids, torch.Tensor):
            return token_texts(self.tokenizer, ids.reshape(-1, ids.shape[-1])[0].tolist())
        places = [str(place) for place in range(length)]
        return places, [f" {place}" for place in places]


def _digest(inputs: Inputs) -> str | None:
    """SHA-256 of the tensors among the inputs; a function keeps its own to itself."""
    tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
    if not tensors:
        return None
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
