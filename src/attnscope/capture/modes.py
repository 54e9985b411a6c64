"""Context managers for trial runs of a model: evaluation mode, no forward hooks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Temporarily switch to eval mode; afterwards each submodule is back in its previous mode."""
    training = [part for part in module.modules() if part.training]
    if not training:
        yield
        return
    module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


@contextmanager
def without_hooks(module: nn.Module) -> Iterator[None]:
    """Temporarily remove the forward hooks of a module and its submodules.

    Hooks added or removed in the meantime stay added or removed. Observations in other threads keep theirs.
    """
    hooks = [hooks for part in module.modules() for hooks in (part._forward_pre_hooks, part._forward_hooks) if hooks]
    before = [dict(each) for each in hooks]
    taken = [{key for key, hook in each.items() if not _observes(hook)} for each in before]
    for each, keys in zip(hooks, taken, strict=True):
        for key in keys:
            del each[key]
    try:
        yield
    finally:
        for each, original, keys in zip(hooks, before, taken, strict=True):
            remaining = dict(each)
            each.clear()
            each.update({key: hook for key, hook in (original | remaining).items() if key in keys or key in remaining})


def _observes(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("attnscope.capture.")
