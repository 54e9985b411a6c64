"""`attnscope scan`: measure every head of a model."""

from __future__ import annotations

import json as json_module
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from attnscope.cli.numbers import WholeNumber, decimals, optional_numbers
from attnscope.cli.runs import (
    CORPUS,
    DIAGNOSIS,
    WHAT_IF,
    BosOption,
    CorpusOption,
    DeviceMapOption,
    DeviceOption,
    DtypeOption,
    FieldOption,
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
    dated_folder,
    end,
    flag,
    require_model,
    resumable,
)
from attnscope.columns import VectorKind

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
    choose: Annotated[Literal["first", "even", "random"] | None, Parameter(group=CORPUS)] = None,
    seed: Annotated[WholeNumber, Parameter(group=CORPUS)] = 0,
    packed: Annotated[bool, flag(group=CORPUS)] = False,
    length: WholeNumber | None = None,
    lengths: str | None = None,
    top_n: str | None = None,
    rows: str = "last",
    vectors: VectorKind = "value",
    windows: WholeNumber = 1,
    bos: BosOption = False,
    normalizer: Annotated[str | None, Parameter(group=WHAT_IF)] = None,
    temperature: Annotated[str | None, Parameter(group=WHAT_IF)] = None,
    memory_budget: str = "256MB",
    bounds: Literal["paper"] | None = None,
    delta_max_length: Annotated[WholeNumber, Parameter(name=["--delta-max-length", "--delta-keys"])] = 8192,
    diagnose: Annotated[bool, flag(group=DIAGNOSIS)] = False,
    verify: Annotated[bool, flag(group=DIAGNOSIS)] = False,
    threshold: Annotated[list[str] | None, Parameter(negative="", group=DIAGNOSIS)] = None,
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
    normalizer
        Normalizers to measure on the same logits as the model's own, e.g. sparsemax,entmax:alpha=1.3.
    temperature
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
    threshold
        Change a limit of the diagnosis, e.g. local=0.2; may be given several times. One of sink_bound, constant, local,
        broad, near_keys, top_share, off_weight, over_sharp_weight, enough, budget, separability_n, coverage,
        least_top_keys and held_ratio.
    out
        Folder for the results. Default: runs/MODEL-DATE-TIME. To resume an interrupted run of several windows, repeat
        the command with its folder.
    """
    require_model(model, revision)
    from rich.console import Console

    from attnscope.capture.documents import read_source
    from attnscope.capture.text import Text
    from attnscope.cli.closing import print_closing
    from attnscope.diagnosis.states import Thresholds
    from attnscope.measure.settings import row_choice
    from attnscope.scanning import scan as scan_model

    chosen_lengths, chosen_n = optional_numbers("--lengths", lengths), optional_numbers("--top-n", top_n)
    content = read_source(text, field)
    console = Console(stderr=True) if json else Console()
    folder = out or dated_folder(model)
    with compiling_announced(), resumable(folder):
        result = scan_model(
            model,
            content,
            length=length,
            lengths=chosen_lengths,
            top_n=chosen_n,
            rows=row_choice(rows),
            vectors=vectors,
            windows=windows,
            choose=choose,
            seed=seed,
            packed=packed,
            bos=bos,
            normalizers=() if normalizer is None else normalizer.split(","),
            temperatures=() if temperature is None else decimals("--temperature", temperature),
            memory_budget=memory_budget,
            bounds=bounds,
            delta_max_length=delta_max_length,
            diagnose=diagnose,
            verify=verify,
            thresholds=Thresholds.parse(threshold) if threshold else None,
            out=folder,
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
        print(json_module.dumps(_as_json(result, folder), allow_nan=False))
        return end(result.skipped_heads, result.run)
    result.print_summary(console, verbose)
    code = end(result.skipped_heads, result.run)
    options = {"text": text, "field": None if field == "text" else field, "length": length, "revision": revision}
    options |= {"device": None if device == "cpu" else device, "dtype": None if dtype == "float32" else dtype}
    plain_text = text if isinstance(content, Text) else None
    commands = _next_commands(result, model, folder, options, plain_text)
    files = [name for name in _FILES if (folder / name).exists()]
    print_closing(console, folder, files, folder / "report.html", commands)
    return code


def _next_commands(
    result: ScanResult, model: str | None, folder: Path, options: Mapping[str, object], plain_text: list[str] | None
) -> dict[str, str]:
    """What to type next, with the reason."""
    from attnscope.cli.closing import command_line

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


def _as_json(result: ScanResult, folder: Path) -> dict[str, Any]:
    files = {name: str(folder / name) for name in _FILES if (folder / name).exists()}
    answer = {"run": result.run, "files": files, "heads": result.heads.to_dicts()}
    if result.findings is not None:
        answer["findings"] = result.findings.content
    return answer
