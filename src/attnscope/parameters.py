"""How messages write a parameter: as it is given in Python, or as an option of the command line.

    >>> from attnscope.parameters import parameter, written_as
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

from attnscope.errors import shown

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
