"""Scan a model: plan the windows, capture and measure layer by layer, fill the tables.

In a causal model the last row of the prefix of length L is row L-1 of the full window, so one forward gives
every length at once. In an encoder every token sees every other, and each length needs a forward of its own.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import torch

from attnscope import __version__, tables
from attnscope.capture.forward import forward
from attnscope.capture.models import Model, load_model
from attnscope.capture.text import Text, read_text, tokenize, windows
from attnscope.capture.vectors import VECTOR_KINDS, VectorKind, VectorSource
from attnscope.errors import InputError, ModelError
from attnscope.measure.rows import Rows, row_columns, softmax_weights
from attnscope.measure.topn import topn_columns

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from attnscope.capture.attention import Call

DEFAULT_LENGTH = 1024
DEFAULT_LENGTHS = (32, 64, 128, 256, 512, 1024)
DEFAULT_TOP_N = (1, 5, 10, 20, 100)

Progress = Callable[[int, int], None]
"""Called with (layers done, layers in all) after each layer."""


@dataclass(frozen=True)
class Settings:
    """What a scan measures."""

    length: int
    lengths: tuple[int, ...]
    top_n: tuple[int, ...]
    windows: int = 1
    vectors: VectorKind = "value"
    bos: bool = False


@dataclass(frozen=True)
class ScanResult:
    """The tables of a scan and the record of how it was run."""

    rows: pl.DataFrame
    topn: pl.DataFrame
    run: dict[str, Any]

    @property
    def skipped_heads(self) -> list[dict[str, Any]]:
        """Heads left out of the tables, with the reason."""
        skipped: list[dict[str, Any]] = self.run["skipped_heads"]
        return skipped

    def save(self, folder: str | Path) -> Path:
        """Write the tables, `run.json` and `report.html` to a folder."""
        from attnscope.report.page import render

        with tables.output_folder(Path(folder)) as place:
            tables.save_run(place, self.rows, self.topn, self.run, render(self.rows, self.topn, self.run))
        return place

    @classmethod
    def load(cls, folder: str | Path) -> ScanResult:
        """Read a run that was saved before."""
        return cls(*tables.load_run(Path(folder)))


def scan(
    model: str | Path | PreTrainedModel | Model | None = None,
    text: str | Path | Text | None = None,
    *,
    tokenizer: Any = None,
    length: int | None = None,
    lengths: Sequence[int] | None = None,
    top_n: Sequence[int] | None = None,
    vectors: VectorKind = "value",
    windows: int = 1,
    bos: bool = False,
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
    """
    started = time.perf_counter()
    if not isinstance(model, Model):
        model = load_model(model, tokenizer=tokenizer, device=device, dtype=dtype, revision=revision)
    if isinstance(text, str):
        text = Text(text, "the string given")
    elif not isinstance(text, Text):
        text = read_text(text)
    settings = plan(model.positions, length, lengths, top_n, vectors, windows, bos)
    return _Scan(model, text, settings, progress).run(time.perf_counter() - started)


def plan(
    positions: int | None,
    length: int | None = None,
    lengths: Sequence[int] | None = None,
    top_n: Sequence[int] | None = None,
    vectors: str = "value",
    windows: int = 1,
    bos: bool = False,
) -> Settings:
    """Fill in what was not asked for, and refuse what cannot be."""
    if length is not None:
        _whole_numbers("--length", [length])
    lengths, top_n = _whole_numbers("--lengths", lengths), _whole_numbers("--top-n", top_n)
    _whole_numbers("--windows", [windows])
    if vectors not in VECTOR_KINDS:
        raise InputError(f"unknown vectors {vectors!r}; use one of {', '.join(VECTOR_KINDS)}")
    size = length or (max(lengths) if lengths else min(DEFAULT_LENGTH, positions or DEFAULT_LENGTH))
    if positions is not None and size > positions:
        raise InputError(f"length {size} is beyond the model's {positions} positions; use --length {positions} or less")
    if lengths and max(lengths) > size:
        raise InputError(f"--lengths asks for {max(lengths)}, more than the window of {size} tokens; raise --length")
    chosen = sorted(set(lengths)) if lengths else sorted({n for n in DEFAULT_LENGTHS if n < size} | {size})
    longest = chosen[-1]
    if top_n and max(top_n) >= longest:
        raise InputError(
            f"--top-n {max(top_n)} leaves nothing out of a row of {longest} keys; use a value below {longest}"
        )
    counts = sorted(set(top_n)) if top_n else [n for n in DEFAULT_TOP_N if n < longest]
    if not counts:
        raise InputError(f"a row of {longest} key has no top set to leave out; use a length of at least 2")
    return Settings(size, tuple(chosen), tuple(counts), windows, vectors, bos)  # type: ignore[arg-type]


