"""Ctrl-C: one KeyboardInterrupt, and never in the middle of an import.

An exception inside the import of torch can be lost in a callback, abort the process (the C++ around it does not expect
one), or end it by the signal although the command has answered it. So an interrupt waits until the import is done; one
that takes long is that of torch or transformers at the start, when there is nothing to clean up, and is not waited for.
"""

from __future__ import annotations

import _thread
import os
import signal
import time
from contextlib import suppress
from types import FrameType

INTERRUPTED = 130  # what shells report for a command that SIGINT ended
_PATIENCE = 0.5  # seconds to wait for an import
_MOMENT = 0.05  # seconds between two looks
_SHOW_CURSOR = b"\x1b[?25h"  # a progress bar hides it


def handle_interrupts() -> None:
    """Have SIGINT raise KeyboardInterrupt outside imports; where it is ignored, as in a background job, it stays so."""
    if os.name == "posix" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _Handler())


def ignore_interrupts() -> None:
    """Let the exit code of a finished command stand: leaving the process takes a second with torch in it."""
    if isinstance(signal.getsignal(signal.SIGINT), _Handler):  # an interrupted command can be ended at once
        signal.signal(signal.SIGINT, signal.SIG_IGN)


class _Handler:
    """Raises KeyboardInterrupt when no import is under way, and ends the process if that takes too long."""

    since: float | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if not _importing(frame):
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C ends the command at once
            raise KeyboardInterrupt
        self.since = self.since or time.monotonic()
        if time.monotonic() - self.since > _PATIENCE:
            with suppress(OSError):
                os.write(2, (_SHOW_CURSOR if os.isatty(2) else b"") + b"attnscope: interrupted\n")
            os._exit(INTERRUPTED)
        _thread.start_new_thread(_interrupt_again, ())


def _importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _interrupt_again() -> None:
    time.sleep(_MOMENT)
    if isinstance(signal.getsignal(signal.SIGINT), _Handler):  # else it has been raised meanwhile
        os.kill(os.getpid(), signal.SIGINT)  # a signal, so that it also ends a wait
