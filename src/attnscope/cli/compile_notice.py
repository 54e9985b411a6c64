"""Say on standard error that loops are being compiled, once in a process, when it takes more than a moment.

Numba tells of every compilation as it begins; a loop that comes from the disk is not compiled, however slow the disk.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from numba.core import event

NOTICE = "attnscope: compiling its loops for this machine (about a minute, once; kept on disk)"


class _Notice(event.Listener):
    """Adds up the time spent compiling this package's loops. Numba compiles under a lock: one at a time."""

    def __init__(self, after: float) -> None:
        self.after = after  # seconds of compiling
        self.told = False
        self._depth = 0
        self._spent = 0.0
        self._since = 0.0
        self._timer: threading.Timer | None = None

    def on_start(self, event: Any) -> None:
        """A compilation begins; those of the functions that a loop calls are inside its own."""
        if not event.data["dispatcher"].py_func.__module__.startswith("attnscope."):
            return
        self._depth += 1
        if self._depth == 1 and not self.told:
            self._since = time.perf_counter()
            self._timer = threading.Timer(max(0.0, self.after - self._spent), self._tell)
            self._timer.daemon = True
            self._timer.start()

    def on_end(self, event: Any) -> None:
        """It is done."""
        if not event.data["dispatcher"].py_func.__module__.startswith("attnscope."):
            return
        self._depth -= 1
        if self._depth == 0 and self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._spent += time.perf_counter() - self._since

    def _tell(self) -> None:
        self.told = True
        print(NOTICE, file=sys.stderr, flush=True)


_listener = _Notice(after=2.0)
event.register("numba:compile", _listener)


def announce_after(seconds: float) -> None:
    """Say so once compiling has taken so long in all."""
    _listener.after = seconds
