"""Numbers on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter, Token

from attnscope.errors import InputError, shown


def whole_numbers(option: str, value: str) -> list[int]:
    """The integers of a comma-separated list; InputError naming `option` if it is malformed."""
    try:
        return [int(part) for part in value.split(",")]
    except ValueError:
        raise InputError(
            f"{option} takes whole numbers separated by commas, e.g. 1,5,20; received {shown(value)}"
        ) from None


def decimals(option: str, value: str) -> list[float]:
    """The floats of a comma-separated list; InputError naming `option` if it is malformed."""
    try:
        return [float(part) for part in value.split(",")]
    except ValueError:
        raise InputError(f"{option} takes numbers separated by commas, e.g. 0.5,2; received {shown(value)}") from None


def optional_numbers(option: str, value: str | None) -> list[int] | None:
    """The integers of a comma-separated list, or None if the option was not given."""
    return None if value is None else whole_numbers(option, value)


def _whole_number(_: Any, tokens: Sequence[Token]) -> int:
    (token,) = tokens
    try:
        return int(token.value)
    except ValueError:
        raise InputError(f"{token.keyword} takes a whole number; received {shown(token.value)}") from None


# cyclopts by itself rounds 64.7 to 65.
WholeNumber = Annotated[int, Parameter(converter=_whole_number)]
