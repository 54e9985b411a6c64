"""The plan of a run as plain data: the inputs of every window, and the rows to measure in each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnscope.capture.windows import special_tokens
from attnscope.errors import InputError
from attnscope.parameters import parameter

if TYPE_CHECKING:
    from attnscope.capture.models import Model, ModelFacts

Positions = dict[int, tuple[int, ...]]
"""Positions of the queries to measure, by the length of the prefix they represent."""


@dataclass(frozen=True)
class Forward:
    """One input of the model and the rows to measure."""

    tokens: list[int]
    positions: Positions
    first_position: int | None = None  # of the tokens; None: as the model counts
    beside: tuple[list[int], ...] = ()  # other inputs of the same length, which run in the same batch


@dataclass(frozen=True)
class Window:
    """The forward passes of one window, the longest last."""

    number: int
    forwards: list[Forward]


@dataclass(frozen=True)
class WindowPlan:
    """How the tokens of a window become forward passes.

    In a causal model one forward pass serves all lengths. In an encoder every token sees every other, so each length
    needs its own, with the special tokens `before` and `after` it.
    """

    positions: Positions  # rows to measure of each length, the longest last
    causal: bool
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    @property
    def forwards(self) -> int:
        """Forward passes for each window."""
        return 1 if self.causal else len(self.positions)

    @property
    def rows(self) -> int:
        """Rows measured of each head and window."""
        return sum(map(len, self.positions.values()))

    def window(self, number: int, tokens: Sequence[int]) -> Window:
        """The forward passes of the window with these tokens."""
        if self.causal:
            return Window(number, [Forward(list(tokens), self.positions)])
        extra = len(self.before) + len(self.after)
        return Window(
            number,
            [
                Forward([*self.before, *tokens[: length - extra], *self.after], {length: positions})
                for length, positions in self.positions.items()
            ],
        )


def plan_windows(
    model: Model | ModelFacts, lengths: Sequence[int], rows: Callable[[int], tuple[int, ...]]
) -> WindowPlan:
    """The plan that gives the rows `rows(length)` of every prefix of a window, special tokens included."""
    wanted = {length: rows(length) for length in lengths}
    if model.causal:
        return WindowPlan(wanted, causal=True)
    before, after = special_tokens(model.tokenizer)
    extra = len(before) + len(after)
    if lengths[0] <= extra:
        raise InputError(f"{parameter('lengths', lengths[0])} leaves no room for the {extra} special tokens")
    return WindowPlan(wanted, False, tuple(before), tuple(after))
