"""What the commands that run a model share: options, the folder of results, the progress bar, going on later."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

PARTIAL = 3  # exit code: done, but heads were left out

Flag = Annotated[bool, Parameter(negative="")]
ModelOption = Annotated[
    str | None, Parameter(help="A hub id, a folder, a .gguf file, or nothing for the embedded sample model.")
]
TextOption = Annotated[
    str | None,
    Parameter(
        allow_leading_hyphen=True,
        help="A UTF-8 text file (the header of a Project Gutenberg book is left out), corpus:war-and-peace (fetched "
        "once and kept), or - for standard input. Default: the embedded sample text.",
    ),
]
BosOption = Annotated[bool, Parameter(negative="", help="Put the model's begin token before each window.")]
JsonOption = Annotated[bool, Parameter(negative="", help="Print one JSON object on standard output and nothing else.")]
DeviceOption = Annotated[str, Parameter(help="Where the model runs, as cpu or cuda:0.")]
DtypeOption = Annotated[
    Literal["auto", "float32", "float16", "bfloat16", "float64"],
    Parameter(help="Number type of the model's weights; logits are always formed in float64."),
]
RevisionOption = Annotated[str | None, Parameter(help="Branch, tag or commit of a hub model.")]
TrustOption = Annotated[
    bool,
    Parameter(
        negative="", help="Run the Python code that comes with a model. It can do whatever you can: read it first."
    ),
]

Show = Callable[[str, int, int | None], None]
"""Called with what is being done, how much of it is, and how much there is."""


def folder_name(model: str | None) -> str:
    """A model's name as part of a folder's."""
    return re.sub(r"[^\w.-]+", "-", Path(model).name if model else "sample")


def dated_folder(model: str | None) -> Path:
    """Where the results of a run go by default."""
    return Path("runs") / f"{folder_name(model)}-{datetime.now():%Y%m%d-%H%M%S}"


@contextmanager
def progress_bar(start: str, unit: str = "") -> Iterator[Show]:
    """A bar on standard error with the time left."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    words = (TextColumn(unit),) if unit else ()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *words, TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(start, total=None)
        yield lambda doing, done, total: bar.update(task, description=doing, completed=done, total=total)


@contextmanager
def resumable(folder: Path) -> Iterator[None]:
    """Say how to go on when a run of several windows is interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        if (folder / ".parts").is_dir():
            print(
                f"attnscope: the finished windows are kept; the same command with --out {shlex.quote(str(folder))} "
                "goes on from there",
                file=sys.stderr,
            )
        raise


def end(skipped_heads: Sequence[dict[str, Any]]) -> int:
    """Name the heads that were left out; the exit code."""
    for head in skipped_heads:
        print(f"attnscope: layer {head['layer']} head {head['head']} left out: {head['reason']}", file=sys.stderr)
    return PARTIAL if skipped_heads else 0
