"""What is measured of each window: its own rows, the same rows extended, the back-test, and how far keys compete."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from attnscope.engine.run import WindowRecord
from attnscope.measure.settings import DEFAULT_MEMORY
from attnscope.store.tables import OWN
from attnscope.studies.horizon.extended_row import (
    Layout,
    Moves,
    extend_rows,
    layout,
    layout_alone,
    row_measures,
    sliding_window,
    spread,
)
from attnscope.swapping.replacement import effective_normalizer, with_sinks

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from attnscope.capture.attention import Call
    from attnscope.columns import VectorKind
    from attnscope.engine.run import LayerCall, Positions
    from attnscope.normalizers import Normalizer
    from attnscope.studies.horizon.positions import LayerPositions
    from attnscope.studies.horizon.settings import HorizonSettings

Key = TypeVar("Key", str, tuple[str, int])  # a normalizer, or one at a length

_COPIES = 4  # arrays of heads x rows x keys in float64 that measuring a block of rows holds, at most
_REACH_ROWS, _REACH_KEYS = 4, 64  # of a window
_REACH_STEPS = 4  # distances for each doubling

Curves = dict[str, dict[int, "NDArray[np.float64]"]]
"""Means over the rows of a layer, (windows, heads, measures), by normalizer and length."""


@dataclass
class HorizonRecord(WindowRecord):
    """Means over the rows of each window, by layer."""

    measured: dict[int, Curves] = field(default_factory=dict)
    predicted: dict[int, Curves] = field(default_factory=dict)
    back_test: dict[int, Curves] = field(default_factory=dict)
    weight_at: dict[int, NDArray[np.float64]] = field(default_factory=dict)  # (heads, distances): see `_weight_at`


@dataclass(frozen=True)
class LongMeasurer:
    """Measures the rows of long inputs as they are: what a prediction is checked against."""

    settings: HorizonSettings
    lengths: tuple[int, ...]
    vectors: Sequence[VectorKind] = ("value",)

    def start(self, number: int) -> HorizonRecord:
        """The empty record of an input."""
        return HorizonRecord(number)

    def measure(self, record: HorizonRecord, layer: LayerCall, positions: Positions) -> None:
        """Measure the last rows of every length."""
        record.measured[layer.number] = _measured(record, layer, self.settings, self.lengths)

    def finish(self, record: HorizonRecord) -> HorizonRecord:
        """The record."""
        return record


@dataclass(frozen=True)
class HorizonMeasurer:
    """Measures the rows of a batch of windows, and extends them with each other's keys."""

    settings: HorizonSettings
    positions: Mapping[int, LayerPositions]
    vectors: Sequence[VectorKind] = ("value",)

    def start(self, number: int) -> HorizonRecord:
        """The empty record of the batch."""
        return HorizonRecord(number)

    def measure(self, record: HorizonRecord, layer: LayerCall, positions: Positions) -> None:
        """Everything that one layer gives."""
        settings, number = self.settings, layer.number
        rule = self.positions[number]
        arrange = layout_alone if rule.alone else layout
        whole, part = arrange(settings.length, settings.rows), arrange(settings.short, settings.rows)
        record.measured[number] = _measured(record, layer, settings, settings.measured_lengths)
        record.predicted[number] = _extended(record, layer, settings, rule, whole, settings.predicted_lengths)
        record.back_test[number] = _extended(record, layer, settings, rule, part, (settings.length,))
        record.weight_at[number] = _weight_at(layer.call, rule, whole, settings.to)

    def finish(self, record: HorizonRecord) -> HorizonRecord:
        """The record."""
        return record


def _normalizers(call: Call, settings: HorizonSettings) -> dict[str, Normalizer]:
    others = {label: with_sinks(each, call.sinks) for label, each in settings.normalizers.items()}
    return {OWN: effective_normalizer(call), **others}


