"""Work for all cores.

Between two of our calls torch runs the model on threads of OpenMP, and they wait for the next work actively, on the
cores that we want: threads of our own would have to share these with them. So our work is given to the same threads
wherever torch's OpenMP can be called, and to a pool of our own elsewhere. Either way a piece of work stays on one
thread, in loops that hold no interpreter lock, and what it asks of torch runs on that thread alone, without gradients.

A thread of OpenMP that calls Python is given an interpreter state for the call. It keeps the first one, as making it
takes longer than a short piece of work.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch

_Task = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_pools: dict[int, ThreadPoolExecutor] = {}
_lock = threading.Lock()
_own = threading.local()
_works: dict[int, Callable[[], None]] = {}  # under way on threads of OpenMP
_numbers = itertools.count(1)
_rested = True  # whether OpenMP had no threads at the last fork
_bereft = False  # whether this is a forked child whose OpenMP waits for threads that are gone


def share_out(work: Callable[[Any], None], pieces: Iterable[Any]) -> None:
    """Call `work` on every piece, on as many threads as torch uses; the first error ends all and is raised."""
    if torch.is_grad_enabled():  # a setting of each thread
        with torch.no_grad():
            share_out(work, pieces)
        return
    pieces = list(pieces)
    threads = min(torch.get_num_threads(), len(pieces))
    left = iter(pieces)
    errors: list[BaseException] = []
    caller = threading.get_ident()

    def take() -> None:
        try:
            if threading.get_ident() != caller:
                _join()
            for piece in left:
                if errors:
                    return
                work(piece)
        except BaseException as error:  # must not end a thread that is not ours
            errors.append(error)

    parallel = _openmp()
    if threads <= 1:
        take()
    elif parallel is not None and not _bereft:
        number = next(_numbers)
        _works[number] = take
        try:
            parallel(_begin, number, threads, 0)
            take()  # what is left if an interruption met both threads before they began
        finally:  # an interruption may come when it has just returned
            del _works[number]
    else:
        for result in [_pool(torch.get_num_threads()).submit(take) for _ in range(threads)]:
            result.result()
    if errors:
        raise errors[0]


def _take_part(number: int) -> None:
    _works[number]()


_begin = _Task(_take_part)  # made once: that takes as long as a short piece of work


def _join() -> None:
    """Prepare a thread of OpenMP, the first time it works for us."""
    if not hasattr(_own, "joined"):
        ctypes.pythonapi.PyGILState_Ensure()  # never released: this is what keeps the thread's state
        torch.set_grad_enabled(False)
        _own.joined = True


@cache
def _openmp() -> Any:
    """How torch's OpenMP runs a function on its threads: GOMP_parallel(function, argument, threads, flags); or None."""
    parallel = _symbol("GOMP_parallel")
    if parallel is not None:
        parallel.argtypes, parallel.restype = (_Task, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint), None
    return parallel


def _pool(threads: int) -> ThreadPoolExecutor:
    with _lock:
        if threads not in _pools:
            ready = threading.Barrier(threads + 1)
            pool = ThreadPoolExecutor(threads, "attnscope", _single_threaded)
            for _ in range(threads):  # all must have started before the number is put back
                pool.submit(ready.wait)
            ready.wait()
            torch.set_num_threads(threads)
            _pools[threads] = pool
        return _pools[threads]


def _single_threaded() -> None:
    torch.set_num_threads(1)
    torch.get_num_threads()  # torch takes the number over into this thread when it is asked the first time
    torch.set_grad_enabled(False)
    _own.joined = True


def _symbol(name: str) -> Any:
    """A function of the OpenMP that torch has loaded, or None."""
    if os.name != "posix" or not torch.backends.openmp.is_available():
        return None
    return getattr(ctypes.CDLL(None), name, None)


def _rest() -> None:
    """Have OpenMP end its threads before a fork: a child that believes in them would wait for them for ever."""
    global _rested
    pause = _symbol("omp_pause_resource_all")
    _rested = pause is not None and pause(1) == 0  # softly: settings stay


def _forget() -> None:
    """A forked child has none of its parent's threads, and perhaps a lock held by one of them."""
    global _lock, _bereft
    _pools.clear()
    _lock, _bereft = threading.Lock(), not _rested


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_rest, after_in_child=_forget)
