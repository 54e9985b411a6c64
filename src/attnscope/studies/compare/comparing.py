"""Compare normalizers on a model: one table of fidelity, capacity, gradients and cost.

Two modes. `what-if` applies each normalizer to the original logits, layer by layer, so that nothing propagates and
perplexity has no meaning. `swapped` runs the model with the normalizer in every layer: its changes propagate, and the
measured logits are those of the changed model.
"""

from __future__ import annotations

import json
import statistics
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import polars as pl
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from attnscope._process import refuses_after_fork
from attnscope.capture.models import Model, resolve_model
from attnscope.capture.modules import evaluating
from attnscope.capture.text import Text, given_text
from attnscope.capture.tokens import WindowChoice, WindowTokens, tokenized
from attnscope.errors import InputError, OutputError, listed_names, parameter, shown, whole_number
from attnscope.measure.settings import plan
from attnscope.normalizers import Normalizer, parse
from attnscope.progress import OnStep, Progress, Step, reporting
from attnscope.scanning import ScanResult, scan
from attnscope.show.numbers import short_path
from attnscope.show.result import Result
from attnscope.store.folders import as_file, without_infinities, write_all
from attnscope.store.kinds import name_kind
from attnscope.store.tables import OWN, within_support
from attnscope.studies.compare.calibration import Calibrated, Scope, calibrate
from attnscope.swapping import swap
from attnscope.swapping.changes import Fidelity, next_token_logits

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from attnscope.show.blocks import Block
    from attnscope.studies.compare.view import ComparisonPlots

Mode = Literal["what-if", "swapped"]
MODES: tuple[Mode, ...] = ("what-if", "swapped")
_PICTURES = ("svg", "pdf", "png")
FILES = ("compare.parquet", "capacity.vl.json", *(f"capacity.{kind}" for kind in _PICTURES), "compare.json")
DEFAULT_NORMALIZERS = ("softmax", "ssmax", "entmax15", "sparsemax", "topk:k=64", "lipmax")

MEASURED = ("separability", "distance_ratio", "entropy_ratio", "sink_weight", "support", "jacobian_norm")
SCHEMA = pl.Schema(
    {
        "mode": pl.String,
        "normalizer": pl.String,
        "calibration": pl.String,  # none, global or head
        "parameter": pl.String,  # what was calibrated, and its value where there is one for the model
        "value": pl.Float64,
        "length": pl.Int32,
        "n": pl.Int32,
        "perplexity": pl.Float64,
        "agreement": pl.Float64,
        "kl": pl.Float64,
        **dict.fromkeys(MEASURED, pl.Float64),
        "defined": pl.Float64,  # share of rows in which N keys have weight: the others have no separability
        "time_ratio": pl.Float64,
        "memory_ratio": pl.Float64,
    }
)