def _whole_numbers(name: str, values: Any) -> list[int] | None:
    """The values as a list, every one a whole number from 1 up."""
    if values is None:
        return None
    found = list(values) if isinstance(values, Iterable) and not isinstance(values, str) else [values]
    wrong = [value for value in found if not isinstance(value, int) or isinstance(value, bool) or value < 1]
    if wrong:
        raise InputError(f"{name} takes whole numbers from 1 up; received {wrong[0]!r}")
    if not found:
        raise InputError(f"{name} takes at least one number; received none")
    return found


@dataclass
class _Scan:
    """One scan in progress: collects the tables' pieces while the model runs."""

    model: Model
    text: Text
    settings: Settings
    progress: Progress | None
    rows: list[pl.DataFrame] = field(default_factory=list)
    topn: list[pl.DataFrame] = field(default_factory=list)
    skipped: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    dropped_rows: int = 0
    measuring: float = 0.0
    heads: dict[int, dict[str, Any]] = field(default_factory=dict)

    def run(self, loading: float) -> ScanResult:
        started = time.perf_counter()
        tokens = tokenize(self.model.tokenizer, self.text)
        inputs = self._windows(tokens)
        forwards = [(w, ids, rows) for w, window in enumerate(inputs) for ids, rows in self._forwards(window)]
        module = self.model.module
        training = module.training
        module.eval()
        source = VectorSource(module, self.settings.vectors)
        try:
            for index, (window, ids, positions) in enumerate(forwards):
                self._forward(window, ids, positions, source, index, len(forwards))
        finally:
            source.close()
            module.train(training)
        timings = {
            "load_seconds": round(loading, 3),
            "scan_seconds": round(time.perf_counter() - started, 3),
            "measure_seconds": round(self.measuring, 3),
        }
        order = ["window", "layer", "head", "position"]
        rows = pl.concat([pl.DataFrame(schema=tables.ROWS), *self.rows]).sort(order)
        topn = pl.concat([pl.DataFrame(schema=tables.TOPN), *self.topn]).sort([*order, "n"])
        return ScanResult(rows, topn, self._record(len(tokens), timings))

    def _windows(self, tokens: list[int]) -> list[list[int]]:
        """The windows as the model sees them, special tokens included."""
        tokenizer, size = self.model.tokenizer, self.settings.length
        if not self.model.causal:
            if self.settings.bos:
                raise InputError(
                    f"--bos: {self.model.name} is an encoder with special tokens of its own; leave --bos out"
                )
            inner = size - len(self._special[0]) - len(self._special[1])
            return windows(tokens, inner, self.settings.windows, self.text.source)
        if not self.settings.bos:
            return windows(tokens, size, self.settings.windows, self.text.source)
        if tokenizer.bos_token_id is None:
            raise InputError(f"--bos: the tokenizer of {self.model.name} has no begin token; leave --bos out")
        plain = windows(tokens, size - 1, self.settings.windows, self.text.source)
        return [[tokenizer.bos_token_id, *window] for window in plain]

    @cached_property
    def _special(self) -> tuple[list[int], list[int]]:
        """The special tokens that the model's tokenizer puts before and behind a text."""
        inner = tokenize(self.model.tokenizer, Text("a", "probe"))
        full = list(self.model.tokenizer("a")["input_ids"])
        start = next(i for i in range(len(full)) if full[i : i + len(inner)] == inner)
        return full[:start], full[start + len(inner) :]

    def _forwards(self, window: list[int]) -> list[tuple[list[int], tuple[int, ...]]]:
        """The inputs to run for a window, each with the positions of the rows wanted from it."""
        lengths = self.settings.lengths
        if self.model.causal:
            return [(window, tuple(length - 1 for length in lengths))]
        before, behind = self._special
        extra = len(before) + len(behind)
        if lengths[0] <= extra:
            raise InputError(f"--lengths {lengths[0]} leaves no room beside the {extra} special tokens")
        return [([*before, *window[: length - extra], *behind], (length - 1,)) for length in lengths]

    def _forward(
        self,
        window: int,
        ids: list[int],
        positions: tuple[int, ...],
        source: VectorSource,
        index: int,
        forwards: int,
    ) -> None:
        layers = self.model.module.config.get_text_config().num_hidden_layers
        calls = 0

        def collect(call: Call) -> None:
            nonlocal calls
            started = time.perf_counter()
            self._measure(window, call, positions, source, calls)
            self.measuring += time.perf_counter() - started
            calls += 1
            if self.progress is not None:
                self.progress(index * layers + min(calls, layers), forwards * layers)

        forward(self.model, ids, collect)

    def _measure(
        self, window: int, call: Call, positions: tuple[int, ...], source: VectorSource, order: int
    ) -> None:
        layer = source.layer(call.module, order)
        rows = Rows(
            layer,
            positions,
            call.logits(positions),
            call.visible(positions),
            source.vectors(call),
            call.sinks,
        )
        self.heads[layer] = source.entry(call, layer)
        if self.model.causal:
            self._check_causal(rows)
        usable = self._usable_heads(rows, window)
        weights = softmax_weights(rows)
        per_row = row_columns(rows, weights)
        per_set = topn_columns(rows, weights, self.settings.top_n)
        length = per_row["length"]
        kept = usable[:, None] & (length > 0)
        self.dropped_rows += int((usable[:, None] & (length == 0)).sum())
        keys = self._keys(rows, window, per_row.pop("length"))
        self.rows.append(_frame(keys | per_row, kept, tables.ROWS))
        counts = torch.tensor(self.settings.top_n, device=length.device)
        wide = {name: value.unsqueeze(-1) for name, value in keys.items()} | {"n": counts.expand(*length.shape, -1)}
        self.topn.append(_frame(wide | per_set, kept.unsqueeze(-1) & (counts < length.unsqueeze(-1)), tables.TOPN))

    def _keys(self, rows: Rows, window: int, length: torch.Tensor) -> dict[str, torch.Tensor]:
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

    def _usable_heads(self, rows: Rows, window: int) -> torch.Tensor:
        """Which heads have finite logits and vectors; the others are recorded and left out."""
        logits = torch.where(rows.visible, rows.logits, 0).isfinite().all(-1).all(-1)
        vectors = rows.vectors.isfinite().all(-1).all(-1).repeat_interleave(rows.heads // len(rows.vectors))
        for name, finite in (("logits", logits), ("vectors", vectors)):
            for head in (~finite).nonzero().flatten().tolist():
                entry = {"layer": rows.layer, "head": head, "window": window, "reason": f"{name} not finite"}
                self.skipped.setdefault((rows.layer, head), entry)
        return logits & vectors

    def _record(self, tokens: int, timings: dict[str, float]) -> dict[str, Any]:
        module, settings = self.model.module, self.settings
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
                "dtype": str(module.dtype).removeprefix("torch."),
                "device": str(module.device),
                "parameters": sum(p.numel() for p in module.parameters()),
                "heads": [self.heads[layer] for layer in sorted(self.heads)],
            },
            "text": {
                "source": self.text.source,
                "sha256": self.text.digest,
                "characters": len(self.text.content),
                "tokens": tokens,
            },
            "settings": {
                "length": settings.length,
                "lengths": list(settings.lengths),
                "top_n": list(settings.top_n),
                "windows": settings.windows,
                "vectors": settings.vectors,
                "bos": settings.bos,
                "rows": "last",
                "normalizer": "softmax",
            },
            "versions": {
                "python": platform.python_version(),
                **{name: version(name) for name in ("torch", "transformers", "polars", "numpy")},
            },
            "timings": timings,
            "skipped_heads": [self.skipped[key] for key in sorted(self.skipped)],
            "dropped_rows": self.dropped_rows,
        }


def _frame(columns: dict[str, torch.Tensor], kept: torch.Tensor, schema: pl.Schema) -> pl.DataFrame:
    """A table of the entries that are kept; NaN becomes a missing value."""
    data = {name: torch.broadcast_to(columns[name], kept.shape)[kept].cpu().numpy() for name in schema}
    return pl.DataFrame(data, nan_to_null=True).cast(schema)
