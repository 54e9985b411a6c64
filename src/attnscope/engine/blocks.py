"""Blocks of windows, the unit of work: an engine takes blocks in and gives finished ones out, in any order.

Blocks depend only on the plan, never on how many workers there are: every engine makes the same parts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from attnscope.engine.run import Measurer, run_windows
from attnscope.errors import InputError, parameter, shown, whole_number
from attnscope.progress import OnStep, Step

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from attnscope.capture.models import Model, ModelFacts
    from attnscope.engine.run import WindowPlan

P = TypeVar("P")
R = TypeVar("R")

# Up to so many blocks have one window each: every finished window is kept. Larger runs have larger blocks.
FEW = 64
MOST_WINDOWS = 32  # of a block
MOST_LINES = 250_000  # of a block's largest table, about
# Blocks that may fail before the first one succeeds; then the run is given up.
_TRIED = 3


@dataclass(frozen=True, eq=False)
class Block:
    """Consecutive windows of a run as plain data."""

    number: int
    first: int  # number of its first window
    tokens: NDArray[np.int32]  # (windows, tokens)


class WindowSource(Protocol):
    """The tokens of all windows of a run, of which slices are read: an array, or `capture.tokens.WindowTokens`."""

    def __len__(self) -> int:
        """How many windows."""

    def __getitem__(self, some: slice) -> NDArray[np.int32]:
        """The tokens of some windows, (windows, tokens)."""


@dataclass(frozen=True, eq=False)
class Blocks:
    """The windows of a run in blocks of `size`."""

    windows: WindowSource
    size: int = 1

    def __len__(self) -> int:
        return -(-len(self.windows) // self.size)

    def __getitem__(self, number: int) -> Block:
        span = self.span(number)
        return Block(number, span.start, self.windows[span.start : span.stop])

    def span(self, number: int) -> range:
        return range(number * self.size, min((number + 1) * self.size, len(self.windows)))


def block_size(windows: int, lines: int) -> int:
    """Windows in a block, for a run whose largest table has about so many lines for each window."""
    return max(1, min(MOST_WINDOWS, MOST_LINES // max(1, lines), -(-windows // FEW)))


@dataclass(frozen=True)
class Work(Generic[P, R]):
    """What is done with every block, as plain data: another process can do it with a model of its own."""

    plan: WindowPlan
    measurer: Measurer[Any, P]
    finish: Callable[[list[P]], R]  # makes what is handed back of the parts of a block's windows

    def run(self, model: Model, block: Block, progress: OnStep | None = None, begin: Step | None = None) -> R:
        """The finished block; `begin` as for `run_windows`."""
        windows = (self.plan.window(block.first + i, tokens) for i, tokens in enumerate(block.tokens.tolist()))
        begin = begin or Step(0, len(block.tokens) * model.layers * self.plan.forwards, windows=len(block.tokens))
        return self.finish(list(run_windows(model, windows, self.measurer, progress=progress, begin=begin)))


@dataclass(frozen=True)
class Failure:
    """Why a block could not be finished."""

    error: Exception
    attempts: int = 1

    @property
    def reason(self) -> str:
        text = str(self.error).strip()
        return f"{type(self.error).__name__}: {text.splitlines()[0]}" if text else type(self.error).__name__


class Engine(Protocol):
    """Runs blocks on one or several copies of a model: in this process (`LocalEngine`), or on Ray (`ray_engine.py`)."""

    @property
    def facts(self) -> ModelFacts:
        """What a plan needs to know about the model."""

    @property
    def described(self) -> dict[str, Any]:
        """What `run.json` says about the workers; empty for this process."""

    def call(self, function: Callable[..., R], *arguments: Any, progress: OnStep | None = None) -> R:
        """Call `function(model, report, *arguments)` once, wherever the model is."""

    def run(
        self, work: Work[P, R], blocks: Iterable[Block], progress: OnStep | None = None, begin: Step | None = None
    ) -> Iterator[tuple[int, R | Failure]]:
        """The number and the result of each block, as they are finished. Steps start at `begin`."""


class _StoppedError(BaseException):
    """What a progress function raised: no failure of a block."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


