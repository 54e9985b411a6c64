"""`attnscope reproduce`: the paper's experiments, figures and claims on any model."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attnscope.cli.numbers import WholeNumber
from attnscope.cli.runs import (
    BosOption,
    CorpusOption,
    DeviceMapOption,
    DeviceOption,
    DtypeOption,
    FieldOption,
    Flag,
    JsonOption,
    ModelOption,
    OutOption,
    RayOption,
    RevisionOption,
    TrustOption,
    VerboseOption,
    WorkerCpusOption,
    WorkerGpusOption,
    WorkersOption,
    compiling_announced,
    end,
    resumable,
)

if TYPE_CHECKING:
    from attnscope.studies.paper.reproduction import Reproduction


def reproduce(
    model: ModelOption = None,
    /,
    *,
    text: CorpusOption = None,
    field: FieldOption = "text",
    length: WholeNumber | None = None,
    windows: WholeNumber = 8,
    vectors: str = "value",
    first_key: Literal["kept", "dropped"] = "kept",
    seed: WholeNumber = 0,
    figure_width: Literal["one-column", "two-column"] = "two-column",
    figure_titles: Flag = False,
    bos: BosOption = False,
    out: OutOption = None,
    verbose: VerboseOption = False,
    json: JsonOption = False,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "float32",
    revision: RevisionOption = None,
    device_map: DeviceMapOption = None,
    trust_remote_code: TrustOption = False,
    workers: WorkersOption = None,
    ray: RayOption = None,
    worker_cpus: WorkerCpusOption = None,
    worker_gpus: WorkerGpusOption = None,
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
    out
        Folder for the results. Default: runs/reproduce-MODEL. To resume an interrupted run, repeat the command with
        the same folder.
    """
    from rich.console import Console

    from attnscope.capture.documents import read_source
    from attnscope.cli.closing import command_line, print_closing
    from attnscope.store.folders import folder_name
    from attnscope.studies.paper.reproduction import reproduce as run_experiments

    folder = out or Path("runs") / f"reproduce-{folder_name(model)}"
    with compiling_announced(), resumable(folder):
        result = run_experiments(
            model,
            read_source(text, field),
            out=folder,
            length=length,
            windows=windows,
            vectors=tuple(kind.strip() for kind in vectors.split(",")),
            first_key=first_key,
            seed=seed,
            bos=bos,
            figure_width=figure_width,
            figure_titles=figure_titles,
            device=device,
            dtype=dtype,
            revision=revision,
            device_map=device_map,
            trust_remote_code=trust_remote_code,
            workers=workers,
            ray=ray,
            worker_cpus=worker_cpus,
            worker_gpus=worker_gpus,
        )
    if json:
        print(json_module.dumps(_as_json(result), allow_nan=False))
        return end(result.skipped_heads, result.run)
    console = Console(highlight=False)
    result.print_summary(console, verbose)
    code = end(result.skipped_heads, result.run)
    page = folder / "report.html"
    files = [name for name in ("claims.md", "claims.json", "report.html", "figures") if (folder / name).exists()]
    serve = command_line("serve", None if str(folder.parent) == "runs" else folder.parent)
    commands = {serve: "The claims and figures in the browser."}
    if not verbose and page.is_file():
        again = command_line("reproduce", model, text=text, out=out) + " --verbose"
        commands = {again: "Every reading of every claim; the tables are reused, so this takes seconds."} | commands
    print_closing(console, folder, files, page if page.is_file() else None, commands)
    return code


def _as_json(result: Reproduction) -> dict[str, Any]:
    return {
        "run": result.run,
        "reused": result.reused,
        "folder": str(result.folder),
        "figures": result.figures,
        "claims": result.claims,
    }
