"""Types of the benchmarks' options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter, Token

from attnscope.cli.numbers import whole_numbers
from attnscope.progress import Progress


def _words(_: Any, tokens: Sequence[Token]) -> tuple[str, ...]:
    return tuple(word for token in tokens for word in token.value.split(","))


def _numbers(_: Any, tokens: Sequence[Token]) -> tuple[int, ...]:
    return tuple(number for token in tokens for number in whole_numbers(token.keyword or "", token.value))


Words = Annotated[Sequence[str], Parameter(converter=_words, negative="")]
WholeNumbers = Annotated[Sequence[int], Parameter(converter=_numbers, negative="")]
Only = Annotated[Sequence[str] | None, Parameter(name="--only", converter=_words, negative="")]
Hidden = Annotated[Progress, Parameter(parse=False)]
