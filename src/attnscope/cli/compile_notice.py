"""Say once on standard error that loops are being compiled, if that takes more than a moment and no bar says so."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from attnscope.progress import watch_compiling

NOTICE = "attnscope: compiling loops that are used for the first time here (some 20 seconds; cached on disk)"
PATIENCE = 2.0  # seconds of compiling


@contextmanager
def compile_notice(patience: float = PATIENCE) -> Iterator[None]:
    """Print `NOTICE` when compiling has taken `patience` seconds inside the block; loops from the cache take none."""
    spent, since, printed = 0.0, 0.0, False
    timer: threading.Timer | None = None

    def print_notice() -> None:
        nonlocal printed
        printed = True
        print(NOTICE, file=sys.stderr, flush=True)

    def report(compiling: bool) -> None:
        nonlocal spent, since, timer
        if compiling and not printed:
            since = time.perf_counter()
            timer = threading.Timer(max(0.0, patience - spent), print_notice)
            timer.daemon = True
            timer.start()
        elif timer is not None:
            timer.cancel()
            timer = None
            spent += time.perf_counter() - since

    with watch_compiling(report):
        yield
