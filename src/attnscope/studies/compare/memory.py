"""Peak memory of tensors while something runs.

Counted from the tensors themselves, so that the number depends neither on what the process used before nor on how the
system's allocator keeps freed memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Live(TorchDispatchMode):
    """Tracks every storage that operations allocate, until it is freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0
        self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {_address(t) for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and _address(tensor) not in known | self._seen:
                self._follow(tensor.untyped_storage())
        return result

    def _follow(self, storage: Any) -> None:
        address, size = storage._cdata, storage.nbytes()
        self._seen.add(address)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._freed, address, size)

    def _freed(self, address: int, size: int) -> None:
        self._seen.discard(address)
        self.now -= size


def _address(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def peak_bytes(work: Callable[[], object]) -> int:
    """The largest number of bytes in tensors allocated by `work` that were alive at one time."""
    with _Live() as live:
        work()
    return live.peak
