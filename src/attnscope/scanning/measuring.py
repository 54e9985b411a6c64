"""Measure the wanted rows of attention calls and collect them as lines of the tables: the measurer of a scan.

A table is built in one go: a window of many small tables takes longer to put together than to measure.

Attention patterns are those of the first window: at most `CELLS` rows of every head by `CELLS` runs of keys, however
long the window is. The rows are queries of the model as they are (not means over rows), spread evenly over the window
with the last one included; a cell is the total weight of its row on a run of keys. The sink weight, on which many heads
rest, is stored too.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
import torch
from torch.nn import functional

from attnscope._process import parallel_for
from attnscope.capture.attention import unpadded
from attnscope.engine.run import Part, WindowRecord, without_heads
from attnscope.errors import ModelError
from attnscope.intervals import evenly_spaced
from attnscope.measure import Rows, Visibility, columns
from attnscope.measure.settings import Settings
from attnscope.normalizers import Normalizer, SinkSoftmax, Softmax
from attnscope.store import tables
from attnscope.swapping.replacement import at_temperature, effective_normalizer, with_sinks

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Shaped
    from numpy.typing import DTypeLike, NDArray
    from torch import Tensor

    from attnscope.capture.attention import Call
    from attnscope.columns import VectorKind
    from attnscope.engine.run import LayerCall, Positions

CELLS = 64
# Arrays of heads x rows x keys in float64 at one time: logits, weights, and what normalizing them takes.
_PATTERN_COPIES = 6


@dataclass(frozen=True, eq=False)
class _Grid:
    """Rows of a call and the runs of keys that their pattern has: layers with the same mask share it."""

    rows: tuple[int, ...]
    first: int  # the first key that any row sees
    end: int  # after the last one
    width: int  # of a run, in keys
    empty: NDArray[np.bool_]  # (heads or 1, rows, cells): runs of which a row sees no key

    @classmethod
    def of(cls, call: Call) -> _Grid | None:
        """The grid of a call; None if no row sees a key."""
        rows = evenly_spaced(call.queries, CELLS)
        visible = _each_once(call.visible(rows))
        if not visible.any(-1).any(0).all():  # some of them are padding
            queries = unpadded(call)
            rows = tuple(queries[i] for i in evenly_spaced(len(queries), CELLS))
            if not rows:
                return None
            visible = _each_once(call.visible(rows))
        seen = visible.any(0).any(0).nonzero().flatten()
        first, end = int(seen[0]), int(seen[-1]) + 1
        width = -(-(end - first) // CELLS)
        empty = ~_in_runs(visible[..., first:end], width).any(-1)
        return cls(rows, first, end, width, empty.cpu().numpy())


@dataclass
class Patterns:
    """The patterns of a window while the model runs."""

    _layers: dict[int, dict[str, Any]] = field(default_factory=dict)
    _grid: _Grid | None = None
    _mask_key: Hashable = None

    def add(self, record: WindowRecord, layer: LayerCall, normalizer: Normalizer, budget: int) -> None:
        """Add a layer, in blocks of rows that keep within the memory budget."""
        call, grid = layer.call, self._grid_of(layer.call)
        if grid is None:
            return
        sums: list[NDArray[np.float32]] = []
        first_key: list[NDArray[np.float32]] = []

        def measure(rows: tuple[int, ...]) -> None:
            visible = call.visible(rows)[..., : grid.end]
            weights = normalizer.weights(call.logits(rows, keys=grid.end), visible).detach()[..., grid.first :]
            sums.append(_in_runs(weights, grid.width).sum(-1).float().cpu().numpy())
            first_key.append(weights[..., 0].float().cpu().numpy())

        if layer.in_blocks(record, grid.rows, measure, budget=budget, copies=_PATTERN_COPIES):
            cells = np.where(grid.empty, np.float32(np.nan), np.concatenate(sums, axis=1))
            self._layers[layer.number] = {
                "window": record.number,
                "layer": layer.number,
                "head": np.arange(call.heads).repeat(len(grid.rows)),
                "position": np.tile(grid.rows, call.heads),
                "first_key": grid.first,
                "keys_per_cell": grid.width,
                "first_key_weight": np.concatenate(first_key, axis=1).reshape(-1),
                "weights": cells.reshape(-1, cells.shape[-1]),
            }

    def table(self) -> pl.DataFrame:
        """All layers in the schema of `patterns.parquet`."""
        layers = [pl.DataFrame(self._layers[number]).cast(tables.PATTERNS) for number in sorted(self._layers)]
        return pl.concat([pl.DataFrame(schema=tables.PATTERNS), *layers]).with_columns(
            pl.col("first_key_weight").fill_nan(None), pl.col("weights").list.eval(pl.element().fill_nan(None))
        )

    def _grid_of(self, call: Call) -> _Grid | None:
        if self._grid is None or call.mask_key is None or call.mask_key != self._mask_key:
            self._grid = _Grid.of(call)
        self._mask_key = call.mask_key
        return self._grid


def _each_once(visible: Bool[Tensor, "heads rows keys"]) -> Bool[Tensor, "heads_or_1 rows keys"]:
    """The same for one head if all heads see the same keys of one mask."""
    return visible[:1] if visible.stride(0) == 0 else visible


def _in_runs(values: Shaped[Tensor, "heads rows keys"], width: int) -> Shaped[Tensor, "heads rows cells width"]:
    """Values in runs of `width` keys; zeros fill up the last one."""
    missing = -values.shape[-1] % width
    return (functional.pad(values, (0, missing)) if missing else values).unflatten(-1, (-1, width))


_TYPES: dict[pl.DataType, DTypeLike] = {pl.Int32(): np.int32, pl.Float64(): np.float64}
_SMALL = 1 << 15  # lines up to which a second thread costs more than it saves


@dataclass(frozen=True)
class ColumnBlock:
    """Some rows of all heads of one layer under one normalizer."""

    layer: int
    label: str
    positions: tuple[int, ...]
    columns: dict[str, NDArray[Any]]  # of the shape of `included`, or of one that broadcasts to it
    included: NDArray[np.bool_]  # (heads, rows) or (heads, rows, sizes): which of them become lines

    def named(self, label: str) -> ColumnBlock:
        """The same numbers under another label."""
        return replace(self, label=label)


def table(blocks: Sequence[ColumnBlock], schema: pl.Schema, order: Sequence[str]) -> pl.DataFrame:
    """All lines, NaN as missing values, in the order of some columns: layer, head and position first."""
    if not blocks:
        return pl.DataFrame(schema=schema)
    in_layers = sorted(blocks, key=lambda block: block.layer)
    runs = [list(run) for _, run in groupby(in_layers, lambda block: (block.layer, block.label))]
    lines = _lines(runs)
    size = lines[-1].end
    included = np.empty(size, np.bool_)
    for each in lines:
        each.within(included)[...] = each.block.included
    chosen = None if included.all() else included.nonzero()[0]
    data: dict[str, pl.Series] = {}

    def fill(name: str) -> None:
        kind = schema[name]
        if name == "normalizer":
            labels = []
            for label, same in groupby(runs, lambda run: run[0].label):
                count = sum(int(block.included.sum()) for run in same for block in run)
                labels.append(pl.repeat(label, count, dtype=kind, eager=True))
            data[name] = pl.concat(labels)
            return
        number = _TYPES[kind]
        values = np.empty(size, number)
        for each in lines:
            each.within(values)[...] = each.block.columns[name]
        if chosen is not None:
            values = values[chosen]
        data[name] = pl.Series(name, values, nan_to_null=True)

    if size > _SMALL:
        parallel_for(fill, schema)
    else:
        for name in schema:
            fill(name)
    frame = pl.DataFrame({name: data[name] for name in schema})
    return frame if _in_order(runs) else frame.sort(order, maintain_order=True)


class _Lines(NamedTuple):
    """Where the lines of a block are in a column: among those of its run, the rows of each head one after another."""

    block: ColumnBlock
    begin: int  # of the run
    end: int
    shape: tuple[int, ...]
    rows: slice

    def within(self, column: NDArray[Any]) -> NDArray[Any]:
        return column[self.begin : self.end].reshape(self.shape)[:, self.rows]


def _lines(runs: Sequence[Sequence[ColumnBlock]]) -> list[_Lines]:
    lines = []
    end = 0
    for run in runs:
        heads, _, *sizes = run[0].included.shape
        begin, end = end, end + sum(block.included.size for block in run)
        shape = (heads, sum(block.included.shape[1] for block in run), *sizes)
        row = 0
        for block in run:
            rows = slice(row, row + block.included.shape[1])
            lines.append(_Lines(block, begin, end, shape, rows))
            row = rows.stop
    return lines


def _in_order(runs: Sequence[Sequence[ColumnBlock]]) -> bool:
    """Whether lines are in order already: one normalizer, layers and positions ascending."""
    layers = [run[0].layer for run in runs]
    positions = [[position for block in run for position in block.positions] for run in runs]
    return all(a < b for numbers in (layers, *positions) for a, b in pairwise(numbers))


# Arrays of heads x rows x keys in float64 that measuring a block of rows holds at one time, at most.
_COPIES = {"cpu": 4}
_COPIES_ELSEWHERE = 12

# Shorter blocks see fewer keys, longer ones have more to share out to threads.
_MOST_ROWS = 256

# Largest weights of a head's row that the report shows over the text.
_SHOWN_WEIGHTS = 64


def what_ifs(
    settings: Settings, normalizer: Normalizer, sinks: Tensor | None = None
) -> Iterator[tuple[str, Normalizer]]:
    """The other normalizers that were asked for, by label, and all of them and the model's at each temperature.

    The model keeps its sinks, as it does when a normalizer is swapped in.
    """
    others = {label: with_sinks(each, sinks) for label, each in settings.normalizers.items()}
    yield from others.items()
    for temperature in settings.temperatures:
        for label, each in {tables.OWN: normalizer, **others}.items():
            short = f"{temperature:g}"
            number = short if float(short) == temperature else repr(temperature)  # two that differ keep two names
            yield f"{label}:temperature={number}", at_temperature(each, sinks, temperature)


@dataclass
class Window(WindowRecord):
    """The columns of one window while the model runs."""

    rows: list[ColumnBlock] = field(default_factory=list)
    topn: list[ColumnBlock] = field(default_factory=list)
    weights: dict[int, ColumnBlock] = field(default_factory=dict)  # of the last row, by layer
    patterns: Patterns = field(default_factory=Patterns)
    last: int = -1  # the last row wanted of the input at work
    _visibility: Visibility | None = field(default=None, init=False, repr=False)
    _mask_key: Hashable = field(default=None, init=False, repr=False)

    def visibility(self, call: Call, positions: tuple[int, ...]) -> Visibility:
        """The keys that rows of a call see, reused for the next layer with the same mask."""
        mask_key = None if call.mask_key is None else (call.mask_key, positions)
        if self._visibility is None or mask_key is None or mask_key != self._mask_key:
            visible = call.visible(positions)
            if self._visibility is None or not self._visibility.of_all_heads(visible):
                self._visibility = Visibility(visible)
        self._mask_key = mask_key
        return self._visibility


@dataclass(frozen=True)
class ScanMeasurer:
    """Measures attention calls as the settings say: the measurer of a scan."""

    settings: Settings

    @property
    def vectors(self) -> tuple[VectorKind]:
        return (self.settings.vectors,)

    def start(self, number: int) -> Window:
        return Window(number)

    def measure(self, window: Window, layer: LayerCall, positions: Positions) -> None:
        """Measure the wanted rows of one attention call, in blocks that keep within the memory budget."""
        call, vectors = layer.call, layer.vectors[self.settings.vectors].contiguous()
        wanted = tuple(position for group in positions.values() for position in group)
        finite = _to_array(_all_finite(vectors)).repeat(call.heads // len(vectors))
        normalizer = effective_normalizer(call)
        window.last = wanted[-1]

        def measure(block: tuple[int, ...]) -> None:
            visibility = window.visibility(call, block)
            if layer.causal and (visibility.ends > np.array(block) + 1).any():
                raise ModelError(
                    f"{layer.name} sees later tokens, so it is not causal as its class says; attnscope cannot take "
                    "every length from one forward"
                )
            stop = max(1, int(visibility.ends.max()))  # what no row sees need not be computed
            logits = call.logits(block, keys=stop)
            visible = visibility.visible[..., :stop]
            rows = Rows(layer.number, block, logits, visible, vectors, call.sinks, visibility)
            self._block(window, rows, visibility.length, finite, normalizer)

        copies = _COPIES.get(vectors.device.type, _COPIES_ELSEWHERE)
        measured = layer.in_blocks(
            window, wanted, measure, budget=self.settings.memory_budget, copies=copies, most_rows=_MOST_ROWS
        )
        # An encoder runs once for each length: the pattern is that of the longest. Inputs have no lengths.
        longest = not self.settings.lengths or max(positions) == self.settings.lengths[-1]
        if measured and longest and window.number == 0:
            window.patterns.add(window, layer, normalizer, self.settings.memory_budget)

    def finish(self, window: Window) -> Part:
        """The window's tables, without the heads that were skipped."""
        order = ("layer", "head", "position", "length", "normalizer")
        frames = {
            "rows": table(window.rows, tables.ROWS, order),
            "topn": table(window.topn, tables.TOPN, (*order, "n")),
            "weights": table(list(window.weights.values()), tables.WEIGHTS, ("layer",)),
            "patterns": window.patterns.table(),
        }
        return window.part({name: without_heads(each, window.skipped) for name, each in frames.items()})

    def _block(
        self, window: Window, rows: Rows, length: NDArray[np.int64], finite: NDArray[np.bool_], own: Normalizer
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
            per_row, per_set = measured_columns(
                rows,
                weights,
                self.settings.top_n,
                self.settings.paper_bounds_length,
                None if label == tables.OWN and isinstance(own, Softmax | SinkSoftmax) else normalizer,
            )
            if label == tables.OWN:
                usable = self._usable_heads(window, rows, per_row, finite)
                window.dropped_rows += int((usable[:, None] & ~kept).sum())
                kept = usable[:, None] & kept
            else:
                sound = np.isfinite(per_row["weight_sum"]) | ~kept
                for head in (~sound).any(-1).nonzero()[0].tolist():
                    window.skipped.setdefault((rows.layer, head), f"weights of {label} not finite")
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
        yield from what_ifs(self.settings, own, rows.sinks)

    def _keys(self, rows: Rows, window: int, length: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        return {
            "window": np.array(window),
            "layer": np.array(rows.layer),
            "head": np.arange(rows.heads)[:, None],
            "position": np.array(rows.positions),
            "length": length,
        }

    def _usable_heads(
        self, window: Window, rows: Rows, per_row: dict[str, NDArray[Any]], vectors: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Which heads have finite logits and weights, and vectors as given; the others are recorded and left out."""
        # What is measured of a row shows whether a logit is not finite; only then all of them are looked at.
        sound = np.isfinite(per_row["logit_range"] + per_row["weight_sum"]) | (per_row["length"] == 0)
        logits = sound.all(-1)
        if not logits.all():
            logits = _to_array(_all_finite(torch.where(rows.visible, rows.logits, 0)))
        weights = (np.isfinite(per_row["weight_sum"]) | (per_row["length"] == 0)).all(-1)
        usable: NDArray[np.bool_] = logits & weights & vectors
        if not usable.all():
            for name, finite in (("logits", logits), ("weights", weights), ("vectors", vectors)):
                for head in (~finite).nonzero()[0].tolist():
                    window.skipped.setdefault((rows.layer, head), f"{name} not finite")
        return usable


def measured_columns(
    rows: Rows,
    weights: Float[Tensor, "heads rows keys"],
    top_n: Sequence[int],
    delta_max_length: int,
    normalizer: Normalizer | None,
) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """`measure.columns` as arrays, with the Jacobian of the normalizer; None for a model's own softmax."""
    measured = columns(rows, weights, top_n, delta_max_length)
    per_row, per_set = ({name: _to_array(values) for name, values in part.items()} for part in measured)
    if normalizer is not None:
        per_row["jacobian_norm"] = _to_array(normalizer.jacobian_norm(rows.logits, rows.visible))
        per_row["jacobian_bound"] = _to_array(normalizer.jacobian_bound(rows.logits, rows.visible))
    return per_row, per_set


def _to_array(values: Tensor) -> NDArray[Any]:
    """A tensor as an array in main memory, without its gradient."""
    array: NDArray[Any] = values.detach().cpu().numpy()
    return array


def _all_finite(values: Float[Tensor, "some ..."]) -> Bool[Tensor, " some"]:
    """Whether all values are finite, for each index of the first axis: one pass, as sums carry what is not."""
    sums = values.flatten(1).sum(-1)
    return sums.isfinite() if sums.isfinite().all() else values.flatten(1).isfinite().all(-1)


def _largest(rows: Rows, weights: Float[Tensor, "heads keys"], keys: dict[str, NDArray[np.int64]]) -> ColumnBlock:
    """The largest weights of the last row of every head, the larger first; weights of zero are left out."""
    weight, key = (_to_array(found)[:, None] for found in weights.topk(min(_SHOWN_WEIGHTS, weights.shape[-1])))
    shape = keys["length"].shape
    last = {name: np.broadcast_to(values, shape)[:, -1:, None] for name, values in keys.items()}
    columns = last | {"key": key, "weight": weight}
    return ColumnBlock(rows.layer, tables.OWN, rows.positions[-1:], columns, weight > 0)
