"""`horizon`: predict what becomes of every head at longer inputs, from short windows, and how good predictions are.

The baselines are "no change" (the head stays as it is at the longest measured length) and a power law through the
head's measures at that length and at a quarter of it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from attnscope._process import refuses_after_fork
from attnscope.capture.models import Model, resolve_model
from attnscope.capture.text import Text, given_text
from attnscope.capture.tokens import WindowChoice, tokenized
from attnscope.engine.run import Forward, Head, Window, merge_skipped, run_windows
from attnscope.errors import InputError, ModelError, OutputError, parameter
from attnscope.progress import OnStep, Progress, Step, reporting
from attnscope.scanning import ScanResult, scan
from attnscope.store.folders import given_folder, output_folder
from attnscope.store.tables import OWN
from attnscope.studies.horizon.extended_row import MEASURES
from attnscope.studies.horizon.measuring import (
    DEFAULT_CHECK_WINDOWS,
    DEFAULT_ROWS,
    DEFAULT_WINDOWS,
    ChosenWindows,
    HorizonMeasurer,
    HorizonRecord,
    HorizonSettings,
    LongMeasurer,
    choose_windows,
    plan_horizon,
    refuse_lengths,
    repeated_share,
)
from attnscope.studies.horizon.positions import probe_positions
from attnscope.studies.horizon.prediction import (
    TOP5,
    Prediction,
    Stack,
    half_lengths,
    horizon_finding,
    reach,
    scaled,
    stacked,
    verdict_of,
    verdicts,
)
from attnscope.studies.horizon.result import CHECKED, CURVES, HEADS, Horizon

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from attnscope.normalizers import Normalizer


def back_test(prediction: Prediction) -> dict[str, Any]:
    """Errors of predicting the window's length from a quarter of it, on the same windows."""
    settings = prediction.settings
    truth = prediction.measured.mean(settings.length)
    guesses = {
        "prediction": prediction.back_test.mean(settings.length),
        "no_change": prediction.measured.mean(settings.short),
        "power_law": prediction.power_law(settings.length, settings.short // 4, settings.short),
    }
    return {"from": settings.short, "to": settings.length, "errors": _errors(guesses, truth)}


def check(prediction: Prediction, measured: Stack) -> dict[str, Any]:
    """Predictions against what long inputs gave: errors, coverage of the intervals, verdicts."""
    settings = prediction.settings
    lengths = []
    for length in settings.predicted_lengths:
        truth = measured.mean(length)
        guesses = {
            "prediction": prediction.at(length),
            "no_change": prediction.measured.mean(settings.length),
            "power_law": prediction.power_law(length, settings.short, settings.length),
        }
        low, high = prediction.interval(length)
        inside = ((low <= truth) & (truth <= high)).mean(0)
        coverage = dict(zip(MEASURES, inside.tolist(), strict=True))
        lengths.append({"length": length, "errors": _errors(guesses, truth), "coverage": coverage})
    return {"lengths": lengths, "verdicts": _verdicts(prediction, measured)}


def _errors(guesses: dict[str, Any], truth: Any) -> dict[str, dict[str, dict[str, float]]]:
    """Median and 90th percentile over heads of the error on the measure's scale, by guess and measure."""
    found = {}
    for name, guess in guesses.items():
        error = np.abs(scaled(guess) - scaled(truth))
        median, high = np.quantile(error, [0.5, 0.9], axis=0)
        found[name] = {
            measure: {"median": float(median[i]), "p90": float(high[i])} for i, measure in enumerate(MEASURES)
        }
    return found


def _verdicts(prediction: Prediction, measured: Stack) -> dict[str, Any]:
    """How many verdicts were given, and how many of those the long inputs confirm."""
    settings = prediction.settings
    ratio = measured.mean(settings.to)[:, TOP5] / measured.mean(settings.base)[:, TOP5]
    pairs = [(given, verdict_of(float(true))) for given, true in zip(verdicts(prediction), ratio, strict=True)]
    decided = [(given, true) for given, true in pairs if given != "undecided"]
    right = sum(given == true for given, true in decided)
    return {
        "heads": len(pairs),
        "decided": len(decided),
        "right": right,
        "measured": {name: sum(true == name for _, true in pairs) for name in ("holds", "thins", "diluted")},
    }


@refuses_after_fork
def horizon(
    model: str | Path | PreTrainedModel | Model | None = None,
    text: str | Path | Text | None = None,
    *,
    to: int | None = None,
    length: int | None = None,
    windows: int = DEFAULT_WINDOWS,
    rows: int = DEFAULT_ROWS,
    normalizers: str | Normalizer | Sequence[str | Normalizer] = (),
    check: bool = False,
    check_windows: int = DEFAULT_CHECK_WINDOWS,
    bos: bool = False,
    out: str | Path | None = None,
    tokenizer: Any = None,
    device: str = "cpu",
    dtype: str = "float32",
    revision: str | None = None,
    trust_remote_code: bool = False,
    progress: Progress = None,
) -> Horizon:
    """Predict how far every head of a causal model still selects, from windows much shorter than that.

    >>> result = attnscope.horizon(length=64, to=256, windows=2, progress=False)  # the embedded model
    >>> result.heads.columns[:6]
    ['normalizer', 'layer', 'head', 'half_length', 'reach', 'verdict']

    For models with rotary positions, ALiBi or none; docs/horizon.md has the method and how well it does.

    Parameters
    ----------
    model, text, tokenizer, device, dtype, revision, trust_remote_code, progress
        As in `attnscope.scan`.
    to
        The longest length to predict, in tokens; at most what the model was trained for. Default: 8 windows.
    length
        Tokens in a window. Default: 1,024, or half of `to` if that is less.
    windows
        How many windows, spread over the text; at least 2.
    rows
        How many rows of each window; at least 8.
    normalizers
        What-ifs: other normalizers on the same logits, e.g. "ssmax" or "softmax:temperature=0.5".
    check
        Also run the model on longer inputs and compare.
    check_windows
        On how many of them; they do not overlap the windows of the prediction.
    bos
        Put the model's begin token before each window.
    out
        Folder for the tables and for the page: that of the scan in this folder, or of a scan of one window.

    Returns
    -------
    Horizon
        With `table`, `heads`, `plot`, `save(folder)`.
    """
    if isinstance(normalizers, str) or not isinstance(normalizers, Sequence):
        normalizers = [normalizers]
    refuse_lengths(to, length)
    content = given_text(text)
    with (
        nullcontext() if out is None else output_folder(given_folder(out)) as folder,
        reporting(progress, "loading the model") as report,
    ):
        loaded = resolve_model(
            model,
            tokenizer=tokenizer,
            device=device,
            dtype=dtype,
            revision=revision,
            trust_remote_code=trust_remote_code,
        )
        settings = plan_horizon(loaded, to, length, windows, rows, bos, check, check_windows, normalizers)
        result = _Run(loaded, content, settings, report).result()
        if folder is not None:
            _write_with_scan(result, loaded, content, folder)
        return result


def _write_with_scan(horizon: Horizon, model: Model, text: Text, folder: Path) -> None:
    """Write a prediction, and the page of the scan in the folder or of a new scan of one window, with it.

    The folder of a scan stays one. With a new scan, which is there for the page, it is that of a horizon.
    """
    horizon.write(folder)  # first: a scan that fails loses nothing
    found = _earlier(folder, horizon)
    if found is None:
        settings = horizon.run["settings"]
        found = scan(model, text, length=settings["length"], bos=settings["bos"], progress=False)
        found = replace(found, run={**found.run, "kind": "horizon"}, joined={**found.joined, "horizon": horizon})
        found = found.write_tables(folder)
    replace(found, joined={**found.joined, "horizon": horizon}).write_report(folder)


def _earlier(folder: Path, horizon: Horizon) -> ScanResult | None:
    """The scan that a folder holds, if it is of the same model and text."""
    try:
        found = ScanResult.load(folder)
    except OutputError:
        return None
    same = (found.run["model"]["name"], found.run["text"]["sha256"])
    return found if same == (horizon.run["model"]["name"], horizon.run["text"]["sha256"]) else None


class _Run:
    """One prediction: windows, probes, measures, tables."""

    def __init__(self, model: Model, text: Text, settings: HorizonSettings, report: OnStep) -> None:
        self.model, self.text, self.settings, self.report = model, text, settings, report
        tokens = tokenized(model, text, WindowChoice())
        self.tokens: list[int] = tokens.read(0, len(tokens)).tolist()
        if settings.bos and model.tokenizer.bos_token_id is None:
            raise InputError(f"the tokenizer of {model.name} has no begin token; leave {parameter('bos')} out")

    def result(self) -> Horizon:
        started = time.perf_counter()
        settings = self.settings
        chosen = choose_windows(len(self.tokens), settings, self.text.source)
        positions = probe_positions(self.model, self._window(chosen.starts[0], settings.length), settings.to)
        measurer = HorizonMeasurer(settings, positions)
        first, *others = (self._window(start, settings.length) for start in chosen.starts)
        batch = Window(0, [Forward(first, {}, beside=tuple(others))])
        (record,) = run_windows(self.model, [batch], measurer, progress=self._doing("predicting"))
        seconds = time.perf_counter() - started
        long = self._long(chosen)
        skipped = merge_skipped([each.skipped_heads() for each in (record, *long)])
        heads = [
            (layer, head)
            for layer, entry in sorted(record.layers.items())
            for head in range(entry["heads"])
            if (layer, head) not in skipped
        ]
        if not heads:
            raise ModelError(f"no head of {self.model.name} has finite weights; nothing can be predicted")
        labels = [OWN, *settings.normalizers]
        predictions = {label: _prediction(settings, record, label, heads) for label in labels}
        measured = {
            label: stacked([each.measured for each in long], label, heads) if long else None for label in labels
        }
        table = pl.concat([_curves(label, each, measured[label]) for label, each in predictions.items()])
        distances = reach(record, heads, settings.to)
        summary = pl.concat([_heads(label, each, distances) for label, each in predictions.items()])
        run = {
            "model": {"name": self.model.name, "family": self.model.family, "heads": record.part({}).notes["heads"]},
            "text": {"source": self.text.source, "sha256": self.text.digest, "tokens": len(self.tokens)},
            "settings": settings.as_json(),
            "positions": sorted({each.kind for each in positions.values()}),
            "repeated_share": repeated_share(self.tokens, chosen.starts, settings),
            "back_test": {label: back_test(each) for label, each in predictions.items()},
            "check": {
                label: check(predictions[label], stack) for label, stack in measured.items() if stack is not None
            },
            "finding": horizon_finding(summary, settings),
            "skipped_heads": list(skipped.values()),
            "seconds": round(seconds, 3),
        }
        return Horizon(table, summary, run)

    def _window(self, start: int, length: int) -> list[int]:
        inner = length - self.settings.bos
        before = [self.model.tokenizer.bos_token_id] if self.settings.bos else []
        return [*before, *self.tokens[start : start + inner]]

    def _long(self, chosen: ChosenWindows) -> list[HorizonRecord]:
        """The measured rows of the long windows of a check."""
        settings = self.settings
        lengths = (*(n for n in settings.measured_lengths if n >= settings.short), *settings.predicted_lengths)
        inputs = [Forward(self._window(start, settings.to), {}) for start in chosen.check_starts]
        windows = [Window(number, [each]) for number, each in enumerate(inputs)]
        measurer = LongMeasurer(settings, lengths)
        return list(run_windows(self.model, windows, measurer, progress=self._doing("checking")))

    def _doing(self, what: str) -> OnStep:
        def report(step: Step) -> None:
            self.report(step._replace(doing=f"{what}: {step.doing}"))

        return report


def _prediction(settings: HorizonSettings, record: HorizonRecord, label: str, heads: Sequence[Head]) -> Prediction:
    parts = (record.measured, record.predicted, record.back_test)
    return Prediction(settings, *(stacked([part], label, heads) for part in parts))


def _curves(label: str, prediction: Prediction, measured: Stack | None) -> pl.DataFrame:
    """The lines of `horizon.parquet` for one normalizer: by head, length and measure."""
    settings, heads = prediction.settings, prediction.measured.heads
    lengths = [
        n for n in (*settings.measured_lengths, *settings.predicted_lengths) if n >= min(settings.short, settings.base)
    ]
    parts = []
    for length in lengths:
        low, high = prediction.interval(length)
        columns: dict[str, Any] = {
            "normalizer": label,
            "layer": [layer for layer, _ in heads for _ in MEASURES],
            "head": [head for _, head in heads for _ in MEASURES],
            "length": length,
            "measure": list(MEASURES) * len(heads),
            "predicted": prediction.at(length).flatten(),
            "lower": low.flatten(),
            "upper": high.flatten(),
        }
        schema = CURVES
        if measured is not None:
            known = length in measured.by_length
            columns["measured"] = measured.mean(length).flatten() if known else None
            schema = CHECKED
        parts.append(pl.DataFrame(columns, schema=schema))
    return pl.concat(parts).sort("layer", "head", "length", maintain_order=True)


def _heads(label: str, prediction: Prediction, distances: Sequence[float | None]) -> pl.DataFrame:
    """The lines of `heads.parquet` for one normalizer."""
    heads = prediction.measured.heads
    return pl.DataFrame(
        {
            "normalizer": label,
            "layer": [layer for layer, _ in heads],
            "head": [head for _, head in heads],
            "half_length": half_lengths(prediction),
            "reach": list(distances),
            "verdict": verdicts(prediction),
        },
        schema=HEADS,
    )
