"""The exceptions that attnscope raises deliberately, how messages write a parameter, and checks of plain arguments.

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

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

LARGEST = 2**31 - 1  # of any count: the tables use 32 bits
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


def plain(value: Any) -> Any:
    """Convert a scalar or an array of NumPy or torch to a Python number or list; return anything else unchanged."""
    return value.tolist() if hasattr(value, "tolist") else value


def whole_number(name: str, value: Any, least: int = 1, most: int = LARGEST) -> int:
    """The value of a parameter as an integer; InputError unless it is a whole number from `least` to `most`."""
    number = plain(value)
    if not isinstance(number, int) or isinstance(number, bool) or not least <= number:
        raise InputError(f"{parameter(name)} takes a whole number from {least} up; received {shown(value)}")
    if number > most:
        raise InputError(f"{parameter(name)} takes a whole number up to {most:,}; received {shown(number)}")
    return number


def listed_names(name: str, given: Any, known: Sequence[str] = ()) -> list[str]:
    """The value of a parameter, one name or several, each once; InputError unless there is one and all are known."""
    listed = [given] if isinstance(given, str) else list(given) if isinstance(given, Iterable) else [given]
    wrong = [one for one in listed if not isinstance(one, str) or (known and one not in known)]
    if wrong or not listed:
        kinds = f"one or several of {', '.join(known)}" if known else "one or several names"
        raise InputError(f"{parameter(name)} takes {kinds}; received {shown(wrong[0]) if wrong else 'none'}")
    return list(dict.fromkeys(listed))
