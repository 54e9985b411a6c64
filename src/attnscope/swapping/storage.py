"""A swapped model on disk: what was swapped is in its configuration, what was learned among its weights.

`save_pretrained` writes both without knowing of it. `restore` puts a swap back on a model that was loaded from such
a folder; `load` loads and restores in one call.
"""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from torch import nn

from attnscope import normalizers
from attnscope.capture.huggingface import REPLACEMENT
from attnscope.errors import ModelError
from attnscope.normalizers import (
    LearnedASEntmax,
    LearnedEntmax,
    LearnedLipmax,
    LearnedSink,
    LearnedSSMax,
    Normalizer,
    Tempered,
)
from attnscope.swapping.layout import sites
from attnscope.swapping.replacement import Entry, change, replacement_of
from attnscope.swapping.rules import LEARNED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# The attribute of a model's configuration that says what was swapped.
RECORD = "attnscope_swap"

# The arguments that make a learnable module of the same shape anew; what it learned is among the weights.
_SHAPES: dict[type[nn.Module], Callable[[Any], dict[str, Any]]] = {
    LearnedSSMax: lambda m: {"heads": len(m.s), "b": None if m.b is None else 0.0},
    LearnedSink: lambda m: {"heads": len(m.sink)},
    LearnedEntmax: lambda m: {"heads": len(m.raw_alpha)},
    LearnedASEntmax: lambda m: {"heads": m.heads, "alpha": m.alpha},
    LearnedLipmax: lambda m: {"heads": len(m.raw_kappa), "cap": m.cap, "alpha": m.alpha},
}


def record(model: nn.Module) -> None:
    """Write what is swapped now to the model's configuration, or remove what an undone swap left there."""
    entries = [
        {"module": name, "key": key, "heads": list(entry.heads), "normalizer": _described(entry.rule)}
        for name, module in model.named_modules()
        if (own := replacement_of(module)) is not None
        for key, entry in own.entries.items()
        if entry.lasting
    ]
    config: Any = model.config
    if entries:
        setattr(config, RECORD, entries)
    elif hasattr(config, RECORD):
        delattr(config, RECORD)


def load(folder: str | Path, *, custom: Mapping[str, Any] | None = None, cls: Any = None, **options: Any) -> nn.Module:
    """Load a swapped model that was saved by `save_pretrained`; `options` are those of `from_pretrained`."""
    import transformers

    from attnscope.capture.models import quiet

    loader = transformers.AutoModelForCausalLM if cls is None else cls
    with quiet():  # it would report the normalizers' parameters, which `restore` reads, as unexpected
        model = loader.from_pretrained(folder, **options)
    restore(model, folder, custom=custom)
    return model


def restore(model: nn.Module, folder: str | Path, *, custom: Mapping[str, Any] | None = None) -> None:
    """Put the swap that a folder's configuration records back on the model loaded from it.

    `custom` gives normalizers that are not attnscope's own by the name under which they were recorded.
    """
    entries = getattr(model.config, RECORD, None)
    if not entries:
        raise ModelError(f"{str(folder)!r} records no swap in its configuration; load it with from_pretrained")
    found = sites(model)
    learned = _learned(Path(folder))
    for entry in entries:
        name = entry["module"]
        site = next((s for s in found if s.name == name or s.name.endswith("." + name) or name.endswith("." + s.name)), None)
        if site is None:
            raise ModelError(f"{str(folder)!r} records a swap in {name}, which {type(model).__name__} does not have")
        rule = _rebuilt(entry["normalizer"], custom or {})
        if isinstance(rule, nn.Module):
            rule.load_state_dict(_state(learned, name, entry["key"], str(folder)))
            rule.to(next(site.module.parameters()).device)
            rule.train(site.module.training)
        change(site.module, site.heads, Entry(tuple(entry["heads"]), rule, lasting=True), entry["key"])
    record(model)


def _learned(folder: Path) -> dict[str, tuple[Path, str]]:
    """Where each parameter of a replacement lies: its name, the file and the name in it."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = json.loads(index.read_text("utf-8"))["weight_map"]
        return {name: (folder / file, name) for name, file in names.items() if f".{REPLACEMENT}." in name}
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise ModelError(f"{str(folder)!r} has no model.safetensors; save the swapped model with save_pretrained")
    with safe_open(weights, "pt") as file:
        return {name: (weights, name) for name in file.keys() if f".{REPLACEMENT}." in name}  # noqa: SIM118


def _state(learned: dict[str, tuple[Path, str]], module: str, key: str, folder: str) -> dict[str, torch.Tensor]:
    ending = f"{module}.{REPLACEMENT}.rules.{key}."
    state = {}
    for name, (path, stored) in learned.items():
        before, found, parameter = name.partition(ending)
        if found and (not before or before.endswith(".")):
            with safe_open(path, "pt") as file:
                state[parameter] = file.get_tensor(stored)
    if not state:
        raise ModelError(f"{folder!r} holds no parameters of the normalizer in {module}; save the model again")
    return state


def _described(rule: Any) -> dict[str, Any]:
    """A normalizer as JSON."""
    if isinstance(rule, LEARNED):
        return {"learned": type(rule).__name__, "settings": _SHAPES[type(rule)](rule)}
    if isinstance(rule, Tempered):
        return {"temperature": rule.temperature, "of": _described(rule.inner)}
    if isinstance(rule, Normalizer) and rule.name in normalizers.names() and is_dataclass(rule):
        values = {field.name: getattr(rule, field.name) for field in fields(rule)}
        if all(isinstance(value, torch.Tensor | int | float | str | None) for value in values.values()):
            return {"name": rule.name, "settings": {name: _value(value) for name, value in values.items()}}
    kind = rule if hasattr(rule, "__qualname__") else type(rule)
    return {"custom": f"{kind.__module__}.{kind.__qualname__}"}


def _value(value: Any) -> Any:
    return {"tensor": value.tolist()} if isinstance(value, torch.Tensor) else value


def _rebuilt(description: dict[str, Any], custom: Mapping[str, Any]) -> Any:
    if "learned" in description:
        return getattr(normalizers, description["learned"])(**description["settings"])
    if "temperature" in description:
        return normalizers.tempered(_rebuilt(description["of"], custom), description["temperature"])
    if "name" in description:
        settings = {
            name: torch.tensor(value["tensor"]) if isinstance(value, dict) else value
            for name, value in description["settings"].items()
        }
        return normalizers.get(description["name"], **settings)
    name = description["custom"]
    if name not in custom:
        raise ModelError(f"the swap uses {name}, which is not attnscope's own; pass custom={{{name!r}: ...}}")
    return custom[name]
