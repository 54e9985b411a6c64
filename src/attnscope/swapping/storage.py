"""A swapped model on disk: its configuration records the swap, its weights include the learned parameters.

`save_pretrained` writes both by itself. `restore` swaps again in a model that was loaded from such a folder;
`load` loads and restores in one call.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from attnscope import normalizers
from attnscope.capture.checkpoints import indexed_files, open_checkpoint
from attnscope.capture.huggingface import REPLACEMENT, SWAP_CONFIG_KEY
from attnscope.capture.loading import load_weights
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
from attnscope.swapping.replacement import Entry, add_change, replacement_of, sites
from attnscope.swapping.weights import check, rule_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

# The arguments that make a learnable module of the same shape; its parameters are among the saved weights.
_MODULE_SETTINGS: dict[type[nn.Module], Callable[[Any], dict[str, Any]]] = {
    LearnedSSMax: lambda m: {"heads": len(m.s), "b": None if m.b is None else 0.0},
    LearnedSink: lambda m: {"heads": len(m.sink)},
    LearnedEntmax: lambda m: {"heads": len(m.raw_alpha)},
    LearnedASEntmax: lambda m: {"heads": m.heads, "alpha": m.alpha},
    LearnedLipmax: lambda m: {"heads": len(m.raw_kappa), "cap": m.cap, "alpha": m.alpha},
}


def write_swap_config(model: nn.Module) -> None:
    """Record the current swap in the model's configuration, or remove the record if nothing is swapped."""
    entries = [
        {"module": name, "key": key, "heads": list(entry.heads), "normalizer": _describe(entry.rule)}
        for name, module in model.named_modules()
        if (replacement := replacement_of(module)) is not None
        for key, entry in replacement.entries.items()
        if entry.lasting
    ]
    config: Any = model.config
    if entries:
        setattr(config, SWAP_CONFIG_KEY, entries)
    elif hasattr(config, SWAP_CONFIG_KEY):
        delattr(config, SWAP_CONFIG_KEY)


def load(source: str | Path, *, custom: Mapping[str, Any] | None = None, cls: Any = None, **options: Any) -> Any:
    """Load a swapped model that was saved by `save_pretrained`.

    >>> model = attnscope.load_model().module
    >>> _ = attnscope.swap(model, "ssmax:s=0.2")
    >>> model.save_pretrained("swapped")
    >>> attnscope.swapping.load("swapped").config.model_type == model.config.model_type
    True

    Parameters
    ----------
    source
        A folder or a hub id.
    custom
        Normalizers that are not attnscope's own, by their recorded names.
    cls
        The class to load the model with. Default: `AutoModelForCausalLM`.
    **options
        Those of `from_pretrained`.

    Returns
    -------
    PreTrainedModel
        With its normalizers swapped.
    """
    import transformers

    options.setdefault("use_safetensors", True)
    revision = options.pop("revision", None)
    checkpoint = open_checkpoint(str(source), revision, allow_pickle=not options["use_safetensors"])
    model, _ = load_weights(transformers.AutoModelForCausalLM if cls is None else cls, checkpoint, **options)
    restore(model, source, custom=custom, revision=checkpoint.options.get("revision"))
    return model


