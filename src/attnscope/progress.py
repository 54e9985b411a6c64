"""How far long work has come: one report for all functions that take time, and the bar that shows it.

    >>> from attnscope.progress import Step, reporting
    >>> with reporting(print, "starting") as report:
    ...     report(Step(3, 12, "layer 2"))
    3 of 12: layer 2

Every function that takes time has one argument `progress`:

| `progress` | shows |
|---|---|
| `None` | a bar in a terminal or a notebook, nothing anywhere else |
| `True` | a bar; where none can be drawn, a line on standard error every ten seconds |
| `False` | nothing |
| a function | it is called with a `Step` whenever something is finished |

Bars show the time left, and say so while loops are compiled for the machine. Importing this module loads neither rich
nor numba.
"""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from attnscope.errors import InputError, shown

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["OnStep", "Progress", "Step", "reporting"]

COMPILING = "compiling (first use; cached on disk)"
_SECONDS_BETWEEN_LINES = 10.0
_SECONDS_BETWEEN_UPDATES = 0.1  # of a notebook


class Step(NamedTuple):
    """How far work has come: `done` of `total` steps, or of an unknown number, and what is going on.

    >>> print(attnscope.progress.Step(3, 12, "layer 2"))
    3 of 12: layer 2
    """

    done: int
    total: int | None
    doing: str = ""
    window: int = 0  # where windows of a text are run: which of how many, and the layer that is finished
    windows: int = 1
    layer: int = 0

    def __str__(self) -> str:
        count = f"{self.done:,}" if self.total is None else f"{self.done:,} of {self.total:,}"
        return f"{count}: {self.doing}" if self.doing else count


OnStep = Callable[[Step], None]
"""Takes the steps of some work."""

Progress = bool | OnStep | None
"""The argument `progress` of functions that take time."""


class _Display(Protocol):
    """Shows steps while it is entered; `note` is shown in place of what is going on."""

    def show(self, step: Step, note: str) -> None:
        """Show how far the work has come."""

    def close(self) -> None:
        """Remove what is shown."""


@contextmanager
def reporting(progress: Progress, start: str = "starting") -> Iterator[OnStep]:
    """The function to report steps to, as the argument `progress` asks for.

    >>> with attnscope.progress.reporting(print) as report:
    ...     report(attnscope.progress.Step(3, 12, "layer 2"))
    3 of 12: layer 2

    Parameters
    ----------
    progress
        None, True, False or a function: see the table above.
    start
        Shown until the first step.

    Yields
    ------
    OnStep
        Takes each step.
    """
    if callable(progress):
        yield progress
        return
    if progress not in (None, True, False):
        raise InputError(f"progress takes True, False, None or a function of a Step; received {shown(progress)}")
    display = None if progress is False else _display(forced=bool(progress))
    if display is None:
        yield lambda step: None
        return
    latest, compiling = Step(0, None, start), False

    def show(step: Step) -> None:
        nonlocal latest
        latest = step
        display.show(step, COMPILING if compiling else step.doing)

    def compile_event(now: bool) -> None:
        nonlocal compiling
        compiling = now
        show(latest)

    with ExitStack() as stack:
        stack.callback(display.close)
        stack.enter_context(watch_compiling(compile_event))
        show(latest)
        yield show


@contextmanager
def watch_compiling(report: Callable[[bool], None]) -> Iterator[None]:
    """Call the function with True when a loop begins to be compiled and False when it is; loops from the cache are not.

    Loops are compiled only after numba was imported: until then there is nothing to watch.
    """
    if "numba" not in sys.modules:
        yield
        return
    from numba.core import event

    class Listener(event.Listener):
        """Functions that a loop calls are compiled inside its own compilation."""

        depth = 0

        def on_start(self, event: Any) -> None:
            self.depth += 1
            if self.depth == 1:
                report(True)

        def on_end(self, event: Any) -> None:
            self.depth -= 1
            if self.depth == 0:
                report(False)

    with event.install_listener("numba:compile", Listener()):
        yield


def _display(forced: bool) -> _Display | None:
    """The bar that fits where the process runs; None for nowhere, lines if a bar was forced."""
    if in_notebook():
        return _NotebookBar()
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_terminal:
        return _TerminalBar(console)
    return _Lines() if forced else None


def in_notebook() -> bool:
    """Whether the code runs in a notebook (Jupyter, Colab) and can display there."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and type(shell).__name__ in ("ZMQInteractiveShell", "Shell")


class _TerminalBar:
    """A bar of rich on standard error, with the time left; it is removed at the end."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        # What changes its length comes last: the bar must not move. The time left is not that of rich, which forgets
        # steps of more than half a minute.
        self._bar = Progress(
            BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), console=console, transient=True
        )
        self._clock, self._note = _Clock(), ""
        self._total: int | None = None
        self._task = self._bar.add_task("", total=None)
        self._bar.start()

    def show(self, step: Step, note: str) -> None:
        left = self._clock.left(step)
        if step.total is None and self._total is not None:  # rich keeps the total of a task
            self._bar.remove_task(self._task)
            self._task = self._bar.add_task("", total=None)
        self._total = step.total
        new = self._note != note and (not step.done or note == COMPILING)
        self._note = note
        words = ", ".join(part for part in (left, note) if part)
        # Steps may come faster than they can be drawn; what may stand for long is drawn at once.
        self._bar.update(self._task, completed=step.done, total=step.total, description=words, refresh=new)

    def close(self) -> None:
        self._bar.stop()


class _Clock:
    """The time that work of several parts will still take, as far as it can be known."""

    def __init__(self) -> None:
        self._latest = Step(0, None)
        self._started = self._seen = time.monotonic()  # when this work began, and the time of the latest step
        self._first = 0  # how much was done then

    def left(self, step: Step) -> str:
        """In words; nothing if it is not known."""
        now = time.monotonic()
        if step.done < self._latest.done or step.total != self._latest.total:  # other work: its speed is its own
            self._started = self._seen if step.done else now
            self._first = min(step.done, self._latest.done)
        self._latest, self._seen = step, now
        done = step.done - self._first
        if not step.total or not done or step.done >= step.total:
            return ""
        seconds = (now - self._started) * (step.total - step.done) / done
        return f"{seconds:.0f} s left" if seconds < 100 else f"{seconds / 60:.0f} min left"


class _NotebookBar:
    """A bar in the output of a notebook's cell; it is removed at the end."""

    def __init__(self) -> None:
        from IPython.display import HTML, display

        self._html, self._clock, self._last = HTML, _Clock(), 0.0
        self._handle = display(HTML(""), display_id=True)

    def show(self, step: Step, note: str) -> None:
        left = self._clock.left(step)
        ended = step.total is not None and step.done >= step.total
        if time.monotonic() - self._last < _SECONDS_BETWEEN_UPDATES and not ended and note != COMPILING:
            return
        self._last = time.monotonic()
        value = "" if step.total is None else f' value="{step.done}" max="{step.total}"'
        words = ", ".join(part for part in (str(step._replace(doing=note)), left) if part)
        self._handle.update(self._html(f"<progress{value}></progress> {html.escape(words)}"))

    def close(self) -> None:
        self._handle.update(self._html(""))


class _Lines:
    """A line on standard error now and then, for logs."""

    def __init__(self) -> None:
        self._clock, self._last = _Clock(), -_SECONDS_BETWEEN_LINES

    def show(self, step: Step, note: str) -> None:
        left = self._clock.left(step)
        if time.monotonic() - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = time.monotonic()
            words = ", ".join(part for part in (str(step._replace(doing=note)), left) if part)
            print(f"attnscope: {words}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Lines stay."""
