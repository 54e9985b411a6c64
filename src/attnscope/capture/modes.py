"""Run a model as in use, not as in training, and leave it as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Have a module and all its parts in evaluation mode.

    Parts may be in different modes: each goes back to its own.
    """
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