def run_blocks(
    engine: Engine,
    work: Work[P, R],
    blocks: Blocks,
    *,
    finished: Collection[int] = (),
    progress: OnStep | None = None,
) -> Iterator[tuple[int, R | Failure]]:
    """Run all blocks that are not finished already, and yield the number and result of each in any order.

    A block that fails does not end the run, unless it is the only one, or the first ones all fail: then its error is
    raised.
    """
    windows = len(blocks.windows)
    done = sum(len(blocks.span(number)) for number in finished)
    steps = engine.facts.layers * work.plan.forwards
    begin = Step(done * steps, windows * steps, windows=windows)
    detailed = blocks.size > 1 or bool(engine.described)
    clock = _Clock(begin, steps, blocks) if detailed else None

    def report(step: Step) -> None:
        if progress is not None:
            try:
                progress(clock.described(step) if clock else step)
            except Exception as error:
                raise _StoppedError(error) from error

    waiting = (blocks[number] for number in range(len(blocks)) if number not in finished)
    failures: list[Failure] = []
    good = bool(finished)
    try:
        for number, outcome in engine.run(work, waiting, report, begin):
            if isinstance(outcome, Failure):
                failures.append(outcome)
                if not good and len(failures) >= min(_TRIED, len(blocks)):
                    raise failures[0].error
            else:
                good = True
            yield number, outcome
    except _StoppedError as stopped:
        raise stopped.error from None


def run_all(engine: Engine, work: Work[P, R], blocks: Blocks, progress: OnStep | None = None) -> list[R]:
    """The results of all blocks in order; the first failure is raised."""
    found: dict[int, R] = {}
    for number, outcome in run_blocks(engine, work, blocks, progress=progress):
        if isinstance(outcome, Failure):
            raise outcome.error
        found[number] = outcome
    return [found[number] for number in sorted(found)]


class _Clock:
    """Adds blocks and windows per second to what a step says."""

    def __init__(self, begin: Step, steps: int, blocks: Blocks) -> None:
        self._begin, self._steps, self._blocks = begin, steps, blocks
        self._started = time.monotonic()

    def described(self, step: Step) -> Step:
        block = -(-step.done // (self._steps * self._blocks.size))
        words = [f"block {block:,} of {len(self._blocks):,}"]
        windows = (step.done - self._begin.done) / self._steps
        seconds = time.monotonic() - self._started
        if windows >= 1 and seconds > 0:
            words.append(f"{windows / seconds:.2g} windows/s")
        return step._replace(doing=", ".join([*words, step.doing]))


@dataclass(frozen=True)
class LocalEngine:
    """Runs blocks on a loaded model."""

    model: Model

    @cached_property
    def facts(self) -> ModelFacts:
        return self.model.facts

    @property
    def described(self) -> dict[str, Any]:
        """There are no workers."""
        return {}

    def call(self, function: Callable[..., R], *arguments: Any, progress: OnStep | None = None) -> R:
        return function(self.model, progress or (lambda step: None), *arguments)

    def run(
        self, work: Work[P, R], blocks: Iterable[Block], progress: OnStep | None = None, begin: Step | None = None
    ) -> Iterator[tuple[int, R | Failure]]:
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


@dataclass(frozen=True)
class Workers:
    """The workers of a Ray cluster: how many, where, and what each of them owns.

    Attributes
    ----------
    count
        How many; None for as many as the cluster has room for.
    address
        Of the cluster, as `ray.init` takes it; None to start one on this machine.
    cpus, gpus
        Cores (and threads) and devices of each worker.
    """

    count: int | None = None
    address: str | None = None
    cpus: int = 1
    gpus: float = 0

    def __post_init__(self) -> None:
        if self.count is not None:
            whole_number("workers", self.count)
        whole_number("worker_cpus", self.cpus)
        if not isinstance(self.gpus, int | float) or isinstance(self.gpus, bool) or not 0 <= self.gpus < 1024:
            raise InputError(f"{parameter('worker_gpus')} takes a number from 0 up; received {shown(self.gpus)}")
