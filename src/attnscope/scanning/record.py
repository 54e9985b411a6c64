"""What `run.json` says of a scan, and what decides its numbers."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any

import torch

from attnscope import __version__, tables
from attnscope.capture.fingerprint import weights_digest
from attnscope.capture.huggingface import SWAP_CONFIG_KEY

if TYPE_CHECKING:
    from attnscope.capture.models import Model, PlainModel
    from attnscope.planning import Settings
    from attnscope.scanning.text_scan import Scan


@cache
def version(package: str) -> str:
    """Of an installed package; looked up in files once."""
    return metadata.version(package)


def identity(job: Scan) -> dict[str, Any]:
    """Whatever decides the numbers of the tables: two runs that agree in it can share windows."""
    module = job.model.module
    return {
        "schema": tables.SCHEMA_VERSION,
        "attnscope": __version__,
        "torch": torch.__version__,
        "weights": weights_digest(module),
        "attention": module.config._attn_implementation,
        "swap": getattr(module.config, SWAP_CONFIG_KEY, None),
        "text": job.text.digest,
        "settings": job.settings.as_json(),
        "parameters": {label: repr(vars(n)) for label, n in job.settings.normalizers.items()},
    }


def run_record(
    model: Model | PlainModel,
    text: dict[str, Any],
    settings: Settings,
    timings: dict[str, float],
    notes: list[dict[str, Any]],
) -> dict[str, Any]:
    """The content of `run.json`; `notes` are what each window left beside its tables."""
    module = model.module
    config = getattr(module, "config", None)
    parameters = list(module.parameters())
    kinds = {str(p.dtype).removeprefix("torch."): None for p in parameters if p.is_floating_point()}
    places = dict.fromkeys("offloaded" if p.is_meta else str(p.device) for p in parameters)
    skipped = {(entry["layer"], entry["head"]): entry for note in reversed(notes) for entry in note["skipped"]}
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
            "dtype": ", ".join(kinds),
            "device": ", ".join(places),
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
        "skipped_heads": [skipped[key] for key in sorted(skipped)],
        "dropped_rows": sum(note["dropped_rows"] for note in notes),
    }
