"""Memory that each thread keeps for the compiled way.

Pages that a process touches for the first time cost more than the arithmetic on them, so temporaries live in memory
that a thread takes again for the next piece of work, until `release`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from math import prod
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

Kept = TypeVar("Kept")

_kept: dict[int, dict[str, Any]] = {}  # by thread: one that Python has not begun has no storage of its own


def memory() -> dict[str, Any]:
    """What this thread keeps, by name."""
    return _kept.setdefault(threading.get_ident(), {})


def scratch(name: str, shape: tuple[int, ...], dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """An array whose contents mean nothing, in the memory that this thread keeps under a name."""
    size = prod(shape)
    own = memory()
    kept = own.get(name)
    if kept is None or kept.size < size:
        # torch's memory begins at a cache line, unlike numpy's
        kept = own[name] = torch.empty(size * np.dtype(dtype).itemsize, dtype=torch.uint8).numpy().view(dtype)
    array: NDArray[Any] = kept[:size].reshape(shape)
    return array


def held(name: str, key: Hashable, make: Callable[[], Kept]) -> Kept:
    """What this thread keeps under a name, made anew where it was made for another key."""
    own = memory()
    kept = own.get(name)
    if kept is None or kept[0] != key:
        own.pop(name, None)  # should making end halfway, what was kept may be overwritten
        kept = own[name] = (key, make())
    found: Kept = kept[1]
    return found


def release() -> None:
    """Give back what all threads keep; one that is at work keeps its arrays until it is done with them."""
    _kept.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=release)
