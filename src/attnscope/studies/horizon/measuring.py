"""The settings of a prediction, the windows of the text, and what is measured of each.

Measured are the rows of a window, the same rows extended, the back-test, and how far keys compete.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from attnscope.engine.run import WindowRecord
from attnscope.errors import InputError, parameter, whole_number
from attnscope.measure.settings import DEFAULT_MEMORY, plan
from attnscope.store.tables import OWN
from attnscope.studies.horizon.extended_row import (
    SHORTEST,
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
    from attnscope.capture.models import Model
    from attnscope.columns import VectorKind
    from attnscope.engine.run import LayerCall, Positions
    from attnscope.normalizers import Normalizer
    from attnscope.studies.horizon.positions import LayerPositions

DEFAULT_LENGTH, DEFAULT_WINDOWS, DEFAULT_ROWS, DEFAULT_CHECK_WINDOWS = 1024, 8, 16, 4
MOST_TIMES = 8  # the default of `to`, in windows
BASE = 256  # tokens; the mass of a head there is what it can lose
LEAST_WINDOWS, LEAST_ROWS = 2, 8
LONGEST = 2**20  # tokens to predict
_BACK_TEST = 4  # the part of a window that the back-test predicts the window from
_KEY_LIMITS = ("attention_chunk_size", "index_topk")  # settings by which a longer input hides keys
_REPEATED_RUN = 16  # tokens of a run that counts as repeated


@dataclass(frozen=True)
class HorizonSettings:
    """Windows, rows and lengths of a prediction."""

    length: int
    to: int
    windows: int = DEFAULT_WINDOWS
    rows: int = DEFAULT_ROWS
    bos: bool = False
    check_windows: int = 0  # 0: no check
    normalizers: dict[str, Normalizer] = field(default_factory=dict)  # beside the model's own, by label

    @property
    def short(self) -> int:
        """The length that the back-test predicts from."""
        return self.length // _BACK_TEST

    @property
    def base(self) -> int:
        """The length at which a head has its full mass: 256 tokens, or less in short windows."""
        return BASE if self.length >= 2 * BASE else self.short

    @property
    def measured_lengths(self) -> tuple[int, ...]:
        """The lengths that the windows themselves show."""
        halves = {self.length >> power for power in range(_BACK_TEST + 1)}
        return tuple(sorted(halves | {self.base, self.short}))

    @property
    def predicted_lengths(self) -> tuple[int, ...]:
        """2, 4, 8, ... times the window, and the last length."""
        doubled, times = [], 2
        while self.length * times < self.to:
            doubled.append(self.length * times)
            times *= 2
        return (*doubled, self.to)

    def as_json(self) -> dict[str, Any]:
        """The settings for `horizon.json`."""
        return {
            "length": self.length,
            "to": self.to,
            "windows": self.windows,
            "rows": self.rows,
            "bos": self.bos,
            "base": self.base,
            "check_windows": self.check_windows,
            "normalizers": list(self.normalizers),
        }


def refuse_lengths(to: int | None, length: int | None) -> None:
    """Raise InputError for lengths that no model allows."""
    if length is not None:
        length = whole_number("length", length, least=SHORTEST)
    if to is not None and whole_number("to", to, most=LONGEST) <= (length or SHORTEST):
        advice = f"use a smaller {parameter('length')}" if length else f"use {parameter('to', 2 * SHORTEST)} or more"
        raise InputError(f"{parameter('to', to)} is not beyond the windows of {length or SHORTEST:,} tokens; {advice}")


def plan_horizon(
    model: Model,
    to: int | None,
    length: int | None,
    windows: int,
    rows: int,
    bos: bool,
    check: bool,
    check_windows: int,
    normalizers: Sequence[str | Normalizer],
) -> HorizonSettings:
    """Check the settings; InputError for lengths that the model or the windows do not allow."""
    if not model.causal:
        raise InputError(
            f"{model.name} is an encoder: its rows have no longer inputs to grow into; horizon needs a causal model"
        )
    trained = trained_length(model)
    if length is None:
        wanted = min(to or MOST_TIMES * DEFAULT_LENGTH, trained or MOST_TIMES * DEFAULT_LENGTH)
        length = max(SHORTEST, min(DEFAULT_LENGTH, wanted // 2))
    length = whole_number("length", length, least=SHORTEST)
    default = min(MOST_TIMES * length, trained or MOST_TIMES * length)
    to = whole_number("to", default if to is None else to, most=LONGEST)
    if trained is not None and to > trained:
        raise InputError(
            f"{parameter('to', to)} is beyond the {trained:,} positions that {model.name} was trained for: nothing can "
            f"be claimed there; use {parameter('to', trained)} or less"
        )
    config = model.module.config.get_text_config()
    for name in _KEY_LIMITS:
        keys = getattr(config, name, None)
        if isinstance(keys, int) and to > keys:
            raise InputError(
                f"rows of {model.name} see other keys from {keys:,} tokens on ({name} of its configuration), which "
                f"do not follow from shorter inputs; use {parameter('to', keys)} or less"
            )
    if to <= length:
        raise InputError(
            f"{parameter('to', to)} is not beyond the windows of {length:,} tokens; use a smaller {parameter('length')}"
        )
    what_ifs = plan(None, length, normalizers=normalizers).normalizers
    for label, each in what_ifs.items():
        if not each.facts.non_negative:
            raise InputError(f"weights of {label} can be negative: their largest have no mass; leave it out")
    return HorizonSettings(
        length,
        to,
        whole_number("windows", windows, least=LEAST_WINDOWS),
        whole_number("rows", rows, least=LEAST_ROWS),
        bos,
        whole_number("check_windows", check_windows) if check else 0,
        what_ifs,
    )


def trained_length(model: Model) -> int | None:
    """The longest input that the model was trained for, as its configuration says; None if it does not."""
    if model.positions is not None:
        return model.positions
    config = model.module.config.get_text_config()
    for name in ("max_seq_len", "seq_length", "n_positions", "max_sequence_length"):
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return None


@dataclass(frozen=True)
class ChosenWindows:
    """The first token of each window to predict from, and of each longer one to check on; none overlap."""

    starts: list[int]
    check_starts: list[int]


def choose_windows(tokens: int, settings: HorizonSettings, source: str) -> ChosenWindows:
    """Windows spread over a text of `tokens` tokens."""
    bos = int(settings.bos)
    size, longest, checks = settings.length - bos, settings.to - bos, settings.check_windows
    part = tokens / max(1, checks)
    check_starts = [int((i + 0.5) * part - longest / 2) for i in range(checks)]
    edges = [0, *(edge for start in check_starts for edge in (start, start + longest)), tokens]
    slots = [
        start
        for first, last in zip(edges[::2], edges[1::2], strict=True)
        for start in range(first, last - size + 1, size)
    ]
    if min(check_starts, default=0) < 0 or len(slots) < settings.windows:
        needed = settings.windows * settings.length + checks * settings.to
        what, fewer = f"{settings.windows} windows of {settings.length:,} tokens", parameter("windows")
        if checks:
            what += f" and {checks} of {settings.to:,} to check on"
            fewer += f" or {parameter('check_windows')}"
        raise InputError(
            f"{source} has {tokens:,} tokens, too few for {what} (about {needed:,}); use a longer text or fewer {fewer}"
        )
    count = settings.windows
    chosen = [slots[int((i + 0.5) * len(slots) / count)] for i in range(count)]
    return ChosenWindows(chosen, check_starts)


def repeated_share(tokens: Sequence[int], starts: Sequence[int], settings: HorizonSettings) -> float:
    """The share of runs of 16 tokens in the windows that stand in the `to` tokens before the window already.

    Where a text repeats itself, a longer input holds copies of what a row attends to, and the keys of a window do not
    stand for those.
    """
    found = total = 0
    for start in starts:
        before = tokens[max(0, start - settings.to) : start]
        known = {tuple(before[i : i + _REPEATED_RUN]) for i in range(len(before) - _REPEATED_RUN + 1)}
        window = tokens[start : start + settings.length]
        runs = [tuple(window[i : i + _REPEATED_RUN]) for i in range(len(window) - _REPEATED_RUN + 1)]
        found += sum(run in known for run in runs)
        total += len(runs)
    return found / total


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
