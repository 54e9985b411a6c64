"""What `run.json` says of a scan, and what decides its numbers."""

from __future__ import annotations

import hashlib
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch

from attnscope import __version__, tables
from attnscope.capture.huggingface import RECORD
from attnscope.scanning.rows import DELTA_KEYS

if TYPE_CHECKING:
    from attnscope.scanning.windows import Scan


def identity(job: Scan) -> dict[str, Any]:
    """Whatever decides the numbers of the tables: two runs that agree in it can share windows."""
    module = job.model.module
    digest = hashlib.sha256()
    for name, parameter in module.state_dict().items():
        flat = parameter.reshape(-1)
        some = flat[:: max(1, flat.numel() // 64)].to(torch.float64)
        digest.update(f"{name} {tuple(parameter.shape)} {some.cpu().numpy().tobytes().hex()}".encode())
    return {
        "schema": tables.SCHEMA_VERSION,
        "attnscope": __version__,
        "torch": torch.__version__,
        "weights": digest.hexdigest(),
        "attention": module.config._attn_implementation,
        "swap": getattr(module.config, RECORD, None),
        "text": job.text.digest,
        "settings": job.settings.as_json(),
        "parameters": {label: repr(vars(n)) for label, n in job.settings.normalizers.items()},
    }


def record(job: Scan, tokens: int, timings: dict[str, float], notes: list[dict[str, Any]]) -> dict[str, Any]:
    """The content of `run.json`; `notes` are what each window left beside its tables."""
    module = job.model.module
    skipped = {(entry["layer"], entry["head"]): entry for note in reversed(notes) for entry in note["skipped"]}
    heads = {entry["layer"]: entry for note in notes for entry in note["heads"]}
    return {
        "schema": tables.SCHEMA_VERSION,
        "attnscope": __version__,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": {
            "name": job.model.name,
            "revision": job.model.revision,
            "family": job.model.family,
            "class": type(module).__name__,
            "attention": module.config._attn_implementation,
            "swap": getattr(module.config, RECORD, None),
            "dtype": str(module.dtype).removeprefix("torch."),
            "device": str(module.device),
            "parameters": sum(p.numel() for p in module.parameters()),
            "heads": [heads[layer] for layer in sorted(heads)],
        },
        "text": {
            "source": job.text.source,
            "sha256": job.text.digest,
            "characters": len(job.text.content),
            "tokens": tokens,
        },
        "settings": job.settings.as_json(),
        "delta_keys": DELTA_KEYS,
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "transformers", "polars", "numpy")},
        },
        "timings": timings,
        "skipped_heads": [skipped[key] for key in sorted(skipped)],
        "dropped_rows": sum(note["dropped_rows"] for note in notes),
    }
