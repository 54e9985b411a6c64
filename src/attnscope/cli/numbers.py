"""Lists of whole numbers on the command line."""

from __future__ import annotations

from attnscope.errors import InputError


def whole_numbers(option: str, value: str) -> list[int]:
    """The whole numbers of a comma-separated list."""
    try:
        return [int(part) for part in value.split(",")]
    except ValueError:
        raise InputError(f"{option} takes whole numbers separated by commas, as 1,5,20; received {value!r}") from None
