"""`attnscope reproduce`: the paper's experiments, figures and claims on any model."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attnscope.cli.numbers import WholeNumber
from attnscope.cli.protocol_table import print_protocol
from attnscope.cli.runs import (
    BosOption,
    DeviceOption,
    DtypeOption,
    Flag,
    JsonOption,
    ModelOption,
    OutOption,
    RevisionOption,
    TextOption,
    TrustOption,
    compiling_announced,
    end,
    resumable,
)

if TYPE_CHECKING:
    from rich.console import Console

    from attnscope.experiments.reproduction import Reproduction

ENOUGH_WINDOWS = 6  # with fewer, no bootstrap interval reaches a coverage of 95%


def reproduce(
    model: ModelOption = None,
    /,
    *,
    text: TextOption = None,
    length: WholeNumber | None = None,
    windows: WholeNumber = 8,
    rows: str = "all",
    vectors: str = "value",
    draws: WholeNumber = 99,
    seed: WholeNumber = 0,
    figure_width: Literal["one-column", "two-column"] = "two-column",
    figure_titles: Flag = False,
    bos: BosOption = False,
    out: OutOption = None,
    json: JsonOption = False,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "float32",
    revision: RevisionOption = None,
    trust_remote_code: TrustOption = False,
) -> int:
    """Run the paper's experiments on a model, draw its figures, and evaluate its claims.

    By default all rows of every head are measured by the paper's own protocol (Algorithms 1 to 5 of its appendix), with
    the keys that a row does not see counted (literal) and left out (visible), beside the last row of each length.

    Writes figures (SVG, PDF, PNG and their data), tables, claims.json and claims.md, with and without the first key,
    and prints one line per claim. A second run with the same settings reuses the tables and takes seconds.

    Examples:

        attnscope reproduce

        attnscope reproduce openai-community/gpt2 --text corpus:war-and-peace

        attnscope reproduce model.gguf --text book.txt --vectors value,hidden,embedding --out runs/mine

        attnscope reproduce --rows last

    Parameters
    ----------
    length
        Tokens in a window, which is the longest length measured. Default: 1024, or the model's limit if that is less.
    windows
        How many consecutive windows of the text to measure; every figure shows the range over them. A verdict needs
        two windows, a 95% interval six.
    rows
        all: all rows by the paper's protocol, and the last row of each length. last, or a number: only so many last
        rows of each length, whose mean counts as the value of the window; much faster.
    vectors
        The vectors that the weights average: value, output, hidden, hidden_unit (hidden scaled to unit length) or
        embedding (of the token, without its position), or several of them separated by commas. Each takes its time.
    draws
        How many random sets of each size to draw for the expectation.
    seed
        Seed of the random sets and directions.
    figure_width
        Width of the figures: one-column for 3.3 inches, two-column for 6.9, in 8 point type.
    figure_titles
        Draw each figure's caption above it. Without it, captions.json has the captions.
    out
        Folder for the results. Default: runs/reproduce-MODEL. To resume an interrupted run, repeat the command with
        the same folder.
    """
    from rich.console import Console

    from attnscope.experiments.reproduction import reproduce as run_experiments
    from attnscope.planning import row_choice
    from attnscope.tables import folder_name

    folder = out or Path("runs") / f"reproduce-{folder_name(model)}"
    with compiling_announced(), resumable(folder):
        result = run_experiments(
            model,
            text,
            out=folder,
            length=length,
            windows=windows,
            rows=row_choice(rows),
            vectors=tuple(kind.strip() for kind in vectors.split(",")),
            draws=draws,
            seed=seed,
            bos=bos,
            figure_width=figure_width,
            figure_titles=figure_titles,
            device=device,
            dtype=dtype,
            revision=revision,
            trust_remote_code=trust_remote_code,
        )
    if json:
        print(json_module.dumps(_as_json(result), allow_nan=False))
    else:
        _print_claims(Console(highlight=False), result)
    return end(result.skipped_heads)


def _print_claims(console: Console, result: Reproduction) -> None:
    from rich.table import Table

    model, text, settings = result.run["model"], result.run["text"], result.run["settings"]
    console.print(
        f"{model['name']}: {model['layers']} layers, {model['heads']} heads; {text['source']}; "
        f"{settings['windows']} windows of {settings['lengths'][-1]:,} tokens\n"
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("claim", "printed", "corrected", "overall"):
        table.add_column(heading)
    style = {"agrees": "green", "disagrees": "red", "depends": "yellow"}
    for claim in result.claims:
        cells = [
            f"[{style[verdict]}]{verdict}[/]" if verdict else "-" for verdict in (claim["printed"], claim["corrected"])
        ]
        on = f" on {', '.join(claim['depends_on'])}" if claim["depends_on"] else ""
        table.add_row(claim["id"], *cells, f"{claim['verdict']}{on}")
    console.print(table)
    if settings["windows"] < ENOUGH_WINDOWS:
        console.print(f"\n{_caution(settings['windows'])}")
    page = ""
    if "protocol" in result.figures:
        console.print()
        print_protocol(console, result.claims)
        page = f"\nprotocol {result.folder / 'protocol.html'}"
    console.print(
        f"\nfigures  {result.folder / 'figures'}\nclaims   {result.folder / 'claims.json'}, claims.md{page}",
        soft_wrap=True,
    )


def _caution(windows: int) -> str:
    """A warning that there are too few windows for the verdicts."""
    from attnscope.experiments.intervals import coverage_at_most

    if windows == 1:
        return "One window gives no interval, so only the claims about every row have a verdict; use --windows 8."
    return (
        f"The intervals of {windows} windows contain the true median in at most {coverage_at_most(windows):.0%} of "
        f"cases, not in 95%; use --windows {ENOUGH_WINDOWS} or more."
    )


def _as_json(result: Reproduction) -> dict[str, Any]:
    return {
        "run": result.run,
        "reused": result.reused,
        "folder": str(result.folder),
        "figures": result.figures,
        "claims": result.claims,
    }
