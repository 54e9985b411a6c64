"""The compiled way to the columns, on the CPU: the rows of a group are shared out to threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from attnscope._threads import share_out
from attnscope.measure import _kernels_columns, _kernels_measure, _kernels_rows, _kernels_sets
from attnscope.measure._kernels_products import FEWEST
from attnscope.measure._kernels_tiles import PANEL
from attnscope.measure._memory import scratch
from attnscope.measure.layer import NO_PAIRS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from attnscope.measure.layer import Layer
    from attnscope.measure.rows import Rows

# Tasks for each thread, at least, so that threads end together.
_TASKS = 3


def row_columns(rows: Rows, weights: Tensor) -> dict[str, Tensor]:
    """As `measure.rows.row_columns`."""
    masks, mask_of = _masks(rows.visible)
    spans = _spans(masks)
    flat, logits = _flat(weights), _flat(rows.logits)
    out = np.empty((len(flat), len(_kernels_rows.COLUMNS)))
    step = max(1, -(-len(flat) // (2 * torch.get_num_threads())))

    def measure(first: int) -> None:
        _kernels_rows.spread(flat, logits, masks, mask_of, spans, out, first, min(len(flat), first + step))

    share_out(measure, range(0, len(flat), step))
    shaped = torch.from_numpy(out).view(*weights.shape[:2], -1)
    columns = dict(zip(_kernels_rows.COLUMNS, shaped.unbind(-1), strict=True))
    return columns | {name: columns[name].long() for name in ("length", "support")}


def topn_columns(
    rows: Rows, weights: Tensor, n: Sequence[int], layer: Layer, delta_keys: int | None
) -> dict[str, Tensor]:
    """As `measure.topn.topn_columns`; rows of more than `delta_keys` keys have no delta."""
    masks, mask_of = _masks(rows.visible)
    block = _Block(rows, _flat(weights), masks, mask_of, np.array(n), layer, delta_keys)
    share_out(block.measure, block.tasks())
    shaped = torch.from_numpy(block.out).view(*weights.shape[:2], len(n), -1)
    return dict(zip(_kernels_sets.COLUMNS, shaped.unbind(-1), strict=True))


class _Block:
    """One call: the rows of all groups, and where their columns go."""

    def __init__(
        self,
        rows: Rows,
        weights: NDArray[np.float64],
        masks: NDArray[np.bool_],
        mask_of: NDArray[np.int64],
        wanted: NDArray[np.int64],
        layer: Layer,
        delta_keys: int | None,
    ) -> None:
        self.weights, self.masks, self.mask_of = weights, masks, mask_of
        self.wanted, self.layer = wanted, layer
        self.groups = len(layer.vectors)
        self.spans = _spans(masks)
        self.delta_keys = layer.vectors.shape[1] if delta_keys is None else delta_keys
        self.gaps = self._gaps_of_scattered()
        self.out = np.empty((len(weights), len(wanted), len(_kernels_sets.COLUMNS)))

    def tasks(self) -> list[tuple[int, NDArray[np.int64]]]:
        """Groups with their rows, evenly spaced; a group is divided if there are few of them."""
        shares = -(-_TASKS * torch.get_num_threads() // self.groups)
        found = []
        for group, own in enumerate(np.arange(len(self.weights)).reshape(self.groups, -1)):
            found += [(share, group, own[share::shares]) for share in range(shares) if len(own[share::shares])]
        found.sort(key=lambda task: task[0])
        return [(group, rows) for _, group, rows in found]

    def measure(self, task: tuple[int, NDArray[np.int64]]) -> None:
        """Fill `out` for some rows of a group."""
        index, rows = task[0], np.ascontiguousarray(task[1])  # of one layout, so that the loop is compiled once
        sets, largest = len(self.wanted), int(min(self.wanted[-1], self.masks.shape[-1]))
        deltas = self._deltas(index, rows)
        listing = self.layer.listing_pays(len(self.weights) // self.groups, largest)
        pairs = self.layer.far_pairs(index) if listing else NO_PAIRS
        group = self.layer.group(index)
        covered, single = len(group.unit_panels) * PANEL, np.float32
        together = _kernels_measure.BATCH * _kernels_measure.products_of(sets)
        _kernels_measure.measure(
            rows, self.weights, self.masks, self.mask_of, self.spans, self.wanted,
            group.scale, group.vectors, group.mean, group.norms2, group.norms32, group.inverses, group.unit_squares,
            group.unit_panels, group.centred_squares, group.centred_panels, 2 * group.centred_error,
            pairs.prefixes, pairs.starts, pairs.longest, pairs.partners, pairs.gaps, deltas,
            scratch("lines", (_kernels_columns.LINES, covered), single),
            scratch("products", (together + FEWEST, covered), single),
            scratch("few", (max(largest, together) + FEWEST, group.vectors.shape[1]), single), self.out,
        )  # fmt: skip

    def _deltas(self, index: int, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """delta of some rows: by prefix where a row sees one, else what was found for its keys."""
        masks = self.mask_of[rows]
        first, last, length = self.spans[masks].T
        found = self.gaps[index, masks] if self.gaps is not None else np.full(len(rows), np.nan)
        by_prefix = (first == 0) & (last == length) & (length > 0) & (length <= self.delta_keys)
        if by_prefix.any():
            found[by_prefix] = self.layer.prefix_gaps(index, self.delta_keys)[length[by_prefix] - 1]
        return found

    def _gaps_of_scattered(self) -> NDArray[np.float64] | None:
        """delta for every group and mask that is no prefix, once for equal masks; None if there is no such mask."""
        first, last, length = self.spans.T
        own = ((first > 0) | (last > length)) & (length <= self.delta_keys)
        if not own.any():
            return None
        found = np.full((self.groups, len(self.masks)), np.nan)
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


def _masks(visible: Tensor) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """The rows' masks, those of one head where all heads have the same, and for every row which one is its own."""
    heads, rows, _ = visible.shape
    shared = heads == 1 or visible.stride(0) == 0
    masks = visible[0] if shared else visible.reshape(heads * rows, -1)
    index = np.tile(np.arange(rows), heads) if shared else np.arange(heads * rows)
    return masks.contiguous().numpy(), index


def _spans(masks: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Of each mask the first visible key, the end of them, and how many they are."""
    lengths = masks.sum(-1)
    stops = masks.shape[-1] - masks[:, ::-1].argmax(-1)
    return np.stack([masks.argmax(-1), np.where(lengths > 0, stops, 0), lengths], -1)
