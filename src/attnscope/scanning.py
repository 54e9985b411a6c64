"""Scan a model: capture and measure layer by layer, window by window, and fill the tables.

In a causal model the last row of the prefix of length L is row L-1 of the full window, so one forward gives
every length at once. In an encoder every token sees every other, and each length needs a forward of its own.
Rows are measured in blocks that keep within the memory budget, and dropped before the next layer runs.
"""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl
import torch

from attnscope import __version__, tables
from attnscope.capture.forward import forward
from attnscope.capture.huggingface import RECORD
from attnscope.capture.inputs import special_tokens, window_tokens
from attnscope.capture.models import Model, load_model
from attnscope.capture.text import Text, read_text, token_texts, tokenize
from attnscope.capture.vectors import VectorKind, VectorSource
from attnscope.errors import InputError, ModelError
from attnscope.measure import Layer, Rows, columns
from attnscope.normalizers import Normalizer, SinkSoftmax, Softmax, Tempered
from attnscope.planning import DEFAULT_MEMORY, RowChoice, Settings, plan
from attnscope.swapping.measured import own_normalizer

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor
    from transformers import PreTrainedModel

    from attnscope.capture.attention import Call
    from attnscope.diagnosis.thresholds import Thresholds

# delta looks at all pairs of keys: in longer rows it and the columns made of it are missing.
DELTA_KEYS = 8192
# Arrays of heads x rows x keys in float64 that measuring a block of rows holds at one time, at most.
_COPIES = 12

# Weights of a head's row that the report shows over the text.
_SHOWN_WEIGHTS = 64


class Step(NamedTuple):
    """How far a scan has come: layers done of all, and where it is."""

    done: int
    total: int
    window: int
    windows: int
    layer: int
    doing: str = ""  # what goes on beside scanning


Progress = Callable[[Step], None]
"""Called after each layer, and after each step of a diagnosis."""


@dataclass(frozen=True)
class ScanResult:
    """The tables of a scan and the record of how it was run."""

    rows: pl.DataFrame
    topn: pl.DataFrame
    run: dict[str, Any]
    shown: tables.Shown | None = None
    findings: dict[str, Any] | None = None  # what a diagnosis found, if one was asked for

    @property
    def skipped_heads(self) -> list[dict[str, Any]]:
        """Heads left out of the tables, with the reason."""
        skipped: list[dict[str, Any]] = self.run["skipped_heads"]
        return skipped

    def save(self, folder: str | Path) -> Path:
        """Write the tables, `run.json` and `report.html` to a folder."""
        with tables.output_folder(Path(folder)) as place:
            self._write(place)
        return place

    def _write(self, place: Path) -> None:
        from attnscope.report.page import render

        tables.save_findings(place, self.findings)
        report = render(self.rows, self.topn, self.run, findings=self.findings, shown=self.shown)
        tables.save_run(place, self.rows, self.topn, self.run, report, self.shown)

    @classmethod
    def load(cls, folder: str | Path) -> ScanResult:
        """Read a run that was saved before."""
        place = Path(folder)
        return cls(*tables.load_run(place), shown=tables.load_shown(place), findings=tables.load_findings(place))


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
        job = _Scan(model, text, settings, progress, time.perf_counter() - started)
        diagnosis = _diagnosis(job, verify, thresholds) if diagnose or verify else None
        if folder is None:
            return _diagnosed(job.run(None), diagnosis)
        with tables.Parts(folder, job.identity()) as parts:
            result = _diagnosed(job.run(parts), diagnosis)
            result._write(folder)
            parts.clear()
        return result


def _diagnosis(job: _Scan, verify: bool, thresholds: Thresholds | None) -> Callable[[ScanResult], dict[str, Any]]:
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


def what_ifs(settings: Settings, own: Normalizer, sinks: Tensor | None = None) -> Iterator[tuple[str, Normalizer]]:
    """The other normalizers that were asked for by label, and they and the model's own at each temperature."""
    yield from settings.normalizers.items()
    for temperature in settings.temperatures:
        # The sink is a logit too: it is divided like the others.
        cooled = own if sinks is None else SinkSoftmax(sinks / temperature)
        for label, normalizer in {tables.OWN: cooled, **settings.normalizers}.items():
            yield f"{label}:temperature={temperature:g}", Tempered(normalizer, temperature)


