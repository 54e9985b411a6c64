"""`attnscope reproduce`: the paper's experiments, figures and claims on any model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter, Token

from attnscope.errors import InputError
from attnscope.options import (
    CorpusOption,
    FieldOption,
    Flag,
    JsonOption,
    ModelOption,
    Names,
    OutOption,
    Spreading,
    VerboseOption,
    WholeNumber,
    Workers,
    arguments,
)


@Parameter(name="*")
@dataclass(frozen=True)
class ReproductionOptions:
    """What `attnscope.reproduce` measures, and how wide its figures are.

    Parameters
    ----------
    length
        Tokens in a window, which is the longest length measured. Default: 1024, or the model's limit if that is less.
    windows
        How many windows to measure, consecutive in a text and spread evenly over a corpus; every figure shows the range
        over them. A verdict needs two windows, a 95% interval six.
    vectors
        The vectors that the weights average: value, output, hidden, hidden_unit (hidden scaled to unit length) or
        embedding (of the token, without its position), or several of them separated by commas. Each
        takes as long as the first.
    first_key
        dropped: measure every row without the first token of the window (the attention sink), by the softmax of its
        other logits.
    seed
        Seed of the random directions and of the subsets of heads.
    figure_width
        Width of the figures: one-column for 3.3 inches, two-column for 6.9, in 8 point type.
    figure_titles
        Draw each figure's caption above it. Without it, captions.json has the captions.
    bos
        Put the model's begin token before each window.
    """

    length: WholeNumber | None = None
    windows: WholeNumber = 8
    vectors: Names = ("value",)
    first_key: Literal["kept", "dropped"] = "kept"
    seed: WholeNumber = 0
    figure_width: Literal["one-column", "two-column"] = "two-column"
    figure_titles: Flag = False
    bos: Flag = False


def _gone(_: Any, tokens: Sequence[Token]) -> str:
    raise InputError(f"{tokens[0].keyword} is gone: all rows are measured")


Gone = Annotated[str | None, Parameter(show=False, converter=_gone)]


def reproduce(
    model: ModelOption = None,
    /,
    *,
    text: CorpusOption = None,
    field: FieldOption = "text",
    options: ReproductionOptions = ReproductionOptions(),
    out: OutOption = None,
    verbose: VerboseOption = False,
    json: JsonOption = False,
    loading: Spreading = Spreading(),
    workers: Workers = Workers(),
    rows: Gone = None,
    draws: Gone = None,
) -> int:
    """Run the paper's experiments on a model, draw its figures, and evaluate its claims.

    All rows of every head are measured by the paper's own protocol (Algorithms 1 to 5 of its appendix), with the keys
    that a row does not see counted (literal) and left out (visible).

    Writes figures (SVG, PDF, PNG and their data), tables, claims.json and claims.md, and prints every claim with its
    number, accepted range and verdict. A second run with the same settings reuses the tables and takes seconds.

    For example:

    - `attnscope reproduce`
    - `attnscope reproduce openai-community/gpt2 --text corpus:war-and-peace`
    - `attnscope reproduce model.gguf --vectors value,hidden,embedding`
    - `attnscope reproduce --length 128 --verbose`
    - `attnscope reproduce model.gguf --text 'books/*.txt' --windows 32 --workers 2`

    Parameters
    ----------
    out
        Folder for the results. Default: runs/reproduce-MODEL. To resume an interrupted run, repeat the command with
        the same folder.
    """
    from attnscope.capture.documents import read_source
    from attnscope.show.command import answer, command_line, running
    from attnscope.store.folders import folder_name
    from attnscope.studies.paper.reproduction import PAGE, reproduce as run_experiments

    folder = out or Path("runs") / f"reproduce-{folder_name(model)}"
    with running(folder):
        source = read_source(text, field)
        result = run_experiments(model, source, out=folder, **arguments(options, loading, workers))
    serve = command_line("serve", None if str(folder.parent) == "runs" else folder.parent)
    commands = {serve: "All runs in the browser."}
    if not verbose:
        readings = command_line("report", folder, "--verbose")
        commands = {readings: "Every reading of every claim; nothing is measured again."} | commands
    content = {
        "run": result.run, "reused": result.reused, "folder": str(result.folder), "figures": result.figures,
        "claims": result.claims,
    }  # fmt: skip
    return answer(
        lambda console: result.print_summary(console, verbose),
        lambda: content,
        json,
        folder=folder,
        files=["claims.md", "claims.json", PAGE, "figures"],
        page=folder / PAGE,
        commands=commands,
        skipped_heads=result.skipped_heads,
        run=result.run,
    )
