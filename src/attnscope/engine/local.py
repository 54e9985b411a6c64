"""The engine of this process: one loaded model, one block after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from attnscope.engine.blocks import Block, Failure, Work
from attnscope.progress import Report, Step

if TYPE_CHECKING:
    from attnscope.capture.models import Model, ModelFacts

P = TypeVar("P")
R = TypeVar("R")


@dataclass(frozen=True)
class LocalEngine:
    """Runs blocks on a loaded model."""

    model: Model

    @cached_property
    def facts(self) -> ModelFacts:
        """What a plan needs to know about the model."""
        return self.model.facts

    @property
    def described(self) -> dict[str, Any]:
        """There are no workers."""
        return {}

    def call(self, function: Callable[..., R], *arguments: Any, progress: Report | None = None) -> R:
        """Call `function(model, report, *arguments)`."""
        return function(self.model, progress or (lambda step: None), *arguments)

    def run(
        self, work: Work[P, R], blocks: Iterable[Block], progress: Report | None = None, begin: Step | None = None
    ) -> Iterator[tuple[int, R | Failure]]:
        """Run the blocks in order."""
        for block in blocks:
            try:
                result = work.run(self.model, block, progress, begin)
            except Exception as error:  # the other blocks go on
                yield block.number, Failure(error)
            else:
                yield block.number, result
            if begin is not None:
                steps = self.model.layers * work.plan.forwards
                begin = begin._replace(done=begin.done + steps * len(block.tokens))