@dataclass
class _Window:
    """What one window leaves behind while the model runs."""

    number: int
    rows: list[pl.DataFrame] = field(default_factory=list)
    topn: list[pl.DataFrame] = field(default_factory=list)
    weights: dict[int, pl.DataFrame] = field(default_factory=dict)  # of the last row, by layer
    last: int = -1  # the last row wanted of the input at work
    skipped: dict[tuple[int, int], str] = field(default_factory=dict)
    heads: dict[int, dict[str, Any]] = field(default_factory=dict)
    dropped_rows: int = 0

    def part(self) -> tables.Part:
        """The window's tables without the heads that were skipped, and its notes."""
        notes = {
            "skipped": [
                {"layer": layer, "head": head, "window": self.number, "reason": reason}
                for (layer, head), reason in sorted(self.skipped.items())
            ],
            "heads": [self.heads[layer] for layer in sorted(self.heads)],
            "dropped_rows": self.dropped_rows,
        }
        order = ("layer", "head", "position", "length", "normalizer")
        return tables.Part(
            self._table(tables.ROWS, self.rows).sort(order),
            self._table(tables.TOPN, self.topn).sort(*order, "n"),
            self._table(tables.WEIGHTS, list(self.weights.values())).sort("layer", maintain_order=True),
            notes,
        )

    def _table(self, schema: pl.Schema, pieces: list[pl.DataFrame]) -> pl.DataFrame:
        table = pl.concat([pl.DataFrame(schema=schema), *pieces])
        if self.skipped:
            left_out = pl.DataFrame(list(self.skipped), schema={"layer": pl.Int32, "head": pl.Int32}, orient="row")
            table = table.join(left_out, on=["layer", "head"], how="anti")
        return table


