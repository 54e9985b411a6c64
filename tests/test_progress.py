"""One argument `progress` for all functions: who is told what, and where a bar is drawn."""

from __future__ import annotations

import inspect
import io
import re
import sys
import types
from typing import Any

import pytest
from models import build
from rich.console import Console

import attnscope
from attnscope import progress
from attnscope.errors import InputError
from attnscope.progress import COMPILING, Step, _TerminalBar, reporting
from attnscope.studies.audit import audit
from attnscope.studies.audit.referee import CLAIMS
from attnscope.studies.budget.running import budget
from attnscope.studies.compare.comparing import compare
from attnscope.studies.compare.guidelines import guidelines
from attnscope.studies.paper.reproduction import reproduce

LONG = [attnscope.scan, attnscope.diagnose, compare, budget, guidelines, reproduce, audit]


@pytest.mark.parametrize("function", LONG, ids=lambda function: function.__name__)
def test_every_long_function_has_the_same_argument(function: Any) -> None:
    parameter = inspect.signature(function).parameters["progress"]
    assert (parameter.annotation, parameter.default) == ("Progress", None)


def test_a_function_is_called_with_steps_that_end_at_their_total(tokenizer: Any, text: str) -> None:
    model = build("gpt2")
    calls: dict[str, Any] = {
        "scan": lambda told: attnscope.scan(model, text, tokenizer=tokenizer, length=17, top_n=[3], progress=told),
        "diagnose": lambda told: attnscope.diagnose(model, text, tokenizer=tokenizer, length=17, progress=told),
        "compare": lambda told: compare(
            model, text, ["sparsemax"], tokenizer=tokenizer, lengths=[17], top_n=3, progress=told
        ),
        "audit": lambda told: audit(CLAIMS[:2], progress=told),
    }
    for name, call in calls.items():
        steps: list[Step] = []
        call(steps.append)
        assert all(isinstance(step, Step) and step.doing for step in steps), name
        totals = {step.total for step in steps}
        assert len(totals) == 1, name
        # Layers are reported when they are finished, other work when it begins.
        assert [step.done for step in steps] == sorted({step.done for step in steps}), name
        assert steps[-1].done in {steps[-1].total, (steps[-1].total or 0) - 1}, name


def test_a_step_reads_as_a_sentence() -> None:
    assert str(Step(3, 1200, "layer 2")) == "3 of 1,200: layer 2"
    assert str(Step(3, None)) == "3"


def test_nothing_is_shown_where_standard_error_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    for off in (None, False):
        with reporting(off) as report:
            report(Step(1, 2, "layer 0"))
    assert capsys.readouterr() == ("", "")


def test_true_prints_lines_where_no_bar_can_be_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    with reporting(True, "loading") as report:
        report(Step(1, 2, "layer 0"))  # within ten seconds of the line before
    assert capsys.readouterr().err == "attnscope: 0: loading\n"


def test_other_values_are_refused() -> None:
    wrong: Any = "yes"
    with pytest.raises(InputError, match="progress takes True, False, None or a function of a Step; received 'yes'"):
        reporting(wrong).__enter__()


def test_a_terminal_has_a_bar_with_the_time_left_that_says_when_loops_are_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from numba.core import event

    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80, legacy_windows=False)
    monkeypatch.setattr("rich.console.Console", lambda **_: console)
    with reporting(None, "loading the model") as report:
        report(Step(1, 4, "layer 0"))
        event.start_event("numba:compile")
        event.end_event("numba:compile")
        report(Step(4, 4, "layer 3"))
    shown = screen.getvalue()
    assert "loading the model" in shown
    assert COMPILING in shown
    assert "4/4" in shown


def test_the_time_left_is_known_however_long_a_step_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("attnscope.progress.time.monotonic", lambda: now[0])
    screen = io.StringIO()
    bar = _TerminalBar(Console(file=screen, force_terminal=True, width=80, legacy_windows=False))
    measuring = [(40, Step(1, 4, "layer 1")), (90, Step(2, 4, "layer 2")), (180, Step(3, 4, "layer 3"))]
    drawing = [(190, Step(0, None, "judging")), (200, Step(0, 3, "drawing")), (212, Step(1, 3, "drawing"))]
    for now[0], step in (*measuring, *drawing):
        bar.show(step, step.doing)
        bar._bar.refresh()
    bar.close()
    shown = screen.getvalue()
    expected = ("1/4 2 min left, layer 1", "2/4 90 s left, layer 2", "3/4 60 s left, layer 3")
    for words in (*expected, "0/? judging", "0/3 drawing", "1/3 24 s left, drawing"):
        assert words in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)


def test_a_notebook_has_a_bar_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    fake, display = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    shell = type("ZMQInteractiveShell", (), {})()
    handle = types.SimpleNamespace(update=lambda html: shown.append(html))
    fake.get_ipython = lambda: shell  # type: ignore[attr-defined]
    display.HTML = str  # type: ignore[attr-defined]
    display.display = lambda html, display_id: handle  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", fake)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    assert progress.in_notebook()
    with reporting(None, "loading <the model>") as report:
        report(Step(2, 2, "layer 1"))
    assert shown == [
        "<progress></progress> 0: loading &lt;the model&gt;",
        '<progress value="2" max="2"></progress> 2 of 2: layer 1',
        "",
    ]
