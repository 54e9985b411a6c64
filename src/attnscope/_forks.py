"""What a forked child process can use: the threads of polars and torch exist only in the process that started them.

Work passed to threads that do not exist waits forever. polars has one pool per process, so a child of a process that
used it is refused; torch's operations run without other threads if it is set to use one.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

from attnscope.errors import AttnscopeError

P = ParamSpec("P")
R = TypeVar("R")

_PATIENCE = 10.0  # seconds for work of microseconds

_imported_in = os.getpid()
_used_in: int | None = None


def uses_threads(function: Callable[P, R]) -> Callable[P, R]:
    """Run the function with working threads; raises AttnscopeError immediately if a fork left them in the parent."""

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        with _working_threads():
            return function(*args, **kwargs)

    return checked


@contextmanager
def _working_threads() -> Iterator[None]:
    global _used_in
    _used_in = _used_in or os.getpid()
    if not _is_forked():
        yield
        return
    if _used_in != os.getpid() or not _polars_works():
        raise AttnscopeError(
            "attnscope or polars was used before this process was forked, and their threads were not copied; start "
            "the process with the 'spawn' method, e.g. multiprocessing_context='spawn' of a DataLoader"
        )
    torch = sys.modules.get("torch")
    threads = 1 if torch is None else torch.get_num_threads()
    if torch is None or threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _is_forked() -> bool:
    """Whether this process was forked from one that had imported this module; a fork server has used no threads."""
    if os.getpid() == _imported_in:
        return False
    import multiprocessing

    parent = multiprocessing.parent_process()
    return parent is None or parent.pid == os.getppid()


def _polars_works() -> bool:
    """Whether the threads of polars respond: the parent process may have started them without this package."""
    import polars as pl

    probe = threading.Thread(target=lambda: pl.select(pl.repeat(1, 2)), daemon=True)
    probe.start()
    probe.join(_PATIENCE)
    return not probe.is_alive()
