"""The measurer of the paper's protocol: all rows of every attention call, in blocks, one head on each thread.

The sums of a block are added to those of its heads only once the whole block is measured: a block that runs out of
memory can be measured again in halves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
import torch

from attnscope._process import parallel_for
from attnscope.capture.attention import AttentionCall
from attnscope.engine.run import Part, WindowRecord, without_heads
from attnscope.errors import ModelError
from attnscope.measure import Rows, Visibility, softmax_weights
from attnscope.measure.settings import DEFAULT_MEMORY
from attnscope.normalizers import SinkSoftmax, Softmax
from attnscope.studies.paper import every_n as profiles, sets
from attnscope.studies.paper.every_n import LEVELS, critical_n, exact_p_values, largest_gaps, subset_p_values
from attnscope.studies.paper.responses import DIRECTIONS, Responses, add_responses
from attnscope.studies.paper.sets import COLUMNS, ROW_COLUMNS, HeadRows, sum_sets
from attnscope.studies.paper.settings import (
    PAPER_N,
    READINGS,
    SEPARABILITY_N,
    STEPS,
    TABLE_NAMES,
    TEMPERATURES,
    Settings,
)
from attnscope.swapping.replacement import effective_normalizer

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from attnscope.columns import VectorKind
    from attnscope.engine.run import Head, LayerCall, Positions
    from attnscope.studies.paper.sets import SetSums

_MOST_ROWS = 256  # of a block
_COPIES = 6  # float64 arrays of heads x rows x keys that a block needs
_DISTANCE = ("distance", "bound_printed", "expected_printed", "expected_lower", "expected_upper", "epsilon_printed",
             "scaled_sum", "top_mass_ratio")  # fmt: skip
_SEPARABILITY = ("separability", "lower_printed", "upper_printed", "separability_closed")
FORMS = ("printed", "lower", "upper")  # of the expectation that is compared with the distance
SUBSETS = (12, 36, 72, 144)  # of the heads
REPEATS = 5
Sums = dict[Any, Any]
"""NamedTuples of arrays: sums over rows, by algorithm and kind of vectors."""


class Sample(NamedTuple):
    """The reading, vectors and length at which all heads are tested together."""

    reading: str
    vectors: str
    length: int


@dataclass
class ProtocolWindow(WindowRecord):
    """The measurements of one window while the model runs."""

    pieces: dict[str, list[pl.DataFrame]] = field(default_factory=lambda: {name: [] for name in TABLE_NAMES})
    profiles: dict[Sample, list[tuple[Head, NDArray[np.float64]]]] = field(default_factory=dict)
    circle: tuple[tuple[float, ...], pl.DataFrame] | None = None  # the best one so far, with its score


@dataclass
class _HeadState:
    """What the blocks of a head's rows share, and their sums so far."""

    vectors: dict[VectorKind, Tensor]  # (1, keys, dims) each
    random: np.random.Generator
    sums: Sums = field(default_factory=dict)

    def add(self, sums: Sums, random: np.random.Generator) -> None:
        """Add the sums of a block of rows and store the state of the generator after it."""
        for key, block in sums.items():
            before = self.sums.get(key)
            self.sums[key] = block if before is None else type(block)(*map(np.add, before, block))
        self.random = random


@dataclass(frozen=True)
class _Layer:
    """What the heads of a layer share."""

    call: LayerCall
    lengths: tuple[int, ...]  # as the tables name them, ascending
    keys: tuple[int, ...]  # number of keys of a row at each length in the literal reading
    sizes: list[list[int]]  # of the top sets at each length
    factors: dict[str, float]  # of the readings of T; none if it is not measured
    kinds: dict[VectorKind, Tensor]
    grams: dict[VectorKind, NDArray[np.float64]]  # where all heads share their vectors


