"""Where the errors of an observation go: to the caller, as in a scan, or to a handler, so that training goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

ErrorHandler = Callable[[Exception], None]


@contextmanager
def handled(on_error: ErrorHandler | None) -> Iterator[None]:
    """Pass an exception of this block to the handler; without one it is raised."""
    try:
        yield
    except Exception as error:
        if on_error is None:
            raise
        on_error(error)
