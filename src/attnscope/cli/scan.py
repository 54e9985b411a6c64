"""`attnscope scan`: measure every head of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from attnscope.columns import VectorKind
from attnscope.options import (
    CORPUS,
    DIAGNOSIS,
    WHAT_IF,
    CorpusOption,
    Decimals,
    FieldOption,
    Flag,
    JsonOption,
    ModelOption,
    OutOption,
    Spreading,
    VerboseOption,
    WholeNumber,
    WholeNumbers,
    Words,
    Workers,
    arguments,
    as_written,
    flag,
)

if TYPE_CHECKING:
    from attnscope.scanning import ScanResult

_TABLES = ("rows.parquet", "topn.parquet", "weights.parquet", "patterns.parquet", "parts")
_FILES = ("report.html", "findings.json", *_TABLES, "tokens.json", "run.json")


@Parameter(name="*")
@dataclass(frozen=True)
class ScanOptions:
    """What `attnscope.scan` measures.

    Parameters
    ----------
    length
        Tokens in a window. Default: 1024, or the model's limit if that is less.
    lengths
        The prefixes whose last row is measured, e.g. 32,128,512. Default: powers of two up to the length. A causal
        model gives all of them in one forward pass; an encoder runs once for each.
    top_n
        Sizes of the top set, e.g. 1,5,20. Default: 1,5,10,20,100 as far as they fit.
    rows
        Which query rows to measure: last (of each length), a number of rows spread evenly over the window, or all.
    vectors
        What the weights average: value vectors, values through the output projection, the layer's input (the
        residual stream, before the norm), the same scaled to length one, or the token's input embedding.
    windows
        How many windows of the text to scan. Numbers are means over them; the page shows the spread. No window spans
        two documents.
    choose
        Which windows: the first ones, some spread evenly over all documents, or some drawn at random. Default: first
        for a text, even for a corpus.
    seed
        Seed of --choose random.
    packed
        Join the documents, with the tokenizer's end token after each, before windows are chosen.
    bos
        Put the model's begin token before each window.
    normalizers
        Normalizers to measure on the same logits as the model's own, e.g. sparsemax,entmax:alpha=1.3.
    temperatures
        Temperatures for the model's own normalizer and those of --normalizer, e.g. 0.5,2.
    memory_budget
        Memory for a block of rows while it is measured, e.g. 512MB or 2GB.
    bounds
        paper: also measure the bounds as the paper prints them, and the proved lower bound on separability. They need
        all pairs of keys; without it their columns are null.
    delta_max_length
        The longest rows in which --bounds paper looks at all pairs of keys: the time grows with the square of the
        length.
    diagnose
        Label every head with the simplest rule that gives nearly the same output, on 4 windows spread over the text
        (or --windows, at least 2), and rank the heads that matter most.
    verify
        Diagnose, then test every label inside the model on 4 other windows: replace the weights of its heads by what
        the label says is enough, and compare the change of the next-token distribution with that for random heads.
        Labels that fail are withdrawn. Takes about 300 forward passes.
    """

    length: WholeNumber | None = None
    lengths: WholeNumbers | None = None
    top_n: WholeNumbers | None = None
    rows: Annotated[int | str, Parameter(converter=as_written)] = "last"
    vectors: VectorKind = "value"
    windows: WholeNumber = 1
    choose: Annotated[Literal["first", "even", "random"] | None, Parameter(group=CORPUS)] = None
    seed: Annotated[WholeNumber, Parameter(group=CORPUS)] = 0
    packed: Annotated[bool, flag(group=CORPUS)] = False
    bos: Flag = False
    normalizers: Annotated[Words, Parameter(name="--normalizer", group=WHAT_IF)] = ()
    temperatures: Annotated[Decimals, Parameter(name="--temperature", group=WHAT_IF)] = ()
    memory_budget: Annotated[int | str, Parameter(converter=as_written)] = "256MB"
    bounds: Literal["paper"] | None = None
    delta_max_length: Annotated[WholeNumber, Parameter(name=["--delta-max-length", "--delta-keys"])] = 8192
    diagnose: Annotated[bool, flag(group=DIAGNOSIS)] = False
    verify: Annotated[bool, flag(group=DIAGNOSIS)] = False


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
