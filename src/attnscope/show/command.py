"""What a command prints: its result or one JSON object, what was left out, its files, and what to type next.

A path is never broken.
"""

from __future__ import annotations

import json as json_module
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from attnscope.columns import head_name
from attnscope.progress import watch_compiling
from attnscope.show.blocks import Next
from attnscope.show.terminal import paragraph, write
from attnscope.store.folders import folder_name, without_infinities
from attnscope.store.manifest import UNFINISHED

NAME = "attnscope"
PARTIAL = 3  # exit code of a result without some heads
NOTICE = "attnscope: compiling loops that are used for the first time here (some 20 seconds; cached on disk)"
PATIENCE = 2.0  # seconds of compiling


def dated_folder(model: str | None) -> Path:
    """The default folder for the results of a run: runs/MODEL-DATE-TIME."""
    return Path("runs") / f"{folder_name(model)}-{datetime.now():%Y%m%d-%H%M%S}"


@contextmanager
def running(folder: Path | None = None, unfinished: str = UNFINISHED) -> Iterator[None]:
    """Announce that loops are compiled; when a run that can be resumed is interrupted, print how.

    Nothing is announced where a progress bar says it.
    """
    try:
        if Console(stderr=True).is_terminal:
            yield
        else:
            with compile_notice():
                yield
    except KeyboardInterrupt:
        if folder is not None and (folder / unfinished).is_dir():
            print(
                f"{NAME}: the finished windows are saved; repeat the command with --out {shlex.quote(str(folder))} to "
                "resume",
                file=sys.stderr,
            )
        raise


@contextmanager
def compile_notice(patience: float = PATIENCE) -> Iterator[None]:
    """Print `NOTICE` when compiling has taken `patience` seconds inside the block; loops from the cache take none."""
    spent, since, printed = 0.0, 0.0, False
    timer: threading.Timer | None = None

    def print_notice() -> None:
        nonlocal printed
        printed = True
        print(NOTICE, file=sys.stderr, flush=True)

    def report(compiling: bool) -> None:
        nonlocal spent, since, timer
        if compiling and not printed:
            since = time.perf_counter()
            timer = threading.Timer(max(0.0, patience - spent), print_notice)
            timer.daemon = True
            timer.start()
        elif timer is not None:
            timer.cancel()
            timer = None
            spent += time.perf_counter() - since

    with watch_compiling(report):
        yield


def answer(
    print_result: Callable[[Console], None],
    content: Callable[[], Any],
    json: bool,
    *,
    folder: Path | None = None,
    files: Sequence[str] = (),
    page: Path | None = None,
    commands: Mapping[str, str] | None = None,
    skipped_heads: Sequence[dict[str, Any]] = (),
    run: Mapping[str, Any] | None = None,
) -> int:
    """Print the result and its last lines, or with `json` its content as one object; returns the exit code.

    Parameters
    ----------
    print_result
        Prints the result to a console of rich.
    content
        Gives the object to print with `json`.
    folder, files, page
        What was written, and what to open.
    commands
        What to type next, with the reason.
    skipped_heads, run
        The heads that were left out, and the record of a run over blocks of windows.
    """
    if json:
        print(json_module.dumps(without_infinities(content()), allow_nan=False))
        return exit_code(skipped_heads, run)
    console = Console(highlight=False)
    print_result(console)
    code = exit_code(skipped_heads, run)
    print_closing(console, folder, files, page, commands)
    return code


def exit_code(skipped_heads: Sequence[dict[str, Any]], run: Mapping[str, Any] | None = None) -> int:
    """Print the heads that were left out and the blocks that failed, with the reason; returns the exit code."""
    for head in skipped_heads:
        print(f"{NAME}: {head_name(head['layer'], head['head'])} left out: {head['reason']}", file=sys.stderr)
    failed = (run or {}).get("blocks", {}).get("failed", [])
    for block in failed:
        windows = f"windows {block['first_window']} to {block['last_window']}"
        print(f"{NAME}: block {block['block']} ({windows}) failed: {block['reason']}", file=sys.stderr)
    if failed:
        print(f"{NAME}: repeat the command with the same --out to try them again", file=sys.stderr)
    return PARTIAL if skipped_heads or failed else 0


def print_closing(
    console: Console,
    folder: Path | None = None,
    files: Sequence[str] = (),
    page: Path | None = None,
    commands: Mapping[str, str] | None = None,
) -> None:
    """Print the files in a folder, how to open a page, and commands to type next (`attnscope ...`) with the reason."""
    if files or page is not None or commands:
        console.print()
    if files:
        console.print(Text.assemble(("Files", "bold"), f"  in {folder}:"), soft_wrap=True)
        console.print(paragraph(", ".join(files), 7))
    if page is not None:
        console.print(Text.assemble(("Open", "bold"), f"   {open_command(page)}"), soft_wrap=True)
    next_steps = {
        shlex.join([*shlex.split(program()), *shlex.split(command)[1:]]): why
        for command, why in (commands or {}).items()
    }
    write(console, [Next(command, why) for command, why in next_steps.items()])


def command_line(*parts: object, **options: object) -> str:
    """A command to type: `attnscope`, its parts without those that are None, and the options that are not None.

    An option with a list is repeated for each of its values.
    """
    words = [str(part) for part in parts if part is not None]
    for name, value in options.items():
        values = value if isinstance(value, list) else [] if value is None else [value]
        words += [word for each in values for word in (f"--{name.replace('_', '-')}", str(each))]
    return shlex.join([NAME, *words])


def program() -> str:
    """How to call attnscope here: by its name, by the path that it was called by, or as a module."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return f"python -m {NAME}"
    found = shutil.which(NAME)
    if called.name != NAME or (found is not None and Path(found).resolve() == called.resolve()):
        return NAME
    return shlex.quote(str(called))


def open_command(page: Path) -> str:
    """What opens a page from a shell here; its file:// address where there is no such command."""
    if sys.platform == "win32":
        return f'start "" "{page}"'
    opener = "open" if sys.platform == "darwin" else "xdg-open"
    return f"{opener} {shlex.quote(str(page))}" if shutil.which(opener) else page.absolute().as_uri()