@dataclass
class _Scan:
    """One scan in progress."""

    model: Model
    text: Text
    settings: Settings
    progress: Progress | None
    loading: float
    measuring: float = 0.0

    def identity(self) -> dict[str, Any]:
        """Whatever decides the numbers of the tables: two runs that agree in it can share windows."""
        module = self.model.module
        digest = hashlib.sha256()
        for name, parameter in module.state_dict().items():
            flat = parameter.reshape(-1)
            some = flat[:: max(1, flat.numel() // 64)].to(torch.float64)
            digest.update(f"{name} {tuple(parameter.shape)} {some.cpu().numpy().tobytes().hex()}".encode())
        return {
            "schema": tables.SCHEMA_VERSION,
            "attnscope": __version__,
            "torch": torch.__version__,
            "weights": digest.hexdigest(),
            "attention": module.config._attn_implementation,
            "swap": getattr(module.config, RECORD, None),
            "text": self.text.digest,
            "settings": self.settings.as_json(),
            "parameters": {label: repr(vars(n)) for label, n in self.settings.normalizers.items()},
        }

    def run(self, parts: tables.Parts | None) -> ScanResult:
        started = time.perf_counter()
        tokens = self.tokens
        plans = [self._forwards(window) for window in self._windows(tokens)]
        done = [self._window(number, forwards, parts) for number, forwards in enumerate(plans)]
        timings = {
            "load_seconds": round(self.loading, 3),
            "scan_seconds": round(time.perf_counter() - started, 3),
            "measure_seconds": round(self.measuring, 3),
        }
        rows = pl.concat([part.rows for part in done])
        topn = pl.concat([part.topn for part in done])
        shown = tables.Shown(done[0].weights, *token_texts(self.model.tokenizer, plans[0][-1][0]))
        return ScanResult(rows, topn, self._record(len(tokens), timings, [part.notes for part in done]), shown=shown)

    def _window(
        self, number: int, forwards: list[tuple[list[int], tuple[int, ...]]], parts: tables.Parts | None
    ) -> tables.Part:
        """One window, measured now or taken from an earlier run that was interrupted."""
        kept = None if parts is None else parts.get(number)
        if kept is not None:
            return kept
        window = _Window(number)
        module = self.model.module
        training = module.training
        module.eval()
        source = VectorSource(module, self.settings.vectors)
        try:
            for index, (ids, positions) in enumerate(forwards):
                self._forward(window, ids, positions, source, index, len(forwards))
        finally:
            source.close()
            module.train(training)
        part = window.part()
        if parts is not None and self.settings.windows > 1:
            parts.add(number, part)
        return part

    @cached_property
    def tokens(self) -> list[int]:
        """The text's tokens."""
        return tokenize(self.model.tokenizer, self.text)

    def _windows(self, tokens: list[int]) -> list[list[int]]:
        settings = self.settings
        return window_tokens(self.model, tokens, settings.length, settings.windows, settings.bos, self.text.source)

    def _forwards(self, window: list[int]) -> list[tuple[list[int], tuple[int, ...]]]:
        """The inputs to run for a window, each with the positions of the rows wanted from it."""
        settings = self.settings
        if self.model.causal:
            last = tuple(length - 1 for length in settings.lengths)
            return [(window, last if settings.rows == "last" else settings.positions(len(window)))]
        before, behind = special_tokens(self.model.tokenizer)
        extra = len(before) + len(behind)
        if settings.lengths[0] <= extra:
            raise InputError(f"--lengths {settings.lengths[0]} leaves no room beside the {extra} special tokens")
        return [
            ([*before, *window[: length - extra], *behind], settings.positions(length)) for length in settings.lengths
        ]

    def _forward(
        self,
        window: _Window,
        ids: list[int],
        positions: tuple[int, ...],
        source: VectorSource,
        index: int,
        forwards: int,
    ) -> None:
        layers = self.model.module.config.get_text_config().num_hidden_layers
        window.last = positions[-1]
        calls = 0

        def collect(call: Call) -> None:
            nonlocal calls
            started = time.perf_counter()
            layer = source.layer(call.module, calls)
            self._measure(window, layer, call, positions, source)
            self.measuring += time.perf_counter() - started
            calls += 1
            if self.progress is not None:
                total = self.settings.windows * forwards * layers
                done = (window.number * forwards + index) * layers + min(calls, layers)
                self.progress(Step(done, total, window.number, self.settings.windows, layer))

        forward(self.model, ids, collect)

    def _measure(
        self, window: _Window, layer: int, call: Call, positions: tuple[int, ...], source: VectorSource
    ) -> None:
        """Measure the wanted rows of one attention call, in blocks that keep within the memory budget."""
        vectors = source.vectors(call)
        shared = Layer(vectors)
        heads, keys = call.heads, call.keys
        window.heads[layer] = source.entry(call, layer)
        own = own_normalizer(call)
        size = max(1, self.settings.memory_budget // (heads * keys * 8 * _COPIES))
        start = 0
        while start < len(positions):
            block = positions[start : start + size]
            try:
                rows = Rows(layer, block, call.logits(block), call.visible(block), vectors, call.sinks, shared)
                self._block(window, rows, own)
            except (MemoryError, RuntimeError) as error:
                if not _out_of_memory(error):
                    raise
                if len(block) > 1:
                    size = len(block) // 2
                    continue
                reason = f"out of memory on a single row of {keys} keys"
                window.skipped.update({(layer, head): reason for head in range(heads)})
                return
            start += len(block)

    def _block(self, window: _Window, rows: Rows, own: Normalizer) -> None:
        if self.model.causal:
            self._check_causal(rows)
        usable = self._usable_heads(rows, window)
        length = rows.visible.sum(-1)
        kept = usable[:, None] & (length > 0)
        window.dropped_rows += int((usable[:, None] & (length == 0)).sum())
        keys = self._keys(rows, window.number, length)
        counts = torch.tensor(self.settings.top_n, device=length.device)
        wide = {name: value.unsqueeze(-1) for name, value in keys.items()} | {"n": counts.expand(*length.shape, -1)}
        kept_sets = kept.unsqueeze(-1) & (counts < length.unsqueeze(-1))
        of_rows, of_topn = len(window.rows), len(window.topn)  # where the model's own comes first
        plain = isinstance(own, Softmax)
        for label, normalizer in self._normalizers(rows, own):
            if plain and label != tables.OWN and isinstance(normalizer, Softmax) and normalizer.temperature == 1:
                window.rows.append(window.rows[of_rows].with_columns(normalizer=pl.lit(label)))
                window.topn.append(window.topn[of_topn].with_columns(normalizer=pl.lit(label)))
                continue
            weights = normalizer.weights(rows.logits, rows.visible)
            per_row, per_set = columns(rows, weights, self.settings.top_n, DELTA_KEYS)
            if label != tables.OWN or not isinstance(own, Softmax | SinkSoftmax):
                per_row["jacobian_norm"] = normalizer.jacobian_norm(rows.logits, rows.visible)
                per_row["jacobian_bound"] = normalizer.jacobian_bound(rows.logits, rows.visible)
            window.rows.append(_frame(keys | per_row, kept, label, tables.ROWS))
            window.topn.append(_frame(wide | per_set, kept_sets, label, tables.TOPN))
            if label == tables.OWN and window.number == 0 and rows.positions[-1] == window.last:
                # An encoder runs once for each length: the longest comes last and stays.
                window.weights[rows.layer] = _largest(weights[:, -1], {name: key[:, -1:] for name, key in keys.items()})

    def _normalizers(self, rows: Rows, own: Normalizer) -> Iterator[tuple[str, Normalizer]]:
        """The model's own normalizer as it runs, the what-ifs, and each of them at each temperature."""
        yield tables.OWN, own
        yield from what_ifs(self.settings, own, None if rows.sinks is None else rows.sinks[:, None])

    def _keys(self, rows: Rows, window: int, length: Tensor) -> dict[str, Tensor]:
        device = length.device
        return {
            "window": torch.full_like(length, window),
            "layer": torch.full_like(length, rows.layer),
            "head": torch.arange(rows.heads, device=device)[:, None].expand_as(length),
            "position": torch.tensor(rows.positions, device=device).expand_as(length),
            "length": length,
        }

    def _check_causal(self, rows: Rows) -> None:
        places = torch.arange(rows.visible.shape[-1], device=rows.visible.device)
        later = places > torch.tensor(rows.positions, device=places.device)[:, None]
        if (rows.visible & later).any():
            raise ModelError(
                f"layer {rows.layer} of {self.model.name} ({self.model.family}) sees later tokens, so it is not "
                "causal as its class says; attnscope cannot take every length from one forward"
            )

    def _usable_heads(self, rows: Rows, window: _Window) -> Tensor:
        """Which heads have finite logits and vectors; the others are recorded and left out."""
        logits, vectors = _finite(rows.logits), _finite(rows.vectors)
        if not logits.all():  # perhaps only where nobody looks
            logits = _finite(torch.where(rows.visible, rows.logits, 0))
        vectors = vectors.repeat_interleave(rows.heads // len(rows.vectors))
        for name, finite in (("logits", logits), ("vectors", vectors)):
            for head in (~finite).nonzero().flatten().tolist():
                window.skipped.setdefault((rows.layer, head), f"{name} not finite")
        return logits & vectors

    def _record(self, tokens: int, timings: dict[str, float], notes: list[dict[str, Any]]) -> dict[str, Any]:
        module = self.model.module
        skipped = {(entry["layer"], entry["head"]): entry for note in reversed(notes) for entry in note["skipped"]}
        heads = {entry["layer"]: entry for note in notes for entry in note["heads"]}
        return {
            "schema": tables.SCHEMA_VERSION,
            "attnscope": __version__,
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "model": {
                "name": self.model.name,
                "revision": self.model.revision,
                "family": self.model.family,
                "class": type(module).__name__,
                "attention": module.config._attn_implementation,
                "swap": getattr(module.config, RECORD, None),
                "dtype": str(module.dtype).removeprefix("torch."),
                "device": str(module.device),
                "parameters": sum(p.numel() for p in module.parameters()),
                "heads": [heads[layer] for layer in sorted(heads)],
            },
            "text": {
                "source": self.text.source,
                "sha256": self.text.digest,
                "characters": len(self.text.content),
                "tokens": tokens,
            },
            "settings": self.settings.as_json(),
            "delta_keys": DELTA_KEYS,
            "versions": {
                "python": platform.python_version(),
                **{name: version(name) for name in ("torch", "transformers", "polars", "numpy")},
            },
            "timings": timings,
            "skipped_heads": [skipped[key] for key in sorted(skipped)],
            "dropped_rows": sum(note["dropped_rows"] for note in notes),
        }


def _finite(values: Tensor) -> Tensor:
    """For each of the first axis, whether all values are finite: one pass, as a sum keeps what is not."""
    sums = values.flatten(1).sum(-1)
    return sums.isfinite() if sums.isfinite().all() else values.flatten(1).isfinite().all(-1)


def _out_of_memory(error: Exception) -> bool:
    """Whether an allocation failed; torch says so on the CPU in words alone."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _largest(weights: Float[Tensor, "heads keys"], keys: dict[str, Tensor]) -> pl.DataFrame:
    """The largest weights of one row of every head, the larger first; weights of zero are left out."""
    weight, key = weights.topk(min(_SHOWN_WEIGHTS, weights.shape[-1]))
    return _frame(keys | {"key": key, "weight": weight}, weight > 0, tables.OWN, tables.WEIGHTS)


def _frame(columns: dict[str, Tensor], kept: Tensor, label: str, schema: pl.Schema) -> pl.DataFrame:
    """A table of the entries that are kept; NaN becomes a missing value."""
    numbers = [name for name in schema if name != "normalizer"]
    data = {name: torch.broadcast_to(columns[name], kept.shape)[kept].cpu().numpy() for name in numbers}
    table = pl.DataFrame(data, nan_to_null=True).with_columns(normalizer=pl.lit(label))
    return table.select(schema.names()).cast(schema)
