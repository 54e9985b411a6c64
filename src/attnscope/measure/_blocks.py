"""The compiled way to the columns, on the CPU: the rows of a group are shared out to threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attnscope._kernels_tiles import PANEL
from attnscope._threads import share_out
from attnscope.measure import _kernels_columns, _kernels_measure, _kernels_rows, _kernels_sets
from attnscope.measure._kernels_panels import distance_words
from attnscope.measure._kernels_products import AT_ONCE, FEWEST
from attnscope.measure._memory import held, scratch
from attnscope.measure.layer import NO_PAIRS
from attnscope.measure.visibility import Visibility

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from attnscope.measure.layer import LayerVectors
    from attnscope.measure.rows import Rows

_TASKS = 3  # for each thread, at least
_LAST = 4  # tasks of each of the last groups, if they have many rows
_MANY = 64


def columns(
    rows: Rows, weights: Tensor, n: Sequence[int], layer: LayerVectors, delta_max_length: int | None
) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """As `measure.rows.row_columns` and `measure.topn.topn_columns`.

    Rows of more than `delta_max_length` keys have no delta.
    """
    block = _Block(
        _flat(weights), _flat(rows.logits), rows.seen or Visibility(rows.visible), np.array(n), layer, delta_max_length
    )
    share_out(block.measure, block.tasks())
    shape = weights.shape[:2]
    per_row = dict(zip(_kernels_rows.COLUMNS, block.of_rows.reshape(-1, *shape), strict=True))
    per_set = dict(zip(_kernels_sets.COLUMNS, block.of_sets.reshape(-1, *shape, len(n)), strict=True))
    with np.errstate(invalid="ignore"):  # a row with NaN has no support
        return per_row | {name: per_row[name].astype(np.int64) for name in ("length", "support")}, per_set


class _Block:
    """One call: the rows of all groups, and where their columns go."""

    def __init__(
        self,
        weights: NDArray[np.float64],
        logits: NDArray[np.float64],
        seen: Visibility,
        wanted: NDArray[np.int64],
        layer: LayerVectors,
        delta_max_length: int | None,
    ) -> None:
        self.weights, self.logits = weights, logits
        self.masks, self.mask_of, self.spans = seen.masks, seen.mask_of, seen.spans
        self.wanted, self.layer = wanted, layer
        self.groups, keys, self.dims = layer.numbers.shape  # read by this thread, before the others want them
        self.covered = -(-keys // PANEL) * PANEL
        self.largest = int(min(wanted[-1], weights.shape[-1]))
        self.listing = layer.listing_pays(len(weights) // self.groups, self.largest)
        self.delta_max_length = keys if delta_max_length is None else min(delta_max_length, keys)
        first, last, lengths = self.spans.T
        prefix, near = (first == 0) & (last == lengths), lengths <= self.delta_max_length
        self.by_prefix = (prefix & near & (lengths > 0)).nonzero()[0]
        self.prefixes = lengths[self.by_prefix] - 1
        self.gaps = self._gaps_of_scattered(~prefix & near)
        # Each column in one piece: the tables want it so.
        self.of_rows = np.empty((len(_kernels_rows.COLUMNS), len(weights)))
        self.of_sets = np.empty((len(_kernels_sets.COLUMNS), len(weights), len(wanted)))

    def tasks(self) -> list[tuple[int, NDArray[np.int64]]]:
        """Groups with their rows, evenly spaced; some groups are divided, so that threads end together."""
        threads = torch.get_num_threads()
        fewest = -(-_TASKS * threads // self.groups)
        found = []
        for group, own in enumerate(np.arange(len(self.weights)).reshape(self.groups, -1)):
            last = group >= self.groups - threads and len(own) >= _MANY
            shares = max(fewest, _LAST) if last else fewest
            found += [(share, group, own[share::shares]) for share in range(shares) if len(own[share::shares])]
        found.sort(key=lambda task: task[0])
        return [(group, rows) for _, group, rows in found]

    def measure(self, task: tuple[int, NDArray[np.int64]]) -> None:
        """Fill the columns of some rows of a group."""
        index, rows = task[0], np.ascontiguousarray(task[1])  # of one layout, so that the loop is compiled once
        _kernels_rows.spread(rows, self.weights, self.logits, self.masks, self.mask_of, self.spans, self.of_rows)
        deltas = self._deltas(index)[self.mask_of[rows]]
        pairs = self.layer.far_pairs(index) if self.listing else NO_PAIRS
        group = self.layer.group(index)
        scratches = held("rows", (len(self.wanted), self.largest, self.covered, self.dims), self._scratch)
        _kernels_measure.measure(
            rows, self.weights, self.masks, self.mask_of, self.spans, self.wanted,
            group.scale, group.vectors, group.mean, group.norms2, group.norms32, group.inverses, group.unit_squares,
            group.unit_panels, group.centred_squares, group.centred_panels, group.distance_panels, group.spread,
            2 * group.centred_error,
            pairs.prefixes, pairs.starts, pairs.longest, pairs.partners, pairs.gaps, deltas, *scratches, self.of_sets,
        )  # fmt: skip

    def _scratch(self) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32], NDArray[np.int32]]:
        single, together = np.float32, _kernels_measure.BATCH * _kernels_measure.products_of(len(self.wanted))
        return (
            scratch("lines", (_kernels_columns.LINES, self.covered), single),
            scratch("products", (together + FEWEST, self.covered), single),
            scratch("few", (max(self.largest, together) + FEWEST, self.dims), single),
            scratch("few integers", (AT_ONCE, distance_words(self.dims)), np.int32),
        )

    def _deltas(self, index: int) -> NDArray[np.float64]:
        """delta of all masks: by prefix where one shows a prefix, else what was found for its keys."""
        found: NDArray[np.float64] = self.gaps[index]
        if len(self.by_prefix):
            found[self.by_prefix] = self.layer.prefix_gaps(index, self.delta_max_length)[self.prefixes]
        return found

    def _gaps_of_scattered(self, own: NDArray[np.bool_]) -> NDArray[np.float64]:
        """delta for every group and some masks, once for equal ones; NaN for the others."""
        found = np.full((self.groups, len(self.masks)), np.nan)
        if not own.any():
            return found
        masks, which = np.unique(self.masks[own], axis=0, return_inverse=True)
        gaps = np.empty((self.groups, len(masks)))

        def search(piece: tuple[int, int]) -> None:
            group, mask = piece
            gaps[group, mask] = self.layer.gap(group, masks[mask].nonzero()[0])

        share_out(search, [(g, m) for g in range(self.groups) for m in range(len(masks))])
        found[:, own] = gaps[:, which.reshape(-1)]
        return found


def _flat(values: Tensor) -> NDArray[np.float64]:
    return values.detach().contiguous().view(-1, values.shape[-1]).numpy()