@dataclass(frozen=True, repr=False, eq=False)
class Comparison(Result):
    """The table of a comparison of normalizers, and the record of how it was made.

    >>> options = {"lengths": [32], "top_n": 5, "modes": ["what-if"], "progress": False}
    >>> comparison = attnscope.compare(normalizers=["sparsemax"], **options)
    >>> comparison.table.columns[:4]
    ['mode', 'normalizer', 'calibration', 'parameter']

    Attributes
    ----------
    table
        One line for each mode, normalizer, calibration and length (docs/swapping.md).
    run
        Model, text, settings, calibrated parameters.
    """

    table: pl.DataFrame
    run: dict[str, Any]

    @property
    def plot(self) -> ComparisonPlots:
        """Altair charts: `plot.capacity()`, `plot.curve("separability")`."""
        from attnscope.studies.compare.view import ComparisonPlots

        return ComparisonPlots(self)

    def write(self, folder: Path) -> None:
        """Write the table, its record and the chart of the capacity into a folder that is locked already."""
        from attnscope.show.figure_files import render
        from attnscope.studies.compare.view import capacity_figure

        files: dict[str, Callable[[Path], object]] = {"compare.parquet": self.table.write_parquet}
        if "swapped" in self.run["settings"]["modes"]:
            chart = capacity_figure(self.table).chart().to_json()
            files["capacity.vl.json"] = lambda path: path.write_text(chart, encoding="utf-8")
            for kind, body in zip(_PICTURES, render(chart), strict=True):
                files[f"capacity.{kind}"] = lambda path, body=body: path.write_bytes(body)  # type: ignore[misc]
        files["compare.json"] = as_file({"run": self.run, "table": without_infinities(self.table.to_dicts())})
        write_all(folder, files)
        for name in set(FILES) - set(files):  # those of an older comparison do not belong to this table
            (folder / name).unlink(missing_ok=True)
        name_kind(folder, "comparison")

    @classmethod
    def load(cls, folder: str | Path) -> Comparison:
        """Read a comparison that was saved before."""
        path = Path(folder)
        try:
            run = json.loads((path / "compare.json").read_text("utf-8"))["run"]
            return cls(pl.read_parquet(path / "compare.parquet", schema=SCHEMA), run)
        except (OSError, ValueError, KeyError, TypeError, pl.exceptions.PolarsError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise OutputError(f"{str(path)!r} is not a readable comparison: {reason}; compare again") from error

    def blocks(self, verbose: bool = False) -> list[Block]:
        """A verdict and tables; with `verbose` of all lengths."""
        from attnscope.studies.compare.view import blocks

        return blocks(self, verbose)

    def page_title(self) -> str:
        """What a browser calls the page."""
        return f"comparison of {short_path(self.run['model'])}"

    def calls(self) -> Sequence[str]:
        charts = (".plot.capacity()",) if "swapped" in self.table["mode"] else ()
        return (".summary()", ".table", *charts, '.plot.curve("separability")', ".show()", ".save(folder)")


@dataclass(frozen=True)
class _Subject:
    """One normalizer to compare: what is swapped in, and how it is measured."""

    label: str
    swapped: Any
    measured: Normalizer | None  # None where each head has its own
    calibrated: Calibrated | None = None
    scope: str = "none"


@refuses_after_fork
def compare(
    model: str | Path | PreTrainedModel | Model | None = None,
    text: str | Path | Text | None = None,
    normalizers: str | Sequence[str] = DEFAULT_NORMALIZERS,
    *,
    lengths: Sequence[int] | None = None,
    windows: int = 1,
    top_n: int = 20,
    modes: Mode | Sequence[Mode] = MODES,
    calibration: Scope | None = None,
    calibration_windows: int = 2,
    tokenizer: Any = None,
    device: str = "cpu",
    dtype: str = "float32",
    revision: str | None = None,
    trust_remote_code: bool = False,
    progress: Progress = None,
) -> Comparison:
    """Compare normalizers on a causal model and a text: fidelity, capacity, gradients, cost.

    >>> options = {"lengths": [32], "top_n": 5, "modes": ["what-if"], "progress": False}
    >>> comparison = attnscope.compare(normalizers=["sparsemax", "entmax:alpha=1.3"], **options)
    >>> comparison.table["normalizer"].to_list()
    ['own', 'sparsemax', 'entmax:alpha=1.3']

    Parameters
    ----------
    model, text, tokenizer, device, dtype, revision, trust_remote_code, progress
        As in `attnscope.scan`.
    normalizers
        One or several names with settings, e.g. "entmax:alpha=1.3"; a repeated name is measured once.
    lengths
        Prefixes of each window to report, in tokens. Default: powers of two up to the model's limit or 1,024.
    windows
        How many consecutive windows of the text to evaluate.
    top_n
        The size of the top set.
    modes
        "what-if" applies each normalizer to the original logits of every layer; "swapped" replaces it in the model, so
        that the change propagates.
    calibration
        Also fit each normalizer's parameter to the smallest KL divergence from the unmodified model: one value for all
        heads ("global") or one for each ("head").
    calibration_windows
        How many further windows to calibrate on.

    Returns
    -------
    Comparison
        With `table`, `plot`, `save(folder)`.
    """
    # Whatever is wrong is refused before the model is loaded.
    names = listed_names("normalizers", normalizers)
    for name in names:
        parse(name)
    chosen = listed_names("modes", modes, MODES)
    if calibration not in (None, *get_args(Scope)):
        raise InputError(f"{parameter('calibration')} takes global or head; received {shown(calibration)}")
    calibration_windows = whole_number("calibration_windows", calibration_windows)
    plan(None, None, lengths, [top_n], windows=windows)
    content = given_text(text)
    with reporting(progress, "loading the model") as report:
        model = resolve_model(
            model,
            tokenizer=tokenizer,
            device=device,
            dtype=dtype,
            revision=revision,
            trust_remote_code=trust_remote_code,
        )
        if not model.causal:
            raise InputError(f"{model.name} is an encoder; compare needs a model that predicts the next token")
        if model.module.get_output_embeddings() is None:
            raise InputError(
                f"{model.name} is a {type(model.module).__name__} without a language model head; compare needs one "
                "that predicts the next token"
            )
        settings = plan(model.positions, None, lengths, [top_n], windows=windows)
        comparison = _ComparisonRun(model, content, names, settings, chosen, report)
        return comparison.run(calibration, calibration_windows)


@dataclass
class _ComparisonRun:
    """One comparison: windows, calibration, scans, costs."""

    model: Model
    text: Text
    names: list[str]
    settings: Any
    modes: Sequence[str]
    report: OnStep
    done: int = 0
    total: int = 0

    def run(self, calibration: Scope | None, calibration_windows: int) -> Comparison:
        started = time.perf_counter()
        plain = [_Subject(name, parse(name), parse(name)) for name in self.names]
        size, count = self.settings.length, self.settings.windows
        extra = calibration_windows if calibration else 0
        choice = WindowChoice()
        tokens = tokenized(self.model, self.text, choice)
        windows = WindowTokens(tokens, tokens.starts(size, count + extra, choice), size)[:]
        inputs = [torch.tensor(ids, dtype=torch.int64) for ids in windows]
        inputs = [ids.to(self.model.module.device) for ids in inputs]
        module = self.model.module
        subjects = (2 if calibration else 1) * len(plain)
        self.total = (len(plain) if calibration else 0) + ("what-if" in self.modes)
        self.total += (1 + subjects * (count + 1)) if "swapped" in self.modes else 0
        with evaluating(module):
            calibrated = [self._calibrated(s, inputs[count:], calibration) for s in plain] if calibration else []
            lines = self._what_if([*plain, *calibrated]) if "what-if" in self.modes else []
            if "swapped" in self.modes:
                lines += self._swapped([*plain, *calibrated], inputs[:count])
        run = {
            "model": self.model.name,
            "family": self.model.family,
            "text": {"source": self.text.source, "sha256": self.text.digest},
            "normalizers": self.names,
            "settings": {**self.settings.as_json(), "modes": list(self.modes), "calibration": calibration or "none"},
            "calibration": [_record(s) for s in calibrated],
            "seconds": round(time.perf_counter() - started, 3),
        }
        return Comparison(pl.DataFrame(lines, schema=SCHEMA), run)

    def _advance(self, doing: str) -> None:
        """Report the next step before it is done."""
        self.report(Step(self.done, self.total, doing))
        self.done += 1

    def _calibrated(self, subject: _Subject, windows: list[Tensor], scope: Scope | None) -> _Subject:
        assert scope is not None
        assert subject.measured is not None
        self._advance(f"calibrating {subject.label}")
        best = calibrate(self.model.module, subject.measured, windows, scope)
        measured = best.normalizer if isinstance(best.normalizer, Normalizer) else None
        return _Subject(subject.label, best.normalizer, measured, best, scope)

    def _scan(self, subjects: list[_Subject]) -> tuple[ScanResult, list[_Subject]]:
        """A scan that measures these normalizers as what-ifs; those with settings per head are not possible."""
        measurable = [s for s in subjects if s.measured is not None]
        labels = [_Labelled(s.measured, f"{i}") for i, s in enumerate(measurable)]
        result = scan(
            self.model,
            self.text,
            length=self.settings.length,
            lengths=self.settings.lengths,
            top_n=self.settings.top_n,
            windows=self.settings.windows,
            normalizers=labels,
            progress=False,
        )
        return result, measurable

    def _what_if(self, subjects: list[_Subject]) -> list[dict[str, Any]]:
        self._advance("measuring what-ifs")
        result, measurable = self._scan(subjects)
        lines = [line for i, s in enumerate(measurable) for line in self._lines("what-if", s, result, f"{i}")]
        return [
            self._line("what-if", None, length) | _measured(result, OWN, length) for length in self._lengths
        ] + lines

    @property
    def _lengths(self) -> tuple[int, ...]:
        return tuple(self.settings.lengths)

    def _lines(self, mode: Mode, subject: _Subject, result: ScanResult, label: str) -> list[dict[str, Any]]:
        return [self._line(mode, subject, length) | _measured(result, label, length) for length in self._lengths]

    def _line(self, mode: Mode, subject: _Subject | None, length: int) -> dict[str, Any]:
        best = None if subject is None else subject.calibrated
        return {
            "mode": mode,
            "normalizer": OWN if subject is None else subject.label,
            "calibration": "none" if subject is None else subject.scope,
            "parameter": None if best is None else best.parameter,
            "value": None if best is None else best.value,
            "length": length,
            "n": self.settings.top_n[0],
        }

    def _swapped(self, subjects: list[_Subject], windows: list[Tensor]) -> list[dict[str, Any]]:
        module = self.model.module
        scores = [Fidelity() for _ in range(len(subjects) + 1)]
        with torch.no_grad():
            for number, ids in enumerate(windows):
                reference = next_token_logits(module, ids)
                scores[0].add(reference, reference, ids)
                for subject, score in zip(subjects, scores[1:], strict=True):
                    self._advance(f"window {number + 1} of {len(windows)}, {subject.label}")
                    with swap(module, subject.swapped):
                        score.add(next_token_logits(module, ids), reference, ids)
        lines: list[dict[str, Any]] = []
        for each, score in zip([None, *subjects], scores, strict=True):
            self._advance(f"measuring {OWN if each is None else each.label}")
            measured, cost = self._while_swapped(each, windows[0])
            for length in self._lengths:
                line = self._line("swapped", each, length) | score.at(length) | cost
                lines.append(line | _measured(measured, OWN, length))
        return lines

    def _while_swapped(self, subject: _Subject | None, ids: Tensor) -> tuple[ScanResult, dict[str, float]]:
        """A scan of the changed model, whose own normalizer is the swapped one, and what the change costs."""
        if subject is None:
            return self._scan([])[0], {"time_ratio": 1.0, "memory_ratio": 1.0}
        with swap(self.model.module, subject.swapped):
            result = self._scan([])[0]
        return result, self._cost(lambda: swap(self.model.module, subject.swapped), ids)

    def _cost(self, change: Callable[[], AbstractContextManager[Any]], ids: Tensor) -> dict[str, float]:
        """Time and memory of the swapped forward, as ratios to the model's own in the same run."""
        base = self.model.module.base_model

        def forward() -> None:
            base(input_ids=ids[None], use_cache=False)

        ratios = []
        with torch.no_grad():
            plain_peak = peak_bytes(forward)
            for _ in range(3):
                plain = _seconds(forward)
                with change():
                    ratios.append(_seconds(forward) / plain)
            with change():
                peak = peak_bytes(forward)
        return {"time_ratio": statistics.median(ratios), "memory_ratio": peak / plain_peak}


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


class _Labelled(Normalizer):
    """A normalizer with a different label, which names its lines in the scan's tables."""

    def __init__(self, inner: Normalizer | None, label: str) -> None:
        assert inner is not None
        self.inner, self.name, self.facts = inner, label, inner.facts  # type: ignore[misc]

    def weights(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        return self.inner.weights(logits, visible)

    def weight_bounds(self, length: int, low: float, high: float) -> tuple[float, float]:
        return self.inner.weight_bounds(length, low, high)

    def jacobian_norm(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        return self.inner.jacobian_norm(logits, visible)

    def jacobian_bound(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        return self.inner.jacobian_bound(logits, visible)

    def lipschitz(self, length: int) -> float:
        return self.inner.lipschitz(length)


def _measured(result: ScanResult, label: str, length: int) -> dict[str, float | None]:
    """Means over heads and windows of the rows at the end of the prefix."""
    rows = result.rows.filter(normalizer=label, position=length - 1)
    topn = within_support(rows, result.topn.filter(normalizer=label, position=length - 1))
    middle = (pl.col("expected_lower") + pl.col("expected_upper")) / 2
    sets = topn.select(
        pl.mean("separability"),
        distance_ratio=(pl.col("distance") / middle).mean(),
        defined=pl.col("separability").count() / rows.height,
    )
    means = rows.select(pl.mean("entropy_ratio", "sink_weight", "support", "jacobian_norm"))
    return {**sets.to_dicts()[0], **means.to_dicts()[0]}


def _record(subject: _Subject) -> dict[str, Any]:
    best = subject.calibrated
    assert best is not None
    return {
        "normalizer": subject.label,
        "parameter": best.parameter,
        "value": best.value,
        "kl_before": best.before,
        "kl_after": best.after,
        "evaluations": best.evaluations,
    }


class _Live(TorchDispatchMode):
    """Tracks every storage that operations allocate, until it is freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0
        self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {_address(t) for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and _address(tensor) not in known | self._seen:
                self._follow(tensor.untyped_storage())
        return result

    def _follow(self, storage: Any) -> None:
        address, size = storage._cdata, storage.nbytes()
        self._seen.add(address)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._freed, address, size)

    def _freed(self, address: int, size: int) -> None:
        self._seen.discard(address)
        self.now -= size


def _address(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def peak_bytes(work: Callable[[], object]) -> int:
    """The largest number of bytes in tensors allocated by `work` that were alive at one time."""
    with _Live() as live:
        work()
    return live.peak
