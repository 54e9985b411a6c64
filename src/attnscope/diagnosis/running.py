"""`attnscope.diagnose`: run a model on some windows, label its heads, and say what follows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope._process import refuses_after_fork
from attnscope.capture.documents import Corpus, given_source
from attnscope.capture.models import Model
from attnscope.capture.text import Text
from attnscope.capture.tokens import TokenizedText, WindowChoice, tokenized, window_tokens
from attnscope.diagnosis.findings import findings
from attnscope.diagnosis.heads import Labels, budget_by_error, budget_by_share, describe, label
from attnscope.diagnosis.observing import DiagnosisMeasurer, WindowRows, plan_diagnosis
from attnscope.diagnosis.result import Diagnosis
from attnscope.diagnosis.situation import DiagnosisWindows, situation
from attnscope.diagnosis.states import Thresholds, given_thresholds
from attnscope.diagnosis.verdict import candidates, verdict, withdraw
from attnscope.engine import chosen_workers, opened
from attnscope.engine.blocks import Blocks, Engine, Work, run_all
from attnscope.engine.run import Head, merge_skipped
from attnscope.errors import InputError, ModelError, whole_number
from attnscope.intervals import agreement
from attnscope.measure.settings import plan
from attnscope.progress import OnStep, Progress, Step, reporting
from attnscope.store.tables import FINDINGS_VERSION

if TYPE_CHECKING:
    import polars as pl
    from transformers import PreTrainedModel

    from attnscope.normalizers import Normalizer

WINDOWS, HELD_OUT, ROWS = 4, 4, 64


@refuses_after_fork
def diagnose(
    model: str | Path | PreTrainedModel | Model | None = None,
    text: str | Path | Text | Corpus | None = None,
    *,
    tokenizer: Any = None,
    length: int | None = None,
    windows: int | None = None,
    rows: int = ROWS,
    bos: bool = False,
    thresholds: Thresholds | None = None,
    verify: bool = False,
    what_if: pl.DataFrame | None = None,
    seed: int = 0,
    device: str = "cpu",
    dtype: str = "float32",
    revision: str | None = None,
    trust_remote_code: bool = False,
    workers: int | None = None,
    ray: str | None = None,
    worker_cpus: int | None = None,
    worker_gpus: float | None = None,
    progress: Progress = None,
) -> Diagnosis:
    """Label every head with the simplest rule that gives nearly the same output, and say what follows.

    >>> found = attnscope.diagnose(length=64, windows=2, rows=8, progress=False)
    >>> sorted(found.heads.columns[:4])
    ['head', 'layer', 'state', 'sureness']

    Parameters
    ----------
    model
        A hub id, a folder, a `.gguf` file, a loaded transformers model (with `tokenizer`), what `load_model` returns,
        or nothing for the embedded sample.
    text
        The text itself (`str`), a file (`pathlib.Path`), a `Text` (`attnscope.capture.corpus("war-and-peace")`), a
        `Corpus`, or nothing for the sample text.
    tokenizer
        The tokenizer of a loaded model.
    length
        Tokens in a window. Default: 1,024, or the model's limit if that is less.
    windows
        How many windows, spread over the text, from 2 up. Default: 4, or as many as fit.
    rows
        How many rows of each window are measured.
    bos
        Put the model's begin token before each window.
    thresholds
        The limits of the labels.
    verify
        Test the labels on other windows (4, or as many as fit): heads' weights are replaced inside the model by what
        their state says would be enough, and the change of the next-token distribution is compared with that for
        random heads. Labels that do not hold are withdrawn.
    what_if
        The table `rows` of a scan with other normalizers.
    seed
        Seed of the random sets and heads.
    device, dtype, revision, trust_remote_code, workers, ray, worker_cpus, worker_gpus, progress
        As in `attnscope.scan`.

    Returns
    -------
    Diagnosis
        States, evidence, findings and a verdict (docs/diagnosis.md).
    """
    limits, source = given_thresholds(thresholds), given_source(text)
    windows = None if windows is None else whole_number("windows", windows, 2)
    rows, seed = whole_number("rows", rows), whole_number("seed", seed, 0)
    plan(None, length)  # refuses invalid settings before the model is loaded
    loading = {
        "tokenizer": tokenizer,
        "device": device,
        "dtype": dtype,
        "revision": revision,
        "trust_remote_code": trust_remote_code,
    }
    on = chosen_workers(workers, ray, worker_cpus, worker_gpus)
    with reporting(progress, "loading the model") as report, opened(model, on, **loading) as engine:
        facts = engine.facts
        settings = plan(facts.positions, length, bos=bos, causal=facts.causal)
        tokens = tokenized(facts, source, WindowChoice("even"))
        chosen = choose_windows(engine, tokens, settings.length, windows, bos, verify)
        return Diagnosis(diagnose_windows(engine, chosen, rows, limits, what_if, seed, report))


def choose_windows(
    engine: Engine, text: TokenizedText, length: int, windows: int | None, bos: bool, verify: bool
) -> DiagnosisWindows:
    """Windows over the whole text, some of them held out to verify; refuses what cannot be diagnosed."""
    model = engine.facts
    if model.encoder_decoder:
        raise InputError(
            f"a diagnosis takes decoders and encoders; {model.name} ({model.family}) is an encoder-decoder, whose "
            "cross attention has no nearest keys: scan it without a diagnosis"
        )
    if verify:
        from attnscope.diagnosis.verify import check_verifiable

        engine.call(check_verifiable)
    fitting = text.room(length)
    count = windows or min(WINDOWS, max(2, (fitting + 1) // 2 if verify else fitting))
    spare = min(HELD_OUT, max(1, fitting - count)) if verify else 0
    inputs = window_tokens(model, text, length, count + spare, bos, WindowChoice("even"))[:].tolist()
    held_out = [inputs.pop((2 * i + 1) * (count + spare) // (2 * spare) - i) for i in range(spare)]
    return DiagnosisWindows(inputs, held_out, length, text.source, len(text), bos)


def diagnose_windows(
    engine: Engine,
    chosen: DiagnosisWindows,
    rows: int = ROWS,
    thresholds: Thresholds | None = None,
    what_if: pl.DataFrame | None = None,
    seed: int = 0,
    progress: OnStep | None = None,
    normalizers: Mapping[str, Normalizer] | None = None,
) -> dict[str, Any]:
    """The diagnosis of a loaded model on windows chosen before; to verify, `normalizers` are tried in every head."""
    limits = thresholds or Thresholds()
    length = chosen.length
    report = progress or (lambda step: None)
    windows, unknown = _measured(engine, chosen, rows, limits, seed, report)
    labels, agreed, skipped = _labels(windows, limits, engine.facts.name)
    heads = describe(windows, labels, limits, seed)
    checked = None
    if chosen.held_out:
        from attnscope.diagnosis.verify import verify

        budgets = [budget_by_error(windows, labels, limits.enough), budget_by_share(windows, labels, limits.budget)]
        tried = (chosen.held_out, labels, limits, seed, budgets, normalizers, candidates(heads))
        checked = engine.call(verify, *tried, progress=report)
    heads = withdraw(heads, checked)
    where = engine.call(situation, chosen, limits)
    summary = verdict(heads, agreed, where, limits, checked)
    if unknown is not None:
        summary["warnings"].append(f"What heads add to the residual stream is not measured: {unknown}.")
    return {
        "schema": FINDINGS_VERSION,
        "model": engine.facts.name,
        "text": chosen.text,
        "verdict": summary,
        "length": length,
        "windows": len(windows),
        "rows": rows,
        "thresholds": limits.as_json(),
        "heads": heads,
        "skipped_heads": [
            {"layer": layer, "head": head, "reason": record["reason"]} for (layer, head), record in skipped.items()
        ],
        "agreement": agreed,
        "findings": findings(heads, agreed, where, limits, checked, what_if),
        "verification": checked,
    }


def _measured(
    engine: Engine, chosen: DiagnosisWindows, rows: int, thresholds: Thresholds, seed: int, report: OnStep
) -> tuple[list[WindowRows], str | None]:
    """The rows of every window, and why what heads add to the residual stream is not known, if so."""
    plan = plan_diagnosis(engine.facts, chosen.length, rows)
    blocks = Blocks(np.array(chosen.labeled, dtype=np.int32))

    def advance(step: Step) -> None:
        report(step._replace(doing=f"diagnosing: {step.doing}"))

    def measured(residual: bool) -> list[WindowRows]:
        work = Work(plan, DiagnosisMeasurer(chosen.length, thresholds, seed, residual), only_window)
        return run_all(engine, work, blocks, advance)

    try:
        return measured(residual=True), None
    except ModelError as error:  # any other error comes again
        return measured(residual=False), str(error)


def only_window(windows: list[WindowRows]) -> WindowRows:
    """The window of a block that has one."""
    (window,) = windows
    return window


def _labels(
    windows: list[WindowRows], thresholds: Thresholds, name: str
) -> tuple[dict[Head, Labels], dict[str, Any], dict[Head, dict[str, Any]]]:
    """Every head's labels, how far those of the even and the odd windows agree, and the heads left out."""
    skipped = merge_skipped(window.skipped_heads() for window in windows)
    heads = [head for head in sorted(windows[0].rows) if head not in skipped]
    if not heads:
        raise ModelError(f"{name}: no head has finite logits and values; there is nothing to diagnose")
    labels = {head: label(windows, head, thresholds) for head in heads}
    halves = [[label(half, head, thresholds).state for head in heads] for half in (windows[::2], windows[1::2])]
    share, kappa = agreement(*halves)
    same = [first == second for head, first, second in zip(heads, *halves, strict=True) if labels[head].sure]
    agreed = {
        "share": share,
        "kappa": kappa,
        "windows": len(windows),
        "sure_heads": len(same),
        "sure_share": float(np.mean(same)) if same else None,
    }
    return labels, agreed, skipped
