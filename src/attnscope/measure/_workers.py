"""Threads for the compiled way: each has one core of torch's for itself, and memory that it keeps.

Every piece of work stays on one of our threads, in loops that hold no interpreter lock.

Pages that a process touches for the first time cost more than the arithmetic on them, so temporaries live in memory
that a thread takes again for the next piece, until `release`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

_local = threading.local()
_kept: list[dict[str, Any]] = []
_pools: dict[int, ThreadPoolExecutor] = {}
_lock = threading.Lock()


def share_out(work: Callable[[Any], None], pieces: Iterable[Any]) -> None:
    """Call `work` on every piece, on as many threads as torch uses; the first error is raised."""
    pieces = list(pieces)
    threads = torch.get_num_threads()
    if threads <= 1 or len(pieces) <= 1:
        for piece in pieces:
            work(piece)
        return
    for result in [_pool(threads).submit(_without_gradients, work, piece) for piece in pieces]:
        result.result()


def memory() -> dict[str, Any]:
    """What this thread keeps, by name."""
    kept: dict[str, Any] | None = getattr(_local, "kept", None)
    if kept is None:
        kept = _local.kept = {}
        with _lock:
            _kept.append(kept)
    return kept


def scratch(name: str, shape: tuple[int, ...], dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """An array whose contents mean nothing, in the memory that this thread keeps under a name."""
    size = prod(shape)
    kept = memory().get(name)
    if kept is None or kept.size < size:
        bytes_ = torch.empty(
            size * np.dtype(dtype).itemsize, dtype=torch.uint8
        )  # begins at a cache line, unlike numpy's
        kept = memory()[name] = bytes_.numpy().view(dtype)
    array: NDArray[Any] = kept[:size].reshape(shape)
    return array


def release() -> None:
    """Give back what all threads keep; one that is at work keeps its arrays until it is done with them."""
    with _lock:
        for kept in _kept:
            kept.clear()


def _without_gradients(work: Callable[[Any], None], piece: Any) -> None:
    with torch.no_grad():  # a setting of the calling thread, not inherited
        work(piece)


def _pool(threads: int) -> ThreadPoolExecutor:
    with _lock:
        if threads not in _pools:
            ready = threading.Barrier(threads + 1)
            pool = ThreadPoolExecutor(threads, "attnscope-measure", _single_threaded)
            for _ in range(threads):  # all must have started before the number is put back
                pool.submit(ready.wait)
            ready.wait()
            torch.set_num_threads(threads)
            _pools[threads] = pool
        return _pools[threads]


def _single_threaded() -> None:
    torch.set_num_threads(1)
    torch.get_num_threads()  # torch takes the number over into this thread when it is asked the first time


def _forget() -> None:
    """A forked child has none of its parent's threads, and perhaps a lock held by one of them."""
    global _lock
    _pools.clear()
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
