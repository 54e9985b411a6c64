"""Scan any module on tensors instead of a text, in one forward: each item of the batch is a window.

Nothing is known of such a module before it runs, so every attention call says for itself how many rows it has.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import polars as pl
import torch
from torch.utils._pytree import tree_leaves

from attnscope.capture.forward import Inputs
from attnscope.capture.models import PlainModel
from attnscope.capture.token_texts import token_texts
from attnscope.engine.parts import merge_notes
from attnscope.engine.run import run_inputs
from attnscope.errors import InputError
from attnscope.planning import Settings
from attnscope.progress import Report
from attnscope.scanning.measuring import ScanMeasurer
from attnscope.scanning.record import model_record, run_record
from attnscope.scanning.result import ScanResult
from attnscope.tables import TokenWeights


def scan_inputs(
    model: PlainModel,
    inputs: Inputs,
    settings: Settings,
    tokenizer: Any,
    report: Report,
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
    run = run_record(model_record(model), text, settings, timings, notes)
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
