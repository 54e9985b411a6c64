"""Threads for the compiled way: each has one core of torch's for itself.

The work on a layer alternates between small matrix products and compiled loops. If torch spread each product over
its own threads, those would keep spinning while the loops want the cores; so every piece of work stays on one of
our threads, products included. Loops and products hold no interpreter lock.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

_scratch = threading.local()
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


def product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b^T in memory that the next product on this thread takes again: fresh pages cost as much as multiplying."""
    size = len(a) * len(b)
    kept = getattr(_scratch, str(a.dtype), None)
    if kept is None or kept.numel() < size:
        kept = torch.empty(size, dtype=a.dtype)
        setattr(_scratch, str(a.dtype), kept)
    return torch.mm(a, b.mT, out=kept[:size].view(len(a), len(b)))


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
