"""Say once on standard error that loops are being compiled, if that takes more than a moment."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

NOTICE = "attnscope: compiling its loops for this machine (about 20 seconds, once; cached on disk)"
PATIENCE = 2.0  # seconds of compiling


@contextmanager
def compile_notice(patience: float = PATIENCE) -> Iterator[None]:
    """Print `NOTICE` when compiling has taken `patience` seconds inside the block; loops from the cache take none."""
    from numba.core import event

    class Listener(event.Listener):
        """Adds up the time of compilations; those of functions that a loop calls are inside its own."""

        depth, spent, since, printed = 0, 0.0, 0.0, False
        timer: threading.Timer | None = None

        def on_start(self, event: Any) -> None:
            self.depth += 1
            if self.depth == 1 and not self.printed:
                self.since = time.perf_counter()
                self.timer = threading.Timer(max(0.0, patience - self.spent), self.print_notice)
                self.timer.daemon = True
                self.timer.start()

        def on_end(self, event: Any) -> None:
            self.depth -= 1
            if self.depth == 0 and self.timer is not None:
                self.timer.cancel()
                self.timer = None
                self.spent += time.perf_counter() - self.since

        def print_notice(self) -> None:
            self.printed = True
            print(NOTICE, file=sys.stderr, flush=True)

    with event.install_listener("numba:compile", Listener()):
        yield
