"""The exceptions that attnscope raises deliberately, and how messages write a parameter.

Every message is one line that says what was received and what to do about it. The command line prints it unchanged
and exits with the exception's `exit_code`.

>>> from attnscope.errors import parameter, written_as
    >>> parameter("top_n", 5)
    'top_n=5'
    >>> with written_as("options"):
    ...     parameter("top_n", 5)
    '--top-n 5'

The command line says once that it writes options; every message and summary then follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

_LONGEST = 200  # characters of a value in a message


class AttnscopeError(Exception):
    """Base class of all exceptions that attnscope raises deliberately."""

    exit_code = 2


class InputError(AttnscopeError, ValueError):
    """An invalid argument, text or option value."""


class ModelError(AttnscopeError):
    """A model that cannot be found, loaded or observed."""


class OutputError(AttnscopeError, OSError):
    """An output folder or file that cannot be written or read."""


def shown(value: object) -> str:
    """A received value as quoted in a message, shortened if it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python does not print integers with more digits
        return "an integer of more than 4,300 digits"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text):,} characters)"


Style = Literal["python", "options"]

_style: Style = "python"

# Options that are not called as the parameter.
_OPTIONS = {"calibration": "calibrate", "temperatures": "temperature", "thresholds": "threshold"}


def parameter(name: str, value: object = None) -> str:
    """A parameter, with the value to give it unless that is None."""
    if _style == "python":
        return name if value is None else f"{name}={shown(value)}"
    option = f"--{_OPTIONS.get(name, name).replace('_', '-')}"
    return option if value is None or value is True else f"{option} {value}"


@contextmanager
def written_as(style: Style) -> Iterator[None]:
    """Write parameters in this style inside the block."""
    global _style
    before, _style = _style, style
    try:
        yield
    finally:
        _style = before
