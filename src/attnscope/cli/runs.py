"""Shared parts of the commands that run a model: options, output folder, resuming, exit code."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter, Token

from attnscope.cli.compile_notice import compile_notice
from attnscope.cli.numbers import WholeNumber
from attnscope.columns import head_name
from attnscope.errors import InputError

PARTIAL = 3  # exit code of a result without some heads


def _folder(_: Any, tokens: Sequence[Token]) -> Path:
    (token,) = tokens
    if not token.value:
        raise InputError("--out takes a folder; received nothing")
    return Path(token.value)


# Panels of --help, in this order after that of the command's own options.
CORPUS = Group("Text", sort_key=1)
DIAGNOSIS = Group("Diagnosis", sort_key=2)
WHAT_IF = Group("What if", sort_key=3)
OUTPUT = Group("Output", sort_key=4)
LOADING = Group("Loading the model", sort_key=5)
WORKERS = Group("Workers", sort_key=6)


def flag(**options: Any) -> Parameter:
    """The declaration of an option without a value."""
    return Parameter(negative="", show_default=False, **options)


Flag = Annotated[bool, flag()]
ModelOption = Annotated[
    str | None, Parameter(help="A hub id, a folder, a .gguf file, or nothing for the embedded sample model.")
]
TextOption = Annotated[
    str | None,
    Parameter(
        allow_leading_hyphen=True,
        help="A UTF-8 text file of up to 64 MiB (the header of a Project Gutenberg book is left out), "
        "corpus:war-and-peace (downloaded once), or - for standard input. Default: the embedded sample text.",
    ),
]
CorpusOption = Annotated[
    list[str] | None,
    Parameter(
        name="--text",
        allow_leading_hyphen=True,
        negative="",
        group=CORPUS,
        help="A UTF-8 text file of up to 64 MiB (the header of a Project Gutenberg book is left out), "
        "corpus:war-and-peace (downloaded once), or - for standard input. Or a corpus: files by pattern "
        "(`'books/*.txt'`), .jsonl, .parquet, compressed files, a folder saved by datasets, addresses such as "
        "`s3://bucket/*.parquet`; may be given several times. Default: the embedded sample text.",
    ),
]
FieldOption = Annotated[
    str, Parameter(group=CORPUS, help="The field of .jsonl lines or column of a table that holds the text.")
]
BosOption = Annotated[bool, flag(help="Put the model's begin token before each window.")]
VerboseOption = Annotated[
    bool,
    flag(name=["--verbose", "-v"], group=OUTPUT, help="Print all tables and notes, not only the most important."),
]
JsonOption = Annotated[bool, flag(group=OUTPUT, help="Print one JSON object on standard output and nothing else.")]
DeviceOption = Annotated[str, Parameter(group=LOADING, help="Where the model runs, e.g. cpu or cuda:0.")]
DtypeOption = Annotated[
    Literal["auto", "float32", "float16", "bfloat16", "float64"],
    Parameter(group=LOADING, help="Number type of the model's weights; logits are always computed in float64."),
]
DeviceMapOption = Annotated[
    str | None,
    Parameter(
        group=LOADING, help="Spread the model over devices, memory and disk, e.g. auto; needs the package accelerate."
    ),
]
RevisionOption = Annotated[str | None, Parameter(group=LOADING, help="Branch, tag or commit of a hub model.")]
TrustOption = Annotated[
    bool,
    flag(
        group=LOADING, help="Run the Python code that comes with a model. It runs with your permissions: read it first."
    ),
]

WorkersOption = Annotated[
    WholeNumber | None,
    Parameter(group=WORKERS, help="Run on so many Ray workers, on this machine unless --ray names a cluster."),
]
RayOption = Annotated[
    str | None,
    Parameter(
        group=WORKERS,
        help="Address of a Ray cluster, as ray.init takes it: auto, HOST:6379 or ray://HOST:10001. Needs the extra "
        "attnscope[ray].",
    ),
]
WorkerCpusOption = Annotated[
    WholeNumber | None, Parameter(group=WORKERS, help="Cores, and threads, of each worker. Default: 1.")
]
WorkerGpusOption = Annotated[
    float | None, Parameter(group=WORKERS, help="GPUs of each worker; a fraction shares one. Default: 0.")
]

OutOption = Annotated[Path | None, Parameter(converter=_folder, group=OUTPUT)]


def require_model(model: str | None, revision: str | None) -> None:
    """Refuse a model that is nowhere before torch is loaded, which takes seconds."""
    if model is not None:
        from attnscope.capture.checkpoints import locate

        locate(model, revision)


def dated_folder(model: str | None) -> Path:
    """The default folder for the results of a run: runs/MODEL-DATE-TIME."""
    from attnscope.store.folders import folder_name

    return Path("runs") / f"{folder_name(model)}-{datetime.now():%Y%m%d-%H%M%S}"


def compiling_announced() -> AbstractContextManager[None]:
    """Announce that loops are compiled where there is no bar to say so (`attnscope.progress`)."""
    from rich.console import Console

    return nullcontext() if Console(stderr=True).is_terminal else compile_notice()


@contextmanager
def resumable(folder: Path) -> Iterator[None]:
    """Print how to resume when a run of several windows is interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        from attnscope.store.manifest import UNFINISHED

        if (folder / UNFINISHED).is_dir():
            print(
                f"attnscope: the finished windows are saved; repeat the command with --out {shlex.quote(str(folder))} "
                "to resume",
                file=sys.stderr,
            )
        raise


def end(skipped_heads: Sequence[dict[str, Any]], run: Mapping[str, Any] | None = None) -> int:
    """Print the heads that were left out and the blocks that failed, with the reason; returns the exit code."""
    for head in skipped_heads:
        print(f"attnscope: {head_name(head['layer'], head['head'])} left out: {head['reason']}", file=sys.stderr)
    failed = (run or {}).get("blocks", {}).get("failed", [])
    for block in failed:
        windows = f"windows {block['first_window']} to {block['last_window']}"
        print(f"attnscope: block {block['block']} ({windows}) failed: {block['reason']}", file=sys.stderr)
    if failed:
        print("attnscope: repeat the command with the same --out to try them again", file=sys.stderr)
    return PARTIAL if skipped_heads or failed else 0