def last_rows(length: int, count: int) -> tuple[int, ...]:
    """The rows that stand for a length: `count` of the last eighth."""
    return spread(length - max(1, length // 8), length - 1, count)


def _measured(record: HorizonRecord, layer: LayerCall, settings: HorizonSettings, lengths: Sequence[int]) -> Curves:
    """The measures of the model's own rows at lengths that the windows have."""
    call = layer.call
    normalizers = _normalizers(call, settings)
    means: Curves = {label: {} for label in normalizers}
    for length in lengths:

        def measure(block: Sequence[int], item: int, length: int = length) -> dict[str, Tensor]:
            logits, visible = call.logits(block, item, keys=length), call.visible(block, item)[..., :length]
            return {label: row_measures(each, logits, visible) for label, each in normalizers.items()}

        rows = last_rows(length, settings.rows)
        for label, values in _means(record, layer, rows, measure, call.keys).items():
            means[label][length] = values
    return means


def _extended(
    record: HorizonRecord,
    layer: LayerCall,
    settings: HorizonSettings,
    positions: LayerPositions,
    layout: Layout,
    lengths: tuple[int, ...],
) -> Curves:
    """The measures of the layout's rows, extended to each length."""
    call = layer.call
    normalizers = _normalizers(call, settings)

    def measure(block: Sequence[int], item: int) -> dict[tuple[str, int], Tensor]:
        extended = extend_rows(call, item, positions, layout, block, lengths)
        found: dict[tuple[str, int], Tensor] = {}
        for length in lengths:
            logits = extended.at(length)
            found |= {(label, length): row_measures(each, logits) for label, each in normalizers.items()}
        return found

    means: Curves = {label: {} for label in normalizers}
    for (label, length), values in _means(record, layer, layout.rows, measure, max(lengths)).items():
        means[label][length] = values
    return means


def _means(
    record: HorizonRecord,
    layer: LayerCall,
    rows: tuple[int, ...],
    measure: Callable[[Sequence[int], int], dict[Key, Tensor]],
    keys: int,
) -> dict[Key, NDArray[np.float64]]:
    """Means over rows of what is measured in blocks of rows of at most `keys` keys, (windows, heads, measures).

    Heads with numbers that are not finite are recorded as left out, and so are all heads of a layer that does not fit
    into memory.
    """
    found: dict[Key, list[list[Tensor]]] = {}

    def add(item: int, block: tuple[int, ...]) -> None:
        for key, values in measure(block, item).items():
            found.setdefault(key, [[] for _ in range(layer.call.batch)])[item].append(values)

    copies = math.ceil(_COPIES * keys / layer.call.keys)
    for item in range(layer.call.batch):
        if not layer.in_blocks(record, rows, partial(add, item), budget=DEFAULT_MEMORY, copies=copies):
            return {}
    means = {
        key: np.stack([torch.cat(each, 1).mean(1).cpu().numpy() for each in items]) for key, items in found.items()
    }
    for key, values in means.items():
        for head in (~np.isfinite(values)).any((0, 2)).nonzero()[0].tolist():
            label = key if isinstance(key, str) else key[0]
            record.skipped.setdefault((layer.number, head), f"weights of {label} not finite")
    return means


def reach_distances(longest: int) -> NDArray[np.int64]:
    """Distances from 1 up to the longest, evenly spaced on a logarithmic scale."""
    steps = math.ceil(math.log2(longest - 1) * _REACH_STEPS)
    return np.unique(np.round(np.geomspace(1, longest - 1, steps + 1)).astype(np.int64))


def _weight_at(call: Call, positions: LayerPositions, layout: Layout, longest: int) -> NDArray[np.float64]:
    """The mean weight that a key of the pool would get at each of the `reach_distances`, (heads, distances).

    The same keys and rows at every distance: only positions make the difference. Weights are relative to the row as it
    is in its window, with the model's own softmax.
    """
    distances = torch.from_numpy(reach_distances(longest))
    keys = torch.tensor(list(layout.pool))[:: max(1, len(layout.pool) // _REACH_KEYS)]
    rows = layout.rows[:: max(1, len(layout.rows) // _REACH_ROWS)]
    total = torch.zeros(call.heads, len(distances), dtype=torch.float64)
    every_key = keys.repeat(len(distances))
    for item in range(call.batch):
        source = torch.full_like(every_key, item if layout.alone else (item + 1) % call.batch)
        for row in rows:
            own = call.logits([row], item).masked_fill(~call.visible([row], item), -torch.inf).logsumexp(-1)
            further = (distances[:, None] - (row - keys)).flatten()
            logits = positions.logits(call, item, [row], Moves(source, every_key, further))
            weights = (logits.double() - own[..., None]).exp().reshape(call.heads, len(distances), -1).mean(-1)
            total += weights.cpu()
    size = sliding_window(call, layout.rows[-1])
    if size is not None:
        total[:, distances >= size] = 0
    return (total / (len(rows) * call.batch)).numpy()
