"""`scan`: plan what the engine runs, measure, diagnose, write.

It runs on the windows of a text or a corpus, block by block, or on a module's tensors in one forward. Nothing is known
of such a module before it runs, so every attention call says for itself how many rows it has.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import polars as pl
import torch
from torch.utils._pytree import tree_leaves

from attnscope._process import refuses_after_fork
from attnscope.capture.documents import Corpus, given_source
from attnscope.capture.forward import Inputs
from attnscope.capture.models import Model, PlainModel, plain_model, refuse_options, resolve_model
from attnscope.capture.text import Text
from attnscope.capture.tokens import (
    Choice,
    TokenizedText,
    text_length,
    token_texts,
    tokenized,
    window_choice,
    window_tokens,
)
from attnscope.columns import VectorKind
from attnscope.diagnosis.result import Diagnosis
from attnscope.diagnosis.states import Thresholds, given_thresholds
from attnscope.engine import chosen_workers, opened
from attnscope.engine.blocks import Blocks, Work, block_size
from attnscope.engine.record import identity, model_identity, model_record, run_record
from attnscope.engine.run import WindowPlan, merge_notes, plan_windows, run_inputs
from attnscope.engine.store import BlocksInMemory, BlocksOnDisk, PartStore, collect
from attnscope.errors import InputError, parameter
from attnscope.measure.settings import DEFAULT_DELTA_MAX_LENGTH, DEFAULT_MEMORY, RowChoice, Settings, plan, plan_inputs
from attnscope.normalizers import Softmax
from attnscope.progress import OnStep, Progress, reporting
from attnscope.scanning.measuring import ScanMeasurer, what_ifs
from attnscope.scanning.result import ScanResult
from attnscope.store import folders, tables
from attnscope.store.tables import TokenWeights

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

    from attnscope.capture.tokens import WindowChoice
    from attnscope.diagnosis.situation import DiagnosisWindows
    from attnscope.engine.blocks import Engine
    from attnscope.normalizers import Normalizer

LOADING = "loading the model"
_MOST_DIAGNOSED = 64  # windows of a large run that a diagnosis looks at


@refuses_after_fork
def scan(
    model: str | Path | PreTrainedModel | nn.Module | Model | None = None,
    text: str | Path | Text | Corpus | None = None,
    *,
    inputs: Inputs = None,
    tokenizer: Any = None,
    length: int | None = None,
    lengths: Sequence[int] | None = None,
    top_n: Sequence[int] | None = None,
    rows: RowChoice = "last",
    vectors: VectorKind = "value",
    windows: int = 1,
    choose: Choice | None = None,
    seed: int = 0,
    packed: bool = False,
    bos: bool = False,
    normalizers: Sequence[str | Normalizer] = (),
    temperatures: Sequence[float] = (),
    memory_budget: int | str = DEFAULT_MEMORY,
    bounds: Literal["paper"] | None = None,
    delta_max_length: int = DEFAULT_DELTA_MAX_LENGTH,
    diagnose: bool = False,
    verify: bool = False,
    thresholds: Thresholds | None = None,
    out: str | Path | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    revision: str | None = None,
    device_map: str | dict[str, Any] | None = None,
    trust_remote_code: bool = False,
    workers: int | None = None,
    ray: str | None = None,
    worker_cpus: int | None = None,
    worker_gpus: float | None = None,
    progress: Progress = None,
) -> ScanResult:
    """Measure every head of a model on a text, or of any torch module on tensors.

    >>> result = attnscope.scan(length=64, progress=False)  # the embedded model and text
    >>> result.topn.filter(n=20).group_by("layer").agg(pl.mean("separability")).columns
    ['layer', 'separability']

    A model of your own, a file, and labels for all heads:

    >>> attnscope.scan("path/to/model", Path("book.txt"), length=512, diagnose=True)  # doctest: +SKIP

    Any module on tensors; each item of the batch is a window:

    >>> attention, x = torch.nn.MultiheadAttention(64, 8, batch_first=True), torch.randn(2, 16, 64)
    >>> attnscope.scan(attention, inputs=(x, x, x), rows="all", top_n=[4], progress=False).rows.height
    256

    Parameters
    ----------
    model
        A hub id, a folder, a `.gguf` file, a loaded transformers model (with `tokenizer`), what `load_model` returns,
        or nothing for the embedded sample.
    text
        The text itself (`str`), a file (`pathlib.Path`), a `Text` (`attnscope.capture.corpus("war-and-peace")`), a
        `Corpus` (`attnscope.capture.Corpus(("books/*.txt",))`), or nothing for the sample text.
    inputs
        Instead of a text: a tensor, a tuple of positional arguments, a mapping of named ones, or a function that runs
        the module. Rows are chosen among those that are not padding; arguments about a text are refused.
    tokenizer
        The tokenizer of a loaded model.
    length
        Tokens in a window. Default: 1,024, or the model's limit if that is less.
    lengths
        The prefixes whose last row is measured, in tokens. Default: powers of two up to the length.
    top_n
        The sizes N of the top set. Default: 1, 5, 10, 20 and 100, as far as they fit.
    rows
        Which rows of a window: "last" (of each length), "all", or how many, spread evenly.
    vectors
        What the weights average: "value", "output", "hidden", "hidden_unit" or "embedding".
    windows
        How many windows of the text. No window spans two documents.
    choose
        Which ones: "first" (consecutive, from the start: the default for a text), "even" (spread over the whole text:
        the default for a corpus) or "random".
    seed
        Seed of the random choice.
    packed
        Join the documents of a corpus, with the tokenizer's end token after each, before windows are chosen.
    bos
        Put the model's begin token before each window.
    normalizers, temperatures
        What-ifs: other normalizers (`"entmax:alpha=1.3"`, or `Normalizer` objects) and temperatures to measure on the
        very same logits beside the model's own, with their label in the column `normalizer`.
    memory_budget
        Memory for a block of rows while it is measured, in bytes, or as text such as "512MB".
    bounds
        "paper": also measure what the paper's printed bounds need, from all pairs of keys. Without it
        `attnscope.columns.PAPER_BOUNDS` are null.
    delta_max_length
        The longest rows in which `bounds="paper"` looks at all pairs of keys.
    diagnose, verify
        Label every head on windows spread over the text, and test the labels inside the model: see `diagnose`.
    thresholds
        The limits of the labels.
    out
        Folder for the results, written window by window: after an interruption the same call continues.
    device, dtype, revision, device_map, trust_remote_code
        How the model is loaded: see `load_model`.
    workers, ray
        Run on Ray (the extra `attnscope[ray]`): on so many workers, on a cluster at this address as `ray.init` takes
        it, or both. Without an address they are on this machine. The model is given by its name.
    worker_cpus, worker_gpus
        Cores and devices of each worker. Default: one core.
    progress
        What to show: see `attnscope.progress`.

    Returns
    -------
    ScanResult
        Tables, one line for each head, charts and the report.
    """
    started = time.perf_counter()
    loading = {
        "tokenizer": tokenizer,
        "device": device,
        "dtype": dtype,
        "revision": revision,
        "device_map": device_map,
        "trust_remote_code": trust_remote_code,
    }
    limits = given_thresholds(thresholds)
    if thresholds is not None and not (diagnose or verify):
        diagnosis = f"add {parameter('diagnose', True)} or {parameter('verify', True)}"
        raise InputError(f"{parameter('thresholds')} is for a diagnosis; {diagnosis}")
    if inputs is not None:
        of_texts = {
            "text": text,
            "length": length,
            "lengths": lengths,
            "windows": windows if windows != 1 else None,
            "choose": choose,
            "packed": packed or None,
            "bos": bos or None,
            "diagnose or verify": diagnose or verify or None,
            "workers or ray": workers or ray,
        }
        given = [name for name, value in of_texts.items() if value is not None]
        if given:
            raise InputError(f"inputs take the place of a text: leave out {', '.join(given)}")
        settings = plan_inputs(top_n, vectors, rows, normalizers, temperatures, memory_budget, bounds, delta_max_length)
        with _folder(out) as folder, reporting(progress, LOADING) as report:
            if model is None or isinstance(model, str | Path | Model):
                model = resolve_model(model, **loading)
            else:
                refuse_options(f"this {type(model).__name__}", **loading | {"tokenizer": None})
            module, words = (model.module, model.tokenizer) if isinstance(model, Model) else (model, tokenizer)
            load_seconds = time.perf_counter() - started
            result = scan_inputs(plain_model(module), inputs, settings, words, report, load_seconds)
            if folder is not None:
                result.write(folder)
            return replace(result, folder=folder)
    source = given_source(text)
    choice = window_choice(source, choose, seed, packed)
    on = chosen_workers(workers, ray, worker_cpus, worker_gpus)
    asked = (length, lengths, top_n, vectors, windows, bos, rows, normalizers, temperatures, memory_budget, bounds)
    plan(None, *asked, delta_max_length, causal=False)  # refuses invalid settings before the model is loaded
    with _folder(out) as folder, reporting(progress, LOADING) as report, opened(model, on, **loading) as engine:
        facts = engine.facts
        settings = plan(facts.positions, *asked, delta_max_length, causal=facts.causal)
        load_seconds = time.perf_counter() - started
        labels = diagnose or verify
        enough = None  # windows after which no further document is read
        if isinstance(source, Corpus) and choice.how == "first" and not labels:
            enough = text_length(facts, settings.length, bos), settings.windows
        tokens = tokenized(facts, source, choice, folder, enough)
        chosen = _windows_to_diagnose(engine, tokens, settings, verify) if labels else None
        planned = TextScan.planned(engine, tokens, choice, settings)
        with planned.store(folder) as store:
            result = planned.run(store, report, load_seconds)
            if chosen is not None:
                result = _diagnosed(result, engine, chosen, settings, limits, report)
            if folder is not None:
                result = result.write_tables(folder)
                result.write_report(folder)
                store.done()
        return replace(result, folder=folder)


def _folder(out: str | Path | None) -> AbstractContextManager[Path | None]:
    """The folder for the results, if there is to be one."""
    return nullcontext() if out is None else folders.output_folder(folders.given_folder(out))


def _windows_to_diagnose(engine: Engine, tokens: TokenizedText, settings: Settings, verify: bool) -> DiagnosisWindows:
    """The windows of a diagnosis after the scan; what it cannot do is refused now."""
    from attnscope.diagnosis.running import choose_windows

    count = min(settings.windows, _MOST_DIAGNOSED) if settings.windows > 1 else None
    return choose_windows(engine, tokens, settings.length, count, settings.bos, verify)


def _diagnosed(
    result: ScanResult,
    engine: Engine,
    windows: DiagnosisWindows,
    settings: Settings,
    thresholds: Thresholds,
    report: OnStep,
) -> ScanResult:
    """The result with the findings of a diagnosis."""
    from attnscope.diagnosis.running import diagnose_windows

    normalizers = dict(what_ifs(settings, Softmax()))
    some = result.rows.lazy().filter(pl.col("window") < _MOST_DIAGNOSED).collect()
    findings = diagnose_windows(
        engine, windows, thresholds=thresholds, what_if=some, progress=report, normalizers=normalizers
    )
    return replace(result, findings=Diagnosis(findings))


def scan_inputs(
    model: PlainModel,
    inputs: Inputs,
    settings: Settings,
    tokenizer: Any,
    report: OnStep,
    load_seconds: float,
) -> ScanResult:
    """Run the module once on tensors and measure whatever attends in it."""
    started = time.perf_counter()
    parts = list(run_inputs(model, inputs, ScanMeasurer(settings), settings.positions, progress=report))
    if not parts:
        raise InputError("the inputs hold no items: a batch of size 0 has nothing to measure")
    longest = max(int(part.tables["rows"]["length"].max() or 0) for part in parts)  # type: ignore[arg-type]
    settings = replace(settings, length=longest, lengths=(longest,), windows=len(parts))
    rows, topn = (pl.concat([part.tables[name] for part in parts]) for name in ("rows", "topn"))
    notes = merge_notes(part.notes for part in parts)
    text = {"source": "inputs", "sha256": _digest(inputs), "characters": None, "tokens": notes["tokens"]}
    timings = {"load_seconds": load_seconds, "scan_seconds": time.perf_counter() - started}
    run = run_record("scan", model_record(model), text, settings, timings, notes)
    first = parts[0].tables
    names = _key_names(inputs, tokenizer, longest)
    return ScanResult(rows, topn, run, TokenWeights(first["weights"], *names, first["patterns"]))


def _key_names(inputs: Inputs, tokenizer: Any, length: int) -> tuple[list[str], list[str]]:
    """What the report calls the keys of the first item: its tokens if they are known, else their positions."""
    ids = inputs.get("input_ids") if isinstance(inputs, Mapping) else None
    if tokenizer is not None and isinstance(ids, torch.Tensor):
        return token_texts(tokenizer, ids.reshape(-1, ids.shape[-1])[0].tolist())
    positions = [str(position) for position in range(length)]
    return positions, [f" {position}" for position in positions]


def _digest(inputs: Inputs) -> str | None:
    """SHA-256 of the tensors among the inputs; None if a function makes them."""
    tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
    if not tensors:
        return None
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class TextScan:
    """A scan that is planned: which windows of the text, in which blocks, and what is measured in each."""

    engine: Engine
    text: TokenizedText
    choice: WindowChoice
    settings: Settings
    plan: WindowPlan
    blocks: Blocks

    @classmethod
    def planned(cls, engine: Engine, text: TokenizedText, choice: WindowChoice, settings: Settings) -> TextScan:
        """Choose the windows; refuses a text that is too short."""
        model = engine.facts
        windows = window_tokens(model, text, settings.length, settings.windows, settings.bos, choice)
        plan = plan_windows(model, settings.lengths, settings.positions)
        others = len(settings.normalizers)
        normalizers = 1 + others + len(settings.temperatures) * (1 + others)
        lines = model.heads * plan.rows * normalizers * len(settings.top_n)
        return cls(engine, text, choice, settings, plan, Blocks(windows, block_size(len(windows), lines)))

    def store(self, folder: Path | None) -> PartStore:
        """Where finished blocks are kept: those of a run in one block are not worth keeping on disk."""
        if folder is None or len(self.blocks) == 1:
            return BlocksInMemory()
        plan = identity(self.engine.call(model_identity), self.text, self.choice, self.settings)
        names = {"kind": "scan", "model": self.engine.facts.name, "text": self.text.source}
        return BlocksOnDisk(folder, plan, self.blocks, names)

    def run(self, store: PartStore, report: OnStep, load_seconds: float) -> ScanResult:
        """Run the blocks that the store does not have yet; the result is that of all."""
        started = time.perf_counter()
        work = Work(self.plan, ScanMeasurer(self.settings), store.finish)
        collect(self.engine, work, self.blocks, store, report)
        timings = {"load_seconds": load_seconds, "scan_seconds": time.perf_counter() - started}
        text = self.text.as_json() | self.choice.as_json()
        notes = merge_notes(store.notes())
        model = self.engine.call(model_record)
        run = run_record("scan", model, text, self.settings, timings, notes) | self._workers(store)
        shown = self._token_weights(store)
        if isinstance(store, BlocksOnDisk) and store.manifest.lines("topn") > tables.MOST_LINES:
            return ScanResult.of_parts(store.manifest, run, shown)
        rows, topn = (store.table(name, tables.SCANNED[name]) for name in ("rows", "topn"))
        return ScanResult(rows, topn, run, shown)

    def _workers(self, store: PartStore) -> dict[str, Any]:
        """What `run.json` says about blocks and workers; nothing for a run in one block."""
        if len(self.blocks) == 1:
            return self.engine.described
        blocks = {"count": len(self.blocks), "windows": self.blocks.size, "failed": store.failed}
        return {**self.engine.described, "blocks": blocks}

    def _token_weights(self, store: PartStore) -> tables.TokenWeights | None:
        """What the report shows over the text of the first window; None if that could not be measured."""
        if store.finished_blocks()[:1] != [0]:
            return None
        tokens = self.plan.window(0, self.blocks.windows[0:1].tolist()[0]).forwards[-1].tokens
        found = store.part(0).tables
        weights, patterns = (found.get(name, tables.SCANNED[name].to_frame()) for name in ("weights", "patterns"))
        return tables.TokenWeights(weights, *token_texts(self.engine.facts.tokenizer, tokens), patterns)
