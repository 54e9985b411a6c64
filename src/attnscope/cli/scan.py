"""`attnscope scan`: measure every head of a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from attnscope.options import (
    DIAGNOSIS,
    CorpusOption,
    FieldOption,
    JsonOption,
    ModelOption,
    OutOption,
    Spreading,
    VerboseOption,
    Workers,
    arguments,
)
from attnscope.scanning.options import ScanOptions

if TYPE_CHECKING:
    from attnscope.scanning import ScanResult

_TABLES = ("rows.parquet", "topn.parquet", "weights.parquet", "patterns.parquet", "parts")
_FILES = ("report.html", "findings.json", *_TABLES, "tokens.json", "run.json")


def scan(
    model: ModelOption = None,
    /,
    *,
    text: CorpusOption = None,
    field: FieldOption = "text",
    options: ScanOptions = ScanOptions(),
    threshold: Annotated[list[str] | None, Parameter(negative="", group=DIAGNOSIS)] = None,
    out: OutOption = None,
    verbose: VerboseOption = False,
    json: JsonOption = False,
    loading: Spreading = Spreading(),
    workers: Workers = Workers(),
) -> int:
    """Measure every attention head of a model; with --diagnose, say which heads matter most, why, and what to do.

    Prints a summary and writes tables, a record of the run, and report.html: one page with the map of all heads and
    each head in detail.

    For example:

    - `attnscope scan --diagnose`
    - `attnscope scan openai-community/gpt2 --text book.txt --windows 4`
    - `attnscope scan model.gguf --text book.txt --verify --out runs/mine`
    - `attnscope scan model.gguf --length 2048 --top-n 5,50 --vectors output`
    - `attnscope scan --rows 64 --normalizer sparsemax,entmax:alpha=1.3`
    - `attnscope scan --bounds paper --verbose`
    - `attnscope scan model.gguf --text 'books/*.txt' --windows 1000 --workers 2`
    - `attnscope scan MODEL --text s3://bucket/*.parquet --windows 10000 --ray auto`

    Parameters
    ----------
    threshold
        Change a limit of the diagnosis, e.g. local=0.2; may be given several times. One of sink_bound, constant, local,
        broad, near_keys, top_share, off_weight, over_sharp_weight, enough, budget, separability_n, coverage,
        least_top_keys and held_ratio.
    out
        Folder for the results. Default: runs/MODEL-DATE-TIME. To resume an interrupted run of several windows, repeat
        the command with its folder.
    """
    from attnscope.capture.checkpoints import require_model

    require_model(model, loading.revision)
    from attnscope.capture.documents import read_source
    from attnscope.capture.text import Text
    from attnscope.diagnosis.states import Thresholds
    from attnscope.scanning import scan as scan_model
    from attnscope.show.command import answer, dated_folder, running

    content = read_source(text, field)
    limits = Thresholds.parse(threshold) if threshold else None
    folder = out or dated_folder(model)
    with running(folder):
        settings = arguments(options, loading, workers)
        result = scan_model(model, content, thresholds=limits, out=folder, **settings)
    files = [name for name in _FILES if (folder / name).exists()]
    again = {"text": text, "field": None if field == "text" else field, "length": options.length}
    again |= {"revision": loading.revision, "device": None if loading.device == "cpu" else loading.device}
    again |= {"dtype": None if loading.dtype == "float32" else loading.dtype}
    return answer(
        lambda console: result.print_summary(console, verbose),
        lambda: _as_json(result, {name: str(folder / name) for name in files}),
        json,
        folder=folder,
        files=files,
        page=folder / "report.html",
        commands=_next_commands(result, model, folder, again, text if isinstance(content, Text) else None),
        skipped_heads=result.skipped_heads,
        run=result.run,
    )


def _next_commands(
    result: ScanResult, model: str | None, folder: Path, options: Mapping[str, object], plain_text: list[str] | None
) -> dict[str, str]:
    """What to type next, with the reason."""
    from attnscope.show.command import command_line

    if result.findings is None and any(layer["kind"] == "cross" for layer in result.run["model"]["heads"]):
        first = command_line("scan", model, **options, normalizer="ssmax,topk:k=64")  # a diagnosis would refuse it
        commands = {first: "What other normalizers would do to the same logits."}
    elif result.findings is None:
        first = command_line("scan", model, **options) + " --diagnose"
        commands = {first: "Which heads matter most, why, and what to do."}
    else:
        step = result.findings["verdict"]["next"]
        commands = {step["command"]: step["why"]}
    if model is None:
        other = command_line("scan", "openai-community/gpt2", "--diagnose")
        commands[other] = "The same for a model of the hub; a folder or a .gguf file works too."
    elif result.run["model"]["class"].endswith(("ForCausalLM", "LMHeadModel")):  # others have no next token
        commands[command_line("compare", model, text=plain_text)] = "What other normalizers do to this model."
    parent = None if str(folder.parent) == "runs" else folder.parent
    commands[command_line("serve", parent)] = "All runs in the browser: open, compare, start new scans."
    return commands


def _as_json(result: ScanResult, files: Mapping[str, str]) -> dict[str, Any]:
    content = {"run": result.run, "files": files, "heads": result.heads.to_dicts()}
    if result.findings is not None:
        content["findings"] = result.findings.content
    return content
