"""Measure the wanted rows of attention calls and collect them as lines of the tables.

Rows are measured in blocks that keep within the memory budget. If a block does not fit into memory after all it is
halved; a layer of which not even one row fits is left out and named.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import torch

from attnscope import tables
from attnscope.capture.models import Model, PlainModel
from attnscope.errors import ModelError
from attnscope.measure import LayerVectors, Rows, Visibility, all_finite, arrays, to_array
from attnscope.normalizers import Normalizer, SinkSoftmax, Softmax, Tempered
from attnscope.planning import Settings
from attnscope.scanning.column_blocks import ColumnBlock, table
from attnscope.swapping.effective_normalizer import effective_normalizer

if TYPE_CHECKING:
    from jaxtyping import Float
    from numpy.typing import NDArray
    from torch import Tensor

    from attnscope.capture.attention import Call
    from attnscope.capture.vectors import VectorSource

# Arrays of heads x rows x keys in float64 that measuring a block of rows holds at one time, at most.
_COPIES = {"cpu": 4}
_COPIES_ELSEWHERE = 12

# Shorter blocks see fewer keys, longer ones have more to share out to threads.
_MOST_ROWS = 256

# Weights of a head's row that the report shows over the text.
_SHOWN_WEIGHTS = 64


def what_ifs(settings: Settings, own: Normalizer, sinks: Tensor | None = None) -> Iterator[tuple[str, Normalizer]]:
    """The other normalizers that were asked for by label, and they and the model's own at each temperature."""
    yield from settings.normalizers.items()
    for temperature in settings.temperatures:
        # The sink is a logit too: it is divided like the others.
        tempered = own if sinks is None else SinkSoftmax(sinks / temperature)
        for label, normalizer in {tables.OWN: tempered, **settings.normalizers}.items():
            short = f"{temperature:g}"
            number = short if float(short) == temperature else repr(temperature)  # two that differ keep two names
            yield f"{label}:temperature={number}", Tempered(normalizer, temperature)


@dataclass
class Window:
    """What one window leaves behind while the model runs."""

    number: int
    rows: list[ColumnBlock] = field(default_factory=list)
    topn: list[ColumnBlock] = field(default_factory=list)
    weights: dict[int, ColumnBlock] = field(default_factory=dict)  # of the last row, by layer
    last: int = -1  # the last row wanted of the input at work
    skipped: dict[tuple[int, int], str] = field(default_factory=dict)
    heads: dict[int, dict[str, Any]] = field(default_factory=dict)
    dropped_rows: int = 0
    _seen: Visibility | None = field(default=None, init=False, repr=False)
    _mask_key: Hashable = field(default=None, init=False, repr=False)

    def seen(self, call: Call, positions: tuple[int, ...]) -> Visibility:
        """Which keys the rows of a call see, kept for the next layer that sees the same."""
        mask_key = None if call.mask_key is None else (call.mask_key, positions)
        if self._seen is None or mask_key is None or mask_key != self._mask_key:
            visible = call.visible(positions)
            if self._seen is None or not self._seen.of_all_heads(visible):
                self._seen = Visibility(visible)
        self._mask_key = mask_key
        return self._seen

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
        found = {
            "rows": self._table(tables.ROWS, self.rows, order),
            "topn": self._table(tables.TOPN, self.topn, (*order, "n")),
            "weights": self._table(tables.WEIGHTS, list(self.weights.values()), ("layer",)),
        }
        return tables.Part(found, notes)

    def _table(self, schema: pl.Schema, lines: list[ColumnBlock], order: tuple[str, ...]) -> pl.DataFrame:
        found = table(lines, schema, order)
        if self.skipped:
            left_out = pl.DataFrame(list(self.skipped), schema={"layer": pl.Int32, "head": pl.Int32}, orient="row")
            found = found.join(left_out, on=["layer", "head"], how="anti", maintain_order="left")
        return found


