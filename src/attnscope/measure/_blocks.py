"""The compiled way to the columns, on the CPU: blocks of rows of one group, each on one thread.

For a block: choose the top sets (a loop), multiply all vectors with all contexts (matrix products), measure (a loop).
The largest temporary is a block's products, sets x rows x keys; blocks are cut so that it stays in the cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attnscope.measure import _kernels_pairs, _kernels_rows, _kernels_sets, _kernels_top
from attnscope.measure._workers import product, share_out

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from attnscope.measure.layer import Layer
    from attnscope.measure.rows import Rows

_BLOCK_ROWS = 64
_BLOCK_ENTRIES = 1 << 16  # rows times keys
# A group with fewer rows than this finds d1 row by row: listing the farthest pairs would cost more.
_MANY_ROWS = 48


def row_columns(rows: Rows, weights: Tensor) -> dict[str, Tensor]:
    """As `measure.rows.row_columns`."""
    masks, mask_of = _masks(rows.visible)
    flat, logits = _flat(weights), _flat(rows.logits)
    out = np.empty((len(flat), len(_kernels_rows.COLUMNS)))
    step = max(1, -(-len(flat) // 16))

    def measure(first: int) -> None:
        _kernels_rows.spread(flat, logits, masks, mask_of, out, first, min(len(flat), first + step))

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
    share_out(block.measure, block.pieces())
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
        counts: NDArray[np.int64],
        layer: Layer,
        delta_keys: int | None,
    ) -> None:
        self.weights, self.masks, self.mask_of = weights, masks, mask_of
        self.counts, self.layer = counts, layer
        self.groups = len(layer.vectors)
        self.starts = masks.argmax(-1)
        self.stops = masks.shape[-1] - masks[:, ::-1].argmax(-1)
        self.lengths = masks.sum(-1)
        self.stops[self.lengths == 0] = 0
        self.deltas = self._deltas(delta_keys)
        self.out = np.empty((len(weights), len(counts), len(_kernels_sets.COLUMNS)))

    def pieces(self) -> list[tuple[int, NDArray[np.int64]]]:
        """Blocks of rows of similar length, the long ones first."""
        every = np.arange(len(self.weights)).reshape(self.groups, -1)
        found = []
        for group, own in enumerate(every):
            stops = self.stops[self.mask_of[own]]
            own = own[np.argsort(-stops, kind="stable")]
            first = 0
            while first < len(own):
                longest = max(1, int(self.stops[self.mask_of[own[first]]]))
                size = min(_BLOCK_ROWS, max(1, _BLOCK_ENTRIES // longest))
                found.append((longest * size, group, own[first : first + size]))
                first += size
        found.sort(key=lambda piece: -piece[0])
        return [(group, own) for _, group, own in found]

    def measure(self, piece: tuple[int, NDArray[np.int64]]) -> None:
        """Fill `out` for one block."""
        group, rows = piece
        which = self.mask_of[rows]
        low, high = int(self.starts[which].min()), int(self.stops[which].max())
        if high <= low:
            self.out[rows] = np.nan
            return
        count, sets = len(rows), len(self.counts)
        layer = self.layer
        vectors, units = layer.vectors[group], layer.units[group]
        dims = vectors.shape[-1]
        members = np.zeros((count, int(min(self.counts[-1], self.masks.shape[-1]))), np.int64)
        sizes = np.empty((count, sets), np.int64)
        contexts = torch.empty(count, sets, dims, dtype=torch.float64)
        unit_contexts = torch.empty_like(contexts)
        _kernels_top.choose(
            rows, self.weights, self.masks, self.mask_of, vectors.numpy(), units.numpy(), self.counts,
            members, sizes, contexts.numpy(), unit_contexts.numpy(), 0, count,
        )  # fmt: skip
        seen = vectors[low:high]
        means = torch.from_numpy(self.weights[rows, low:high]) @ seen
        products = product(contexts.view(-1, dims), seen).view(count, sets, -1).numpy()
        mean_products = means @ seen.mT
        unit_products = unit_contexts.view(-1, dims).float() @ layer.units32[group, low:high].mT
        farthest = self._farthest(group, rows, low, high, members, sizes, products)
        _kernels_sets.measure(
            rows, self.weights, self.masks, self.mask_of, vectors.numpy(), units.numpy(),
            layer.norms2[group].numpy(), members, sizes, contexts.numpy(), unit_contexts.numpy(), means.numpy(),
            low, products, mean_products.numpy(),
            unit_products.view(count, sets, -1).numpy(), farthest, self.deltas, self.out, 0, count,
        )  # fmt: skip

    def _farthest(
        self, group: int, rows: NDArray[np.int64], low: int, high: int, members: Any, sizes: Any, products: Any
    ) -> NDArray[np.float64]:
        """d1 for each row and set."""
        layer = self.layer
        vectors, squares = layer.vectors[group].numpy(), layer.centred_squares32[group].numpy()
        found = np.full(sizes.shape, np.nan)
        if len(self.weights) // self.groups >= _MANY_ROWS:
            pairs = layer.far_pairs(group, high)
            _kernels_pairs.walk(
                pairs.low, pairs.high, pairs.gaps, pairs.complete_above, rows, self.weights, self.masks, self.mask_of,
                vectors, layer.norms2[group].numpy(), members, sizes, low, products, found,
            )  # fmt: skip
        error = np.float32(2 * layer.centred_error[group])
        scratch = np.empty((2, high - low), np.float32)
        for r in np.isnan(found[:, 0]).nonzero()[0]:
            mask = self.mask_of[rows[r]]
            first, last = int(self.starts[mask]), int(self.stops[mask])
            own = members[r, : sizes[r, -1]]
            picked = layer.centred32[group, torch.from_numpy(own)]
            direct = product(picked, layer.centred32[group, first:last]).numpy()
            _kernels_pairs.farthest_across(
                direct, squares, error, vectors, first, own, sizes[r], self.masks[mask], scratch, found[r]
            )
        return found

    def _deltas(self, delta_keys: int | None) -> NDArray[np.float64]:
        """delta of every row: by prefix where a row sees one, else from the row's own keys, once for equal sets."""
        prefix = (self.starts == 0) & (self.stops == self.lengths)
        wanted = self.lengths <= (delta_keys or self.masks.shape[-1])
        per_mask = np.full((self.groups, len(self.masks)), np.nan)
        by_prefix = prefix & wanted & (self.lengths > 0)
        if by_prefix.any():
            gaps = self.layer.prefix_gaps.numpy()
            per_mask[:, by_prefix] = gaps[:, self.lengths[by_prefix] - 1]
        own = ~prefix & wanted
        if own.any():
            masks, which = np.unique(self.masks[own], axis=0, return_inverse=True)
            gaps = np.empty((self.groups, len(masks)))

            def search(piece: tuple[int, int]) -> None:
                group, mask = piece
                gaps[group, mask] = self.layer.gap(group, masks[mask].nonzero()[0])

            share_out(search, [(g, m) for g in range(self.groups) for m in range(len(masks))])
            per_mask[:, own] = gaps[:, which.reshape(-1)]
        group_of = np.arange(len(self.weights)) // (len(self.weights) // self.groups)
        return per_mask[group_of, self.mask_of]


def _flat(values: Tensor) -> NDArray[np.float64]:
    return values.detach().contiguous().view(-1, values.shape[-1]).numpy()


def _masks(visible: Tensor) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """The rows' masks, those of one head where all heads have the same, and for every row which one is its own."""
    heads, rows, _ = visible.shape
    shared = heads == 1 or visible.stride(0) == 0
    masks = visible[0] if shared else visible.reshape(heads * rows, -1)
    index = np.tile(np.arange(rows), heads) if shared else np.arange(heads * rows)
    return masks.contiguous().numpy(), index