@dataclass(frozen=True)
class ProtocolMeasurer:
    """Runs the algorithms of the paper's appendix on all rows: all five, or a selection for timing."""

    settings: Settings
    sizes: Mapping[int, Sequence[int]] | None = None  # of the top sets by length; None for all of the paper's
    every_n: bool = True  # Algorithm 3
    gradient: bool = True  # Algorithm 5

    @property
    def vectors(self) -> tuple[VectorKind, ...]:
        """The kinds of vectors that the settings name."""
        return self.settings.vectors

    def start(self, number: int) -> ProtocolWindow:
        """The empty record of a window."""
        return ProtocolWindow(number)

    def measure(self, window: ProtocolWindow, layer: LayerCall, positions: Positions) -> None:
        """Measure all rows of one attention call."""
        call, first = layer.call, self.settings.first
        about = self._layer(layer, tuple(sorted(positions)))
        heads = []
        for head in range(call.heads):
            groups = {kind: head * len(vectors) // call.heads for kind, vectors in about.kinds.items()}
            vectors = {kind: about.kinds[kind][g, None] for kind, g in groups.items()}
            seed = (self.settings.seed, window.number, layer.number, head)
            heads.append(_HeadState(vectors, np.random.default_rng(seed)))

        def measure(block: tuple[int, ...]) -> None:
            logits, visible = call.logits(block).cpu(), call.visible(block).cpu()
            check_call(layer, visible, block)
            logits, visible = logits[..., first:].contiguous(), visible[..., first:]
            usable = usable_heads(window, layer.number, logits, visible, about.kinds)
            sinks = None if call.sinks is None else call.sinks.cpu()
            weights = softmax_weights(
                Rows(layer.number, block, logits, visible, next(iter(about.kinds.values())), sinks)
            )
            visibility = Visibility(visible[:1])
            # Without causality every row belongs to the only length.
            places = np.array(block) - first if layer.causal else np.zeros(len(block), np.int64)
            measured = {}

            def of_head(head: int) -> None:
                rows = HeadRows(logits[head, None], weights[head, None], visibility, places)
                random = deepcopy(heads[head].random)
                measured[head] = self._sums(rows, about, heads[head].vectors, random), random

            parallel_for(of_head, usable.nonzero().flatten().tolist())
            for head, (sums, random) in measured.items():
                heads[head].add(sums, random)

        rows = tuple(range(first if layer.causal else 0, call.queries))
        if layer.in_blocks(window, rows, measure, budget=DEFAULT_MEMORY, copies=_COPIES, most_rows=_MOST_ROWS):
            self._collect(window, about, heads, len(rows))
            if self.sizes is None:
                self._measure_last_rows(window, about)

    def finish(self, window: ProtocolWindow) -> Part:
        """All tables of the window, without the heads that were skipped."""
        return window.part(self.tables(window))

    def tables(self, window: ProtocolWindow) -> dict[str, pl.DataFrame]:
        """The tables by name; empty where there was nothing to measure."""
        for sample, heads in sorted(window.profiles.items()):
            usable = [profile for head, profile in heads if head not in window.skipped]
            if usable:
                longest = sample.length == self.settings.longest
                for name, table in _test_lines(window.number, sample, usable, self.settings.seed, longest).items():
                    window.pieces[name].append(table)
        if window.circle is not None:
            window.pieces["circle"].append(window.circle[1])
        return {
            name: without_heads(pl.concat(pieces), window.skipped) if pieces else pl.DataFrame()
            for name, pieces in window.pieces.items()
        }

    def _layer(self, layer: LayerCall, lengths: tuple[int, ...]) -> _Layer:
        call = layer.call
        first = self.settings.first
        kinds = {kind: vectors[:, first:].double().cpu().contiguous() for kind, vectors in layer.vectors.items()}
        keys = tuple(count - first for count in (lengths if layer.causal else (call.keys,)))
        asked = [self.settings.top_n(count) if self.sizes is None else self.sizes.get(count, ()) for count in keys]
        factors = {}
        if self.gradient and lengths[-1] == self.settings.longest:
            factors["scaled"] = 1.0
            if isinstance(call, AttentionCall):  # other models do not say what they divided their logits by
                factors["raw"] = call.scale
        shared = {kind: _gram(x) for kind, x in kinds.items() if self.every_n and len(x) == 1}
        return _Layer(layer, lengths, keys, [sorted(sizes) for sizes in asked], factors, kinds, shared)

    def _sums(
        self, rows: HeadRows, layer: _Layer, vectors: dict[VectorKind, Tensor], random: np.random.Generator
    ) -> Sums:
        """All sums over a block of rows of one head."""
        sums: Sums = {}
        visible, weights = rows.visibility.visible[0].numpy(), rows.weights[0]
        for kind, x in vectors.items():
            if any(layer.sizes):
                sums["sets", kind] = sum_sets(rows, x, layer.keys, layer.sizes)
            if self.every_n:
                gram = layer.grams[kind] if kind in layer.grams else _gram(x)
                order = np.argsort(-weights.numpy(), axis=-1, kind="stable")
                along = (weights @ x[0] @ x[0].mT).numpy()
                profile = sums["profiles", kind] = profiles.empty(layer.keys)
                profiles.add_rows(
                    weights.numpy(), visible, order, along, gram, rows.positions, np.array(layer.keys), profile
                )
        if layer.factors:
            factors, steps = np.array(list(layer.factors.values())), np.array(STEPS)
            response = Responses(np.zeros((2, len(factors), 2, len(TEMPERATURES), len(STEPS))))
            normal = random.standard_normal(visible.shape)
            add_responses(rows.logits[0].numpy(), visible, normal, factors, np.array(TEMPERATURES), steps, response)
            sums["responses"] = response
        return sums

    def _collect(self, window: ProtocolWindow, layer: _Layer, states: list[_HeadState], rows: int) -> None:
        """Turn the sums of a layer's heads into lines and profiles."""
        number = layer.call.number
        heads = [head for head in range(len(states)) if (number, head) not in window.skipped]
        if not heads:
            return
        sums = [states[head].sums for head in heads]
        keys = {"window": window.number, "layer": number}
        for kind in layer.kinds:
            if any(layer.sizes):
                of_heads = [each["sets", kind] for each in sums]
                for name, table in _set_lines(keys, kind, layer.lengths, heads, layer.sizes[-1], of_heads).items():
                    window.pieces[name].append(table)
                if kind == self.settings.vectors[0]:  # the same for all vectors
                    window.pieces["protocol_rows"].append(_row_lines(keys, layer.lengths, heads, of_heads))
            if self.every_n:
                for head, each in zip(heads, sums, strict=True):
                    means = profiles.averages(each["profiles", kind])
                    for r, reading in enumerate(READINGS):
                        for place, length in enumerate(layer.lengths):
                            sample = Sample(reading, kind, length)
                            profile = means[r, place, :, : layer.keys[place] - 1].copy()
                            window.profiles.setdefault(sample, []).append(((number, head), profile))
        if layer.factors:
            g = np.stack([each["responses"].g for each in sums], -1) / rows
            window.pieces["protocol_gradient"].append(_gradient_lines(keys, list(layer.factors), heads, g))

    def _measure_last_rows(self, window: ProtocolWindow, layer: _Layer) -> None:
        """Measure what a single row shows: of the longest length, and for Figure 1 of the shortest."""
        number, lengths, settings = layer.call.number, self.settings.lengths, self.settings
        heads = [head for head in range(layer.call.call.heads) if (number, head) not in window.skipped]
        last = {
            length: sets.last_row(layer.call.call, number, length - 1, settings.first, layer.kinds)
            for length in {lengths[0], lengths[-1]} & set(layer.lengths)
            if heads
        }
        for kind, rows in last.get(lengths[-1], {}).items():
            keys = {"window": window.number, "layer": number, "vectors": kind}
            for name, table in sets.sharpness_and_coverage(rows, keys, heads).items():
                window.pieces[name].append(table)
        if lengths[0] in last and window.number == 0:
            found = sets.best_circle(last[lengths[0]][settings.vectors[0]], settings.vectors[0], heads)
            if window.circle is None or (found is not None and found[0] < window.circle[0]):
                window.circle = found


def _gram(vectors: Tensor) -> NDArray[np.float64]:
    """The products x_i . x_j of the vectors (1, keys, dims)."""
    products: NDArray[np.float64] = (vectors[0] @ vectors[0].mT).numpy()
    return products


def check_call(layer: LayerCall, visible: Tensor, queries: Sequence[int]) -> None:
    """Raise if the paper's experiments are not defined for a call; `visible` are the masks of its queries."""
    if not (visible == visible[:1]).all():
        raise ModelError(f"the heads of {layer.name} see different keys; attnscope reproduce needs them to agree")
    if layer.causal and (visible[0] & (torch.arange(visible.shape[-1]) > torch.tensor(queries)[:, None])).any():
        raise ModelError(f"{layer.name} sees later tokens although its model is said to be causal")
    if not isinstance(effective_normalizer(layer.call), Softmax | SinkSoftmax):
        raise ModelError(f"{layer.name} runs with a swapped normalizer; the paper's experiments are about softmax")


def usable_heads(
    record: WindowRecord, layer: int, logits: Tensor, visible: Tensor, kinds: Mapping[Any, Tensor]
) -> Tensor:
    """Which heads have finite logits and vectors; the others are recorded as skipped."""
    usable = torch.where(visible, logits, 0).isfinite().all(-1).all(-1)
    for vectors in kinds.values():
        usable = usable & vectors.isfinite().all(-1).all(-1).repeat_interleave(len(logits) // len(vectors))
    for head in (~usable).nonzero().flatten().tolist():
        record.skipped.setdefault((layer, head), "logits or vectors not finite")
    return usable


def _set_lines(
    keys: Mapping[str, Any], kind: str, lengths: Sequence[int], heads: Sequence[int], sizes: Sequence[int],
    of_heads: Sequence[SetSums],
) -> dict[str, pl.DataFrame]:  # fmt: skip
    """Lines of `protocol_distance` and `protocol_separability`: means over the rows of each head."""
    rows = np.stack([sums.rows for sums in of_heads], 2)  # (readings, lengths, heads, sizes)
    with np.errstate(invalid="ignore"):
        means = np.stack([sums.sums for sums in of_heads], 2) / rows[:, :, :, None]
    axes = {
        "window": [keys["window"]], "reading": READINGS, "vectors": [kind], "length": lengths,
        "layer": [keys["layer"]], "head": heads, "n": sizes,
    }  # fmt: skip
    names = list(COLUMNS)
    tables = {}
    for table, columns, wanted in (
        ("protocol_distance", _DISTANCE, PAPER_N),
        ("protocol_separability", _SEPARABILITY, SEPARABILITY_N),
    ):
        values = {name: means[:, :, :, names.index(name)] for name in columns}
        lines = _lines(axes, values | {"rows": rows})
        tables[table] = lines.filter(pl.col("n").is_in(wanted), pl.col("rows") > 0)
    return tables


def _row_lines(
    keys: Mapping[str, Any], lengths: Sequence[int], heads: Sequence[int], of_heads: Sequence[SetSums]
) -> pl.DataFrame:
    """Lines of `protocol_rows`: means over the rows of each head that have at least two keys."""
    counts = np.stack([sums.row_counts for sums in of_heads], -1)  # (readings, lengths, heads)
    with np.errstate(invalid="ignore"):
        means = np.stack([sums.row_sums for sums in of_heads], 2) / counts[..., None]
    axes = {
        "window": [keys["window"]], "reading": READINGS, "length": lengths, "layer": [keys["layer"]], "head": heads,
    }  # fmt: skip
    columns = {name: means[..., k] for k, name in enumerate(ROW_COLUMNS)}
    return _lines(axes, columns | {"rows": counts}).filter(pl.col("rows") > 0)


def _gradient_lines(
    keys: Mapping[str, Any], logits: Sequence[str], heads: Sequence[int], g: NDArray[np.float64]
) -> pl.DataFrame:
    """Lines of `protocol_gradient`; g: (readings, logits, directions, temperatures, steps, heads)."""
    axes = {
        "window": [keys["window"]], "reading": READINGS, "logit_scale": logits, "direction": DIRECTIONS,
        "temperature": TEMPERATURES, "step": STEPS, "layer": [keys["layer"]], "head": heads,
    }  # fmt: skip
    return _lines(axes, {"g": g})


def _test_lines(
    window: int, sample: Sample, heads: Sequence[NDArray[np.float64]], seed: int, subsets: bool
) -> dict[str, pl.DataFrame]:
    """Lines of `protocol_tests`, `protocol_critical` and, with `subsets`, `protocol_subsets`.

    `heads` are the profiles of the heads, (columns, n).

    Layers that see fewer keys (a sliding window) have rows for fewer N: the heads with the most are tested.
    """
    most = max(int(np.isfinite(profile).all(0).sum()) for profile in heads)
    profile = np.stack([each[:, :most] for each in heads if np.isfinite(each).all(0).sum() == most])
    n, count = np.arange(1, most + 1), len(profile)
    distance = np.ascontiguousarray(profile[:, profiles.COLUMNS.index("distance")].T)
    tests: list[pl.DataFrame] = []
    whole: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    for form in FORMS:
        expected = np.ascontiguousarray(profile[:, profiles.COLUMNS.index(f"expected_{form}")].T)
        keys: dict[str, Any] = {"window": window, **sample._asdict(), "expectation": form}
        gaps = largest_gaps(distance, expected)
        p_values = exact_p_values(count)[gaps]
        medians = {"distance": np.median(distance, 1), "expected": np.median(expected, 1)}
        tests.append(pl.DataFrame(keys | {"heads": count, "n": n} | medians | {"gap": gaps / count, "p": p_values}))
        by_size = {count: [p_values]}
        for size in SUBSETS if subsets else ():
            if size < count:
                by_size[size] = subset_p_values(distance, expected, size, REPEATS, seed)
        for level in LEVELS:
            keys = keys | {"significance": level}
            whole.append(keys | critical_n(p_values, n, level)._asdict() | {"heads": count})
            for size in sorted(by_size):
                for repeat, p in enumerate(by_size[size]):
                    parts.append(keys | {"heads": size, "repeat": repeat} | critical_n(p, n, level)._asdict())
    integers = {"first": pl.Int64, "persistent": pl.Int64}
    tables = {"protocol_tests": pl.concat(tests), "protocol_critical": pl.DataFrame(whole, schema_overrides=integers)}
    return tables | ({"protocol_subsets": pl.DataFrame(parts, schema_overrides=integers)} if subsets else {})


def _lines(axes: Mapping[str, Sequence[Any]], columns: Mapping[str, NDArray[Any]]) -> pl.DataFrame:
    """One line for each combination of axis values; columns have the shape of the axes with more than one value."""
    shape = tuple(len(values) for values in axes.values())
    index = np.indices(shape).reshape(len(shape), -1)
    keys = {name: np.array(values)[at] for (name, values), at in zip(axes.items(), index, strict=True)}
    return pl.DataFrame(keys | {name: values.reshape(-1) for name, values in columns.items()}, nan_to_null=True)