def restore(
    model: Any, source: str | Path, *, custom: Mapping[str, Any] | None = None, revision: str | None = None
) -> None:
    """Repeat the swap that a model's configuration records.

    >>> from transformers import AutoModelForCausalLM
    >>> model = attnscope.load_model().module
    >>> _ = attnscope.swap(model, "ssmax:s=0.2")
    >>> model.save_pretrained("swapped")
    >>> again = AutoModelForCausalLM.from_pretrained("swapped")
    >>> attnscope.swapping.restore(again, "swapped")  # what attnscope.swapping.load does

    Parameters
    ----------
    model
        A model that was saved while swapped and loaded by `from_pretrained`.
    source
        Where it was loaded from, a folder or a hub id.
    custom
        Normalizers that are not attnscope's own, by their recorded names.
    revision
        Branch, tag or commit of a hub model.
    """
    entries = getattr(model.config, SWAP_CONFIG_KEY, None)
    if not entries:
        raise ModelError(f"{str(source)!r} records no swap in its configuration; load it with from_pretrained")
    all_sites = sites(model)
    learned: dict[str, Path] | None = None
    for module, key, heads, normalizer in _recorded(entries, str(source)):
        suffix = f".{module}"
        site = next((s for s in all_sites if f".{s.name}".endswith(suffix) or suffix.endswith(f".{s.name}")), None)
        if site is None:
            raise ModelError(f"{str(source)!r} records a swap in {module}, which {type(model).__name__} does not have")
        if not set(heads) <= set(range(site.heads)) or len(set(heads)) < len(heads):
            raise ModelError(
                f"{str(source)!r} records a swap in heads {heads} of {module}, which has {site.heads} heads"
            )
        try:
            rule = rule_for(_rebuild(normalizer, len(heads), custom or {}), len(heads))
            device = next(site.module.parameters()).device
            if isinstance(rule, nn.Module):
                learned = _parameter_files(str(source), revision) if learned is None else learned
                rule.load_state_dict(_state(learned, module, key, str(source)))
                rule.to(device)
                rule.train(site.module.training)
            check(rule, len(heads), device)
        except (AttributeError, KeyError, RuntimeError, SafetensorError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise ModelError(f"the swap that {str(source)!r} records in {module} is damaged: {reason}") from error
        add_change(site.module, site.heads, Entry(tuple(heads), rule, lasting=True), key)
    write_swap_config(model)


def _recorded(entries: Any, source: str) -> Iterator[tuple[str, str, list[int], dict[str, Any]]]:
    """Module, key, heads and normalizer of each entry of a configuration's record."""
    for entry in entries if isinstance(entries, list) else [entries]:
        match entry:
            case {
                "module": str(module),
                "key": str(key),
                "heads": [int(), *_] as heads,
                "normalizer": dict(normalizer),
            }:
                if key.isdecimal() and all(type(head) is int for head in heads):
                    yield module, key, heads, normalizer
                    continue
        raise ModelError(f"{source!r} records a swap that is not attnscope's: {str(entry)[:100]}")


def _parameter_files(source: str, revision: str | None) -> dict[str, Path]:
    """The file of each parameter of a replacement, by the parameter's name."""
    index = _file(source, "model.safetensors.index.json", revision)
    if index is not None:
        replaced = {name: file for name, file in indexed_files(index).items() if f".{REPLACEMENT}." in name}
        return {name: path for name, file in replaced.items() if (path := _file(source, file, revision)) is not None}
    weights = _file(source, "model.safetensors", revision)
    if weights is None:
        raise ModelError(f"{source!r} has no model.safetensors; save the swapped model with save_pretrained")
    with safe_open(weights, "pt") as file:
        return {name: weights for name in file.keys() if f".{REPLACEMENT}." in name}  # noqa: SIM118


def _file(source: str, name: str, revision: str | None) -> Path | None:
    """A file of a folder or of a hub's repository, or None if it is not there."""
    from transformers.utils.hub import cached_file

    # The model was just loaded from there, so its files are in the cache.
    where = {"revision": revision, "local_files_only": True}
    path = cached_file(source, name, **where, _raise_exceptions_for_missing_entries=False)
    return None if path is None else Path(path)


def _state(learned: Mapping[str, Path], module: str, key: str, source: str) -> dict[str, torch.Tensor]:
    """The state dict of one rule."""
    prefix = f".{module}.{REPLACEMENT}.rules.{key}."
    state = {}
    for name, path in learned.items():
        _, matched, parameter = f".{name}".partition(prefix)
        if matched:
            with safe_open(path, "pt") as file:
                state[parameter] = file.get_tensor(name)
    if not state:
        raise ModelError(f"{source!r} holds no parameters of the normalizer in {module}; save the model again")
    return state


def _describe(rule: Any) -> dict[str, Any]:
    """A normalizer as a JSON object, from which `_rebuild` makes it again."""
    if type(rule) in _MODULE_SETTINGS:
        return {"learned": type(rule).__name__, "settings": _MODULE_SETTINGS[type(rule)](rule)}
    if isinstance(rule, Tempered):
        return {"temperature": rule.temperature, "of": _describe(rule.inner)}
    if isinstance(rule, Normalizer) and rule.name in normalizers.names():
        names: list[str] = [field.name for field in fields(rule)] if is_dataclass(rule) else []
        values: dict[str, Any] = {name: getattr(rule, name) for name in names}
        if all(isinstance(value, torch.Tensor | int | float | str | None) for value in values.values()):
            return {"name": rule.name, "settings": {name: _setting(value) for name, value in values.items()}}
    kind = rule if hasattr(rule, "__qualname__") else type(rule)
    return {"custom": f"{kind.__module__}.{kind.__qualname__}"}


def _setting(value: Any) -> Any:
    return {"tensor": value.tolist()} if isinstance(value, torch.Tensor) else value


def _rebuild(description: dict[str, Any], heads: int, custom: Mapping[str, Any]) -> Any:
    """The normalizer that `_describe` described; only attnscope's own are made by name."""
    if "learned" in description:
        kind = next((kind for kind in _MODULE_SETTINGS if kind.__name__ == description["learned"]), None)
        settings = description["settings"]
        if kind is None:
            raise ValueError(f"no learned normalizer is named {description['learned']!r}")
        if settings.get("heads") != heads:
            raise ValueError(f"{description['learned']} is for {settings.get('heads')} heads, but {heads} are swapped")
        return kind(**settings)
    if "temperature" in description:
        return normalizers.Tempered(_rebuild(description["of"], heads, custom), description["temperature"])
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