@dataclass(frozen=True)
class Measuring:
    """Measures attention calls as the settings say."""

    model: Model | PlainModel
    settings: Settings

    def measure(self, window: Window, layer: int, call: Call, positions: tuple[int, ...], source: VectorSource) -> None:
        """Measure the wanted rows of one attention call, in blocks that keep within the memory budget."""
        vectors = source.vectors(call)
        shared = LayerVectors(vectors)
        heads, keys = call.heads, call.keys
        window.heads[layer] = source.entry(call, layer)
        own = effective_normalizer(call)
        copies = _COPIES.get(vectors.device.type, _COPIES_ELSEWHERE)
        size = max(1, min(_MOST_ROWS, self.settings.memory_budget // (heads * keys * 8 * copies)))
        start = 0
        while start < len(positions):
            block = positions[start : start + size]
            try:
                seen = window.seen(call, block)
                if self.model.causal:
                    self._check_causal(layer, block, seen)
                stop = max(1, int(seen.ends.max()))  # what no row sees need not be computed
                logits = call.logits(block, keys=stop)
                rows = Rows(layer, block, logits, seen.visible[..., :stop], vectors, call.sinks, shared, seen)
                self._block(window, rows, seen.length, shared, own)
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

    def _block(
        self, window: Window, rows: Rows, length: NDArray[np.int64], shared: LayerVectors, own: Normalizer
    ) -> None:
        keys = self._keys(rows, window.number, length)
        counts = np.array(self.settings.top_n)
        wide = {name: value[..., None] for name, value in keys.items()} | {"n": counts}
        kept = length > 0
        found: dict[str, tuple[ColumnBlock, ColumnBlock]] = {}
        plain = isinstance(own, Softmax)
        for label, normalizer in self._normalizers(rows, own):
            if plain and label != tables.OWN and isinstance(normalizer, Softmax) and normalizer.temperature == 1:
                of_rows, of_sets = found[tables.OWN]
                found[label] = of_rows.named(label), of_sets.named(label)
                continue
            weights = normalizer.weights(rows.logits, rows.visible)
            per_row, per_set = arrays(rows, weights, self.settings.top_n, self.settings.paper_bounds_length)
            if label != tables.OWN or not isinstance(own, Softmax | SinkSoftmax):
                per_row["jacobian_norm"] = to_array(normalizer.jacobian_norm(rows.logits, rows.visible))
                per_row["jacobian_bound"] = to_array(normalizer.jacobian_bound(rows.logits, rows.visible))
            if label == tables.OWN:
                usable = self._usable_heads(window, rows, per_row, shared)
                window.dropped_rows += int((usable[:, None] & ~kept).sum())
                kept = usable[:, None] & kept
            kept_sets = kept[..., None] & (counts < length[..., None])
            found[label] = (
                ColumnBlock(rows.layer, label, rows.positions, keys | per_row, kept),
                ColumnBlock(rows.layer, label, rows.positions, wide | per_set, kept_sets),
            )
            if label == tables.OWN and window.number == 0 and rows.positions[-1] == window.last:
                # An encoder runs once for each length: the longest comes last and stays.
                window.weights[rows.layer] = _largest(rows, weights[:, -1], keys)
        for of_rows, of_sets in found.values():
            window.rows.append(of_rows)
            window.topn.append(of_sets)

    def _normalizers(self, rows: Rows, own: Normalizer) -> Iterator[tuple[str, Normalizer]]:
        """The model's own normalizer as it runs, the what-ifs, and each of them at each temperature."""
        yield tables.OWN, own
        yield from what_ifs(self.settings, own, None if rows.sinks is None else rows.sinks[:, None])

    def _keys(self, rows: Rows, window: int, length: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        return {
            "window": np.array(window),
            "layer": np.array(rows.layer),
            "head": np.arange(rows.heads)[:, None],
            "position": np.array(rows.positions),
            "length": length,
        }

    def _check_causal(self, layer: int, positions: tuple[int, ...], seen: Visibility) -> None:
        if (seen.ends > np.array(positions) + 1).any():
            raise ModelError(
                f"layer {layer} of {self.model.name} ({self.model.family}) sees later tokens, so it is not "
                "causal as its class says; attnscope cannot take every length from one forward"
            )

    def _usable_heads(
        self, window: Window, rows: Rows, per_row: dict[str, NDArray[Any]], shared: LayerVectors
    ) -> NDArray[np.bool_]:
        """Which heads have finite logits and vectors; the others are recorded and left out."""
        # What is measured of a row shows whether a logit is not finite; only then all of them are looked at.
        sound = np.isfinite(per_row["logit_range"] + per_row["weight_sum"]) | (per_row["length"] == 0)
        logits = sound.all(-1)
        if not logits.all():
            logits = to_array(all_finite(torch.where(rows.visible, rows.logits, 0)))
        vectors = shared.finite.repeat(rows.heads // len(shared.vectors))
        usable: NDArray[np.bool_] = logits & vectors
        if not usable.all():
            for name, finite in (("logits", logits), ("vectors", vectors)):
                for head in (~finite).nonzero()[0].tolist():
                    window.skipped.setdefault((rows.layer, head), f"{name} not finite")
        return usable


def _out_of_memory(error: Exception) -> bool:
    """Whether an allocation failed; torch says so on the CPU in words alone."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _largest(rows: Rows, weights: Float[Tensor, "heads keys"], keys: dict[str, NDArray[np.int64]]) -> ColumnBlock:
    """The largest weights of the last row of every head, the larger first; weights of zero are left out."""
    weight, key = (to_array(found)[:, None] for found in weights.topk(min(_SHOWN_WEIGHTS, weights.shape[-1])))
    shape = keys["length"].shape
    last = {name: np.broadcast_to(values, shape)[:, -1:, None] for name, values in keys.items()}
    columns = last | {"key": key, "weight": weight}
    return ColumnBlock(rows.layer, tables.OWN, rows.positions[-1:], columns, weight > 0)
