"""The plan of a run as plain data: the inputs of every window, and the rows to measure in each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnscope.capture.windows import special_tokens
from attnscope.errors import InputError
from attnscope.parameters import parameter

if TYPE_CHECKING:
    from attnscope.capture.models import Model

Positions = dict[int, tuple[int, ...]]
"""Positions of the queries to measure, by the length of the prefix they represent."""


@dataclass(frozen=True)
class Forward:
    """One input of the model and the rows to measure."""

    tokens: list[int]
    positions: Positions


@dataclass(frozen=True)
class Window:
    """The forward passes of one window, the longest last."""

    number: int
    forwards: list[Forward]


def plan_windows(
    model: Model, windows: Sequence[list[int]], lengths: Sequence[int], rows: Callable[[int], tuple[int, ...]]
) -> list[Window]:
    """The forward passes that give the rows `rows(length)` of every prefix of each window, special tokens included.

    In a causal model one forward pass serves all lengths. In an encoder every token sees every other, so each length
    needs its own.
    """
    wanted = {length: rows(length) for length in lengths}
    if model.causal:
        return [Window(number, [Forward(tokens, wanted)]) for number, tokens in enumerate(windows)]
    before, after = special_tokens(model.tokenizer)
    extra = len(before) + len(after)
    if lengths[0] <= extra:
        raise InputError(f"{parameter('lengths', lengths[0])} leaves no room for the {extra} special tokens")
    return [
        Window(
            number,
            [
                Forward([*before, *tokens[: length - extra], *after], {length: positions})
                for length, positions in wanted.items()
            ],
        )
        for number, tokens in enumerate(windows)
    ]
