"""Lists of numbers on the command line."""

from __future__ import annotations

from attnscope.errors import InputError


def whole_numbers(option: str, value: str) -> list[int]:
    """The whole numbers of a comma-separated list."""
    try:
        return [int(part) for part in value.split(",")]
    except ValueError:
        raise InputError(f"{option} takes whole numbers separated by commas, as 1,5,20; received {value!r}") from None


def decimals(option: str, value: str) -> list[float]:
    """The numbers of a comma-separated list."""
    try:
        return [float(part) for part in value.split(",")]
    except ValueError:
        raise InputError(f"{option} takes numbers separated by commas, as 0.5,2; received {value!r}") from None


def optional_numbers(option: str, value: str | None) -> list[int] | None:
    """The same of an option that may be left out."""
    return None if value is None else whole_numbers(option, value)
