"""The command line: `attnscope COMMAND [MODEL] [options]`. One file per command.

Requirements of the design:

- typed functions are the interface; each command imports what it needs when it runs, so that
  `attnscope --help` loads neither torch nor transformers;
- this file imports nothing heavy: Ctrl-C is answered from the start;
- with `--json`, standard output carries one machine-readable object and nothing else; everything meant for
  people goes to standard error;
- exit codes: 0 done, 1 a check found the failure it was asked to look for, 2 bad usage or input (or no place for the
  output), 3 partial result, 130 interrupted, 141 the reader of the output has gone.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import textwrap
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from attnscope.cli.interrupts import INTERRUPTED, handle_interrupts, ignore_interrupts
from attnscope.errors import AttnscopeError, InputError, shown, written_as

if TYPE_CHECKING:
    from cyclopts import App

BAD_USAGE, CLOSED_PIPE = 2, 141  # the latter is what shells report for a command that SIGPIPE ended
_LONGEST = 500  # characters of a message about usage


def main() -> None:
    """Run the command line and exit with its code."""
    handle_interrupts()
    _open_closed_streams()
    # torch's idle OpenMP threads would spin on the cores that measuring uses; read when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    code = run(sys.argv[1:])
    ignore_interrupts()
    try:
        sys.stdout.flush()
    except OSError:  # `run` has said so; the interpreter would try once more, and print a traceback
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _open_closed_streams() -> None:
    """Have standard streams that were closed read and write nothing; else the next file would take their number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a path may have bytes that are no text
            stream.reconfigure(errors="backslashreplace")


def run(arguments: list[str], app: App | None = None, name: str = "attnscope") -> int:
    """Run one command and return its exit code; errors meant for the user are one line on standard error.

    The commands are those of `attnscope`, or of another app, which is then named in messages.
    """
    try:
        code, message = _answer(arguments, app or _commands(), name)
    except KeyboardInterrupt:
        code, message = INTERRUPTED, "interrupted"
    if message:
        with suppress(OSError):  # a closed pipe or a full disk: the exit code says it all the same
            print(_wrapped(f"{name}: {message}"), file=sys.stderr)
    return code


def _wrapped(message: str) -> str:
    """The message as one line, or in a terminal on lines that break between words."""
    if not sys.stderr.isatty():
        return message
    width = shutil.get_terminal_size().columns
    return textwrap.fill(message, width, break_long_words=False, break_on_hyphens=False)


def _commands() -> App:
    from attnscope.cli.app import app

    return app


def _answer(arguments: list[str], app: App, name: str) -> tuple[int, str]:
    """The exit code of a command, and what to say if it is not the command's own."""
    from cyclopts import CycloptsError

    try:
        with written_as("options"):
            code = app(arguments, exit_on_error=False, print_error=False, result_action="return_value") or 0
        sys.stdout.flush()
    except AttnscopeError as error:
        return error.exit_code, str(error)
    except CycloptsError as error:
        if isinstance(error.__cause__, InputError):  # of an option's converter
            return BAD_USAGE, str(error.__cause__)
        command = f" {arguments[0]}" if arguments[:1] and arguments[0] in set(app) else ""
        return BAD_USAGE, f"{' '.join(str(error).split())[:_LONGEST]} See {name}{command} --help."
    except BrokenPipeError:  # the reader of the output has ended, e.g. head
        return CLOSED_PIPE, ""
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # rich's answer to it
            return CLOSED_PIPE, ""
        raise
    except OSError as error:
        what = "standard output" if error.filename is None else shown(error.filename)
        return BAD_USAGE, f"cannot use {what}: {error.strerror or error}"
    except MemoryError:
        return BAD_USAGE, "out of memory; use a shorter --length, fewer rows or a smaller model"
    return code, ""
