"""Comma-separated lists of numbers on the command line."""

from __future__ import annotations

from attnscope.errors import InputError


def whole_numbers(option: str, value: str) -> list[int]:
    """The integers of a comma-separated list; InputError naming `option` if it is malformed."""
    try:
        return [int(part) for part in value.split(",")]
    except ValueError:
        raise InputError(f"{option} takes whole numbers separated by commas, e.g. 1,5,20; received {value!r}") from None


def decimals(option: str, value: str) -> list[float]:
    """The floats of a comma-separated list; InputError naming `option` if it is malformed."""
    try:
        return [float(part) for part in value.split(",")]
    except ValueError:
        raise InputError(f"{option} takes numbers separated by commas, e.g. 0.5,2; received {value!r}") from None


def optional_numbers(option: str, value: str | None) -> list[int] | None:
    """The integers of a comma-separated list, or None if the option was not given."""
    return None if value is None else whole_numbers(option, value)
