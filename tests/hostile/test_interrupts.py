"""Ctrl-C while foreign code runs: code 130 and one line, however that code treats exceptions."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from attnscope.cli.interrupts import handle_interrupts

# A module that loses an exception raised while it is imported, as callbacks from C++ do.
CARELESS = """
import os, pathlib, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000):
        pass
except BaseException:
    pass
{rest}
pathlib.Path("imported").touch()
"""
CLAIMS = """
import sys, time
sys.path.insert(0, "")
import careless
time.sleep(20)
open("waited", "w").close()
"""


@pytest.fixture(autouse=True)
def _handler() -> Iterator[None]:
    """Interrupts as in a shell's foreground job, for this process and those that it starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("rest", "imported"),
    [("", True), ("import time; [time.sleep(0.1) for _ in range(100)]", False)],
    ids=["a short import ends first", "a long one is not waited for"],
)
def test_an_interrupt_during_an_import_is_not_lost(rest: str, imported: bool, tmp_path: Path) -> None:
    """Fault 17."""
    (tmp_path / "careless.py").write_text(CARELESS.format(rest=rest))
    (tmp_path / "claims.py").write_text(CLAIMS)
    done = subprocess.run(
        [sys.executable, "-m", "attnscope.cli", "audit", "--own", "claims.py"],
        cwd=tmp_path,
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr, done.stdout) == (130, b"attnscope: interrupted\n", b"")
    assert (tmp_path / "imported").exists() == imported
    assert not (tmp_path / "waited").exists()


LATE = """
import atexit, os, signal, sys
from attnscope.cli import main
atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
sys.argv = ["attnscope", "--version"]
main()
"""


def test_an_interrupt_after_the_end_does_not_change_the_exit_code() -> None:
    """Fault 17."""
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_second_interrupt_is_left_to_the_system() -> None:
    """Fault 17: cleaning up cannot be interrupted into a traceback."""
    handle_interrupts()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL


def test_a_background_job_goes_on_ignoring_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    handle_interrupts()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
