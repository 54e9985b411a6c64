"""The result of a scan from the parts of its windows, what `run.json` says of it, and what decides its numbers."""

from __future__ import annotations

import platform
import re
import time
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any

import polars as pl
import torch

from attnscope import __version__, tables
from attnscope.capture.fingerprint import weights_digest
from attnscope.capture.huggingface import SWAP_CONFIG_KEY
from attnscope.engine.parts import Part, merge_skipped
from attnscope.scanning.result import ScanResult

if TYPE_CHECKING:
    from collections.abc import Iterable

    from attnscope.capture.models import Model, PlainModel
    from attnscope.capture.text import Text
    from attnscope.planning import Settings


def _patterns(names: Iterable[str]) -> list[str]:
    """Names of weights with * for the numbers of layers, each once."""
    return sorted({re.sub(r"(?<=\.)\d+(?=\.)", "*", name) for name in names})


@cache
def version(package: str) -> str:
    """Of an installed package; looked up in files once."""
    return metadata.version(package)


def identity(model: Model, text: Text, settings: Settings) -> dict[str, Any]:
    """Whatever decides the numbers of the tables: two runs that agree in it can share windows."""
    module = model.module
    return {
        "schema": tables.SCHEMA_VERSION,
        "attnscope": __version__,
        "torch": torch.__version__,
        "weights": weights_digest(module),
        "attention": module.config._attn_implementation,
        "swap": getattr(module.config, SWAP_CONFIG_KEY, None),
        "text": text.digest,
        "settings": settings.as_json(),
        "parameters": {label: repr(vars(n)) for label, n in settings.normalizers.items()},
    }


def scan_result(
    model: Model | PlainModel,
    text: dict[str, Any],
    settings: Settings,
    parts: list[Part],
    key_names: tuple[list[str], list[str]],
    load_seconds: float,
    started: float,
) -> ScanResult:
    """All windows in one result; `key_names` are names and texts of the first window's tokens."""
    rows, topn = (pl.concat([part.tables[name] for part in parts]) for name in ("rows", "topn"))
    timings = {
        "load_seconds": round(load_seconds, 3),
        "scan_seconds": round(time.perf_counter() - started, 3),
        "measure_seconds": round(sum(part.measure_seconds for part in parts), 3),
    }
    run = run_record(model, text, settings, timings, [part.notes for part in parts])
    first = parts[0].tables
    return ScanResult(rows, topn, run, tables.TokenWeights(first["weights"], *key_names, first["patterns"]))


def run_record(
    model: Model | PlainModel,
    text: dict[str, Any],
    settings: Settings,
    timings: dict[str, float],
    notes: list[dict[str, Any]],
) -> dict[str, Any]:
    """The content of `run.json`; `notes` are those of each window's part."""
    module = model.module
    config = getattr(module, "config", None)
    parameters = list(module.parameters())
    kinds = {str(p.dtype).removeprefix("torch."): None for p in parameters if p.is_floating_point()}
    devices = dict.fromkeys("offloaded" if p.is_meta else str(p.device) for p in parameters)
    heads = {entry["layer"]: entry for note in notes for entry in note["heads"]}
    return {
        "schema": tables.SCHEMA_VERSION,
        "attnscope": __version__,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": {
            "name": model.name,
            "revision": model.revision,
            "family": model.family,
            "class": type(module).__name__,
            "attention": getattr(config, "_attn_implementation", None),
            "swap": getattr(config, SWAP_CONFIG_KEY, None),
            "unused_weights": _patterns(getattr(model, "unused_weights", ())),
            "dtype": ", ".join(kinds),
            "device": ", ".join(devices),
            "parameters": sum(p.numel() for p in parameters),
            "heads": [heads[layer] for layer in sorted(heads)],
        },
        "text": text,
        "settings": settings.as_json(),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "transformers", "polars", "numpy")},
        },
        "timings": timings,
        "skipped_heads": list(merge_skipped(note["skipped"] for note in notes).values()),
        "dropped_rows": sum(note["dropped_rows"] for note in notes),
    }
