"""`attnscope reproduce`: do the paper's claims hold on my model?"""

from __future__ import annotations

import json as json_module
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

if TYPE_CHECKING:
    from rich.console import Console

    from attnscope.experiments.reproduction import Reproduction

PARTIAL = 3


def reproduce(
    model: str | None = None,
    /,
    *,
    text: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    length: int | None = None,
    windows: int = 8,
    rows: int = 1,
    vectors: str = "value",
    draws: int = 99,
    seed: int = 0,
    bos: Annotated[bool, Parameter(negative="")] = False,
    out: Path | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
    device: str = "cpu",
    dtype: Literal["auto", "float32", "float16", "bfloat16", "float64"] = "float32",
    revision: str | None = None,
    trust_remote_code: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Run the paper's experiments on a model, draw its figures, and answer its claims.

    Writes figures (SVG, PNG and their data), tables, claims.json and claims.md, with and without the first key, and
    prints one line a claim. A second run with the same settings draws from the tables in seconds.

    Examples:

        attnscope reproduce

        attnscope reproduce openai-community/gpt2 --text corpus:war-and-peace

        attnscope reproduce model.gguf --text book.txt --vectors value,output,hidden --out runs/mine

    Parameters
    ----------
    model
        A hub id, a folder, a .gguf file, or nothing for the embedded sample model.
    text
        A UTF-8 text file (the header of a Project Gutenberg book is left out), corpus:war-and-peace (fetched once and
        kept), or - for standard input. Default: the embedded sample text.
    length
        The longest length, and tokens in a window. Default: 1024, or the model's limit if that is less.
    windows
        How many consecutive windows of the text; every figure shows the spread over them.
    rows
        How many last rows of each length, each a sample of its own.
    vectors
        value, output or hidden, or several of them with commas.
    draws
        Random sets of each size for the expectation.
    seed
        Seed of the random sets and directions.
    bos
        Put the model's begin token before each window.
    out
        Folder for the results. Default: runs/reproduce-MODEL.
    json
        Print one JSON object on standard output and nothing else.
    device
        Where the model runs, as cpu or cuda:0.
    dtype
        Number type of the model's weights; measures are always taken in float64.
    revision
        Branch, tag or commit of a hub model.
    trust_remote_code
        Run the Python code that comes with a model. It can do whatever you can: read it first.
    """
    from rich.console import Console

    from attnscope.experiments.reproduction import reproduce as run_experiments

    with _progress() as progress:
        result = run_experiments(
            model,
            text,
            out=out or _default_folder(model),
            length=length,
            windows=windows,
            rows=rows,
            vectors=tuple(kind.strip() for kind in vectors.split(",")),
            draws=draws,
            seed=seed,
            bos=bos,
            device=device,
            dtype=dtype,
            revision=revision,
            trust_remote_code=trust_remote_code,
            progress=progress,
        )
    if json:
        print(json_module.dumps(_as_json(result), allow_nan=False))
    else:
        _print_claims(Console(highlight=False), result)
    for head in result.skipped_heads:
        print(f"attnscope: layer {head['layer']} head {head['head']} left out: {head['reason']}", file=sys.stderr)
    return PARTIAL if result.skipped_heads else 0


def _default_folder(model: str | None) -> Path:
    name = re.sub(r"[^\w.-]+", "-", Path(model).name if model else "sample")
    return Path("runs") / f"reproduce-{name}"


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error with the time left."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("layers"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda done, total: bar.update(
            task, description="drawing" if done == total else "measuring", completed=done, total=total
        )


def _print_claims(console: Console, result: Reproduction) -> None:
    from rich.table import Table

    model, text, settings = result.run["model"], result.run["text"], result.run["settings"]
    console.print(
        f"{model['name']}: {model['layers']} layers, {model['heads']} heads; {text['source']}; "
        f"{settings['windows']} windows of {settings['lengths'][-1]:,} tokens\n"
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("claim", "printed", "corrected", "in all"):
        table.add_column(heading)
    style = {"agrees": "green", "disagrees": "red", "depends": "yellow"}
    for claim in result.claims:
        cells = [
            f"[{style[verdict]}]{verdict}[/]" if verdict else "-" for verdict in (claim["printed"], claim["corrected"])
        ]
        on = f" on {', '.join(claim['depends_on'])}" if claim["depends_on"] else ""
        table.add_row(claim["id"], *cells, f"{claim['verdict']}{on}")
    console.print(table)
    console.print(
        f"\nfigures  {result.folder / 'figures'}\nclaims   {result.folder / 'claims.json'}, claims.md", soft_wrap=True
    )


def _as_json(result: Reproduction) -> dict[str, Any]:
    return {
        "run": result.run,
        "reused": result.reused,
        "folder": str(result.folder),
        "figures": result.figures,
        "claims": result.claims,
    }
