"""A model as a trial run needs it, for as long as a block runs: in evaluation mode, without forward hooks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Temporarily switch to eval mode; afterwards each submodule is back in the mode that it was in."""
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
    """Temporarily take all forward hooks off a module and its parts; those added in the block stay."""
    hooks = [hooks for part in module.modules() for hooks in (part._forward_pre_hooks, part._forward_hooks) if hooks]
    taken = [dict(each) for each in hooks]
    for each in hooks:
        each.clear()
    try:
        yield
    finally:
        for each, before in zip(hooks, taken, strict=True):
            added = dict(each)
            each.clear()
            each.update(before | added)
