"""What `run.json` says of a scan, and what decides its numbers."""

from __future__ import annotations

import platform
import re
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any

import torch

from attnscope import __version__
from attnscope.capture.huggingface import SWAP_CONFIG_KEY
from attnscope.capture.loading import weights_digest
from attnscope.store import tables

if TYPE_CHECKING:
    from collections.abc import Iterable

    from attnscope.capture.models import Model, PlainModel
    from attnscope.capture.tokens import TokenizedText, WindowChoice
    from attnscope.measure.settings import Settings
    from attnscope.progress import OnStep


def _patterns(names: Iterable[str]) -> list[str]:
    """Names of weights with * for the numbers of layers, each once."""
    return sorted({re.sub(r"(?<=\.)\d+(?=\.)", "*", name) for name in names})


@cache
def version(package: str) -> str:
    """Of an installed package; looked up in files once."""
    return metadata.version(package)


def model_identity(model: Model, _: OnStep) -> dict[str, Any]:
    """Whatever about a loaded model decides the numbers of the tables."""
    module = model.module
    return {
        "attnscope": __version__,
        "torch": torch.__version__,
        "weights": weights_digest(module),
        "attention": module.config._attn_implementation,
        "swap": getattr(module.config, SWAP_CONFIG_KEY, None),
    }


def identity(model: dict[str, Any], text: TokenizedText, choice: WindowChoice, settings: Settings) -> dict[str, Any]:
    """Whatever decides the numbers of the tables: two runs that agree in it can share windows."""
    return {
        "schema": tables.SCHEMA_VERSION,
        **model,
        "text": text.digest,
        **choice.as_json(),
        "settings": settings.as_json(),
        "parameters": {label: repr(vars(n)) for label, n in settings.normalizers.items()},
    }


def model_record(model: Model | PlainModel, _: OnStep | None = None) -> dict[str, Any]:
    """What `run.json` says about a model; its heads are added when they are known."""
    module = model.module
    config = getattr(module, "config", None)
    parameters = list(module.parameters())
    kinds = {str(p.dtype).removeprefix("torch."): None for p in parameters if p.is_floating_point()}
    devices = dict.fromkeys("offloaded" if p.is_meta else str(p.device) for p in parameters)
    return {
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
    }


def run_record(
    kind: str,
    model: dict[str, Any],
    text: dict[str, Any],
    settings: Settings,
    timings: dict[str, float],
    notes: dict[str, Any],
) -> dict[str, Any]:
    """The content of `run.json`; `notes` are those of all windows."""
    return {
        "kind": kind,
        "schema": tables.SCHEMA_VERSION,
        "attnscope": __version__,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": {**model, "heads": notes["heads"]},
        "text": text,
        "settings": settings.as_json(),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "transformers", "polars", "numpy")},
        },
        "timings": {
            **{name: round(seconds, 3) for name, seconds in timings.items()},
            "measure_seconds": round(notes["measure_seconds"], 3),
        },
        "skipped_heads": notes["skipped"],
        "dropped_rows": notes["dropped_rows"],
    }
