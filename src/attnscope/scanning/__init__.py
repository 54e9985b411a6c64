"""Scan a model: capture and measure layer by layer, window by window, and fill the tables.

In a causal model the last row of the prefix of length L is row L-1 of the full window, so one forward gives
every length at once. In an encoder every token sees every other, and each length needs a forward of its own.

`windows.py` runs the model, `rows.py` measures what it attends to, `record.py` says how it was done, `result.py` holds
what comes back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope import tables
from attnscope.capture.models import Model, load_model
from attnscope.capture.text import Text, read_text
from attnscope.capture.vectors import VectorKind
from attnscope.normalizers import Softmax
from attnscope.planning import DEFAULT_MEMORY, RowChoice, plan
from attnscope.scanning.record import identity
from attnscope.scanning.result import Progress, ScanResult, Step
from attnscope.scanning.rows import what_ifs
from attnscope.scanning.windows import Scan

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from attnscope.diagnosis.thresholds import Thresholds
    from attnscope.normalizers import Normalizer

__all__ = ["Progress", "ScanResult", "Step", "scan"]


def scan(
    model: str | Path | PreTrainedModel | Model | None = None,
    text: str | Path | Text | None = None,
    *,
    tokenizer: Any = None,
    length: int | None = None,
    lengths: Sequence[int] | None = None,
    top_n: Sequence[int] | None = None,
    rows: RowChoice = "last",
    vectors: VectorKind = "value",
    windows: int = 1,
    bos: bool = False,
    normalizers: Sequence[str | Normalizer] = (),
    temperatures: Sequence[float] = (),
    memory_budget: int | str = DEFAULT_MEMORY,
    diagnose: bool = False,
    verify: bool = False,
    thresholds: Thresholds | None = None,
    out: str | Path | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    revision: str | None = None,
    progress: Progress | None = None,
) -> ScanResult:
    """Measure every head of a model on a text.

        >>> result = attnscope.scan("path/to/model", Path("book.txt"), length=512)
        >>> result.topn.filter(n=20).group_by("layer").agg(pl.mean("separability"))

    `model` is a hub id, a folder, a `.gguf` file, a loaded transformers model (with `tokenizer`), or nothing
    for the embedded sample. `text` is a string, a `Path`, or nothing for the sample text. `length` is the size
    of a window in tokens, `lengths` the prefixes whose last row is measured, `top_n` the sizes of the top set.
    `rows` is "last", "all", or how many rows to spread evenly over each window.

    `normalizers` (`"entmax:alpha=1.3"`, or `Normalizer` objects) and `temperatures` are what-ifs: the weights they
    make of the very same logits are measured beside the model's own, in the same forward, with their label in the
    column `normalizer`.

    With `diagnose`, every head is labeled on windows spread over the text, and `findings` says what follows; `verify`
    also tries the labels inside the model (see `attnscope.diagnose`).

    With `out`, the results are saved there, window by window as they are finished: after an interruption the same
    call takes up where it stopped.
    """
    started = time.perf_counter()
    if isinstance(text, str):
        text = Text(text, "the string given")
    elif not isinstance(text, Text):
        text = read_text(text)
    with nullcontext() if out is None else tables.output_folder(Path(out)) as folder:
        if not isinstance(model, Model):
            model = load_model(model, tokenizer=tokenizer, device=device, dtype=dtype, revision=revision)
        settings = plan(
            model.positions,
            length,
            lengths,
            top_n,
            vectors,
            windows,
            bos,
            rows,
            normalizers,
            temperatures,
            memory_budget,
            causal=model.causal,
        )
        job = Scan(model, text, settings, progress, time.perf_counter() - started)
        diagnosis = _diagnosis(job, verify, thresholds) if diagnose or verify else None
        if folder is None:
            return _diagnosed(job.run(None), diagnosis)
        with tables.Parts(folder, identity(job)) as parts:
            result = _diagnosed(job.run(parts), diagnosis)
            result.write(folder)
            parts.clear()
        return result


def _diagnosis(job: Scan, verify: bool, thresholds: Thresholds | None) -> Callable[[ScanResult], dict[str, Any]]:
    """A diagnosis to run after the scan; what it cannot do is refused now."""
    from attnscope.diagnosis.running import choose_windows, diagnose_windows

    count = job.settings.windows if job.settings.windows > 1 else None
    chosen = choose_windows(job.model, job.text, job.tokens, job.settings.length, count, job.settings.bos, verify)

    def tell(doing: str, done: int, total: int) -> None:
        if job.progress is not None:
            job.progress(Step(done, total, 0, 1, 0, doing))

    normalizers = dict(what_ifs(job.settings, Softmax()))
    return lambda result: diagnose_windows(
        job.model, chosen, thresholds=thresholds, what_if=result.rows, progress=tell, normalizers=normalizers
    )


def _diagnosed(result: ScanResult, diagnosis: Callable[[ScanResult], dict[str, Any]] | None) -> ScanResult:
    return result if diagnosis is None else replace(result, findings=diagnosis(result))
