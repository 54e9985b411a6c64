"""Work on all cores: a plain pool of threads, each of which runs torch's operations single-threaded.

The compiled loops release the interpreter lock. A pool belongs to the process that created it: a forked child creates
its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch


def share_out(work: Callable[[Any], None], pieces: Iterable[Any]) -> None:
    """Call `work` on every piece, without gradients, on as many threads as torch uses; raises the first error."""
    pieces = list(pieces)
    threads = min(torch.get_num_threads(), len(pieces))
    if threads <= 1:
        with torch.no_grad():
            for piece in pieces:
                work(piece)
        return
    remaining = iter(pieces)
    errors: list[BaseException] = []

    def take() -> None:
        try:
            for piece in remaining:
                if errors:
                    return
                work(piece)
        except BaseException as error:
            errors.append(error)

    workers = [_pool(os.getpid(), torch.get_num_threads()).submit(take) for _ in range(threads)]
    try:
        for worker in workers:
            worker.result()
    except BaseException as error:  # an interruption of this thread: the others stop after their piece
        errors.append(error)
        for worker in workers:
            worker.result()
    if errors:
        raise errors[0]


@cache
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """The threads of a process, each running torch's operations single-threaded; the caller keeps its thread count."""
    started = threading.Barrier(threads + 1)
    pool = ThreadPoolExecutor(threads, "attnscope", _use_one_thread)
    for _ in range(threads):
        pool.submit(started.wait)
    started.wait()
    torch.set_num_threads(threads)
    return pool


def _use_one_thread() -> None:
    torch.set_num_threads(1)
    torch.get_num_threads()  # torch adopts the number in this thread when it is first queried
    torch.set_grad_enabled(False)
