"""Attention patterns of the first window: some rows of every head, their weights summed over runs of keys.

A pattern is at most `CELLS` rows by `CELLS` runs of keys, however long the window is. The rows are queries of the model
as they are (not means over rows), spread evenly over the window with the last one included; a cell is the total weight
of its row on a run of keys. The sink weight, on which many heads rest, is stored too.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from torch.nn import functional

from attnscope.capture.attention import unpadded
from attnscope.intervals import evenly_spaced
from attnscope.store import tables

if TYPE_CHECKING:
    from jaxtyping import Bool, Shaped
    from numpy.typing import NDArray
    from torch import Tensor

    from attnscope.capture.attention import Call
    from attnscope.engine.run import LayerCall, WindowRecord
    from attnscope.normalizers import Normalizer

CELLS = 64
# Arrays of heads x rows x keys in float64 at one time: logits, weights, and what normalizing them takes.
_COPIES = 6


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

        if layer.in_blocks(record, grid.rows, measure, budget=budget, copies=_COPIES):
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
