"""A row as it would be in a longer input: its nearest keys where they are, the first keys of its window at the far end,
and in between keys of the other windows, each moved to a distance at which a new key will stand.

The logits of an extended row are ordered by distance: index d holds the key at distance d. The row of length n is its
first n - s entries, followed by the s first keys of the window. Every entry is one key, so that any normalizer applies
as it is, and those that depend on the length see the new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from attnscope.capture.attention import AttentionCall
from attnscope.errors import ModelError

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from attnscope.capture.attention import Call
    from attnscope.experiments.horizon.positions import LayerPositions
    from attnscope.normalizers import Normalizer

MEASURES = ("top5", "participation", "entropy_ratio", "max_weight")
TOP = 5
SHORTEST = 64  # tokens of a window


class Moves(NamedTuple):
    """Which keys stand at the new distances, nearest first: their windows, their positions, how much further away."""

    windows: Int[Tensor, " moves"]
    keys: Int[Tensor, " moves"]
    further: Int[Tensor, " moves"]


@dataclass(frozen=True)
class Layout:
    """Which rows of a window are extended, which of its keys stay, and which keys stand for new ones.

    A key with little text before it gets more weight than the same key later on. The first keys of a window (W/16 of
    them) are therefore the beginning of longer inputs too, and the others of its first quarter are left out: keys of
    the row's own window, and the pool of new keys, begin after it.

    >>> layout(1024, 4)
    Layout(beginning=64, pool=range(256, 1024), rows=(576, 725, 874, 1023), alone=False)
    """

    beginning: int
    pool: range
    rows: tuple[int, ...]
    alone: bool = False  # the pool is of the row's own window, not of the others

    def moves(self, longest: int, window: int, windows: int) -> Moves:
        """The keys at the new distances of the rows of one of several windows.

        The row at position p has keys of its own up to the distance p - pool.start. The new distances after that take
        the pools of the other windows in turn, each backwards, as often as needed.
        """
        new = torch.arange(longest - 1 - (self.rows[0] - self.pool.start))
        turn, index = new // len(self.pool), new % len(self.pool)
        others = [(window + step) % windows for step in range(1, windows)]
        sources = torch.tensor([window] if self.alone else others)
        keys = self.pool[-1] - index
        # From distance p - key to p - pool.start + 1 + new.
        return Moves(sources[turn % len(sources)], keys, new + 1 - self.pool.start + keys)


def layout(length: int, rows: int) -> Layout:
    """The layout of windows of `length` tokens with `rows` extended rows, or as many as there are."""
    beginning = max(1, length // 16)
    return Layout(beginning, range(length // 4, length), spread(length // 2 + beginning, length - 1, rows))


def layout_alone(length: int, rows: int) -> Layout:
    """The layout where the logits of keys of other windows are not known: the pool is what rows see of their own.

    >>> layout_alone(1024, 4)
    Layout(beginning=64, pool=range(256, 640), rows=(656, 778, 901, 1023), alone=True)

    A gap of W/64 lies before the rows, because keys of their own sentence are no pool.
    """
    pool = range(length // 4, length * 5 // 8)
    return Layout(max(1, length // 16), pool, spread(pool.stop + length // 64, length - 1, rows), alone=True)


def spread(first: int, last: int, count: int) -> tuple[int, ...]:
    """At most `count` positions from the first to the last, spread evenly; the last is among them."""
    count = min(count, last - first + 1)
    return tuple(last - round((last - first) * (count - 1 - i) / max(1, count - 1)) for i in range(count))


@dataclass(frozen=True, eq=False)
class ExtendedRows:
    """Logits of some rows of all heads, extended to the longest of several lengths."""

    by_distance: Float[Tensor, "heads rows distances"]
    beginnings: dict[int, Float[Tensor, "heads rows beginning"]]  # at the far end, by length
    sliding_window: int | None

    def at(self, length: int) -> Float[Tensor, "heads rows keys"]:
        """Logits of the rows with this number of keys, or with those that a sliding window leaves of them."""
        beginning = self.beginnings[length]
        row = torch.cat([self.by_distance[..., : length - beginning.shape[-1]], beginning.flip(-1)], -1)
        return row[..., : self.sliding_window]


def extend_rows(
    call: Call, item: int, positions: LayerPositions, layout: Layout, rows: Sequence[int], lengths: Sequence[int]
) -> ExtendedRows:
    """The logits of `rows` of the layout in one window of a batch, at each of the lengths."""
    distances = max(lengths) - layout.beginning
    own = torch.arange(layout.pool.start, rows[-1] + 1)
    near = positions.logits(call, item, rows, _still(item, own))
    far = positions.logits(call, item, rows, layout.moves(max(lengths), item, call.batch))
    by_distance = far.new_empty(call.heads, len(rows), distances)
    first = torch.arange(layout.beginning).repeat(len(lengths))
    firsts = []
    for index, row in enumerate(rows):
        count = row + 1 - layout.pool.start
        by_distance[:, index, :count] = near[:, index, :count].flip(-1)
        by_distance[:, index, count:] = far[:, index, : distances - count]
        further = torch.tensor([length - 1 - row for length in lengths]).repeat_interleave(layout.beginning)
        firsts.append(positions.logits(call, item, [row], Moves(torch.full_like(first, item), first, further)))
    beginnings = torch.cat(firsts, 1).split(layout.beginning, -1)
    return ExtendedRows(by_distance, dict(zip(lengths, beginnings, strict=True)), sliding_window(call, rows[-1]))


def _still(item: int, keys: Int[Tensor, " keys"]) -> Moves:
    """Keys of one window that stay where they are."""
    return Moves(torch.full_like(keys, item), keys, torch.zeros_like(keys))


def sliding_window(call: Call, row: int) -> int | None:
    """How many keys a row of a layer sees at most; None if it sees all keys before it.

    Keys that are hidden in any other way are refused: nothing says which ones a longer input would hide.
    """
    size = call.options.get("sliding_window") if isinstance(call, AttentionCall) else None
    seen = call.visible([row])[:, 0].cpu()
    if size is None and not seen[0, 0]:
        size = int(seen[0].sum())
    expected = torch.arange(call.keys) <= row
    if size is not None:
        expected &= torch.arange(call.keys) > row - size
    if bool((seen != expected).any()):
        raise ModelError(
            f"{type(call.module).__name__} hides keys in a way that is neither causal nor a sliding window: rows of "
            "longer inputs do not follow from shorter ones"
        )
    return None if size is None else int(size)


def row_measures(
    normalizer: Normalizer,
    logits: Float[Tensor, "heads rows keys"],
    visible: Bool[Tensor, "heads rows keys"] | None = None,
) -> Float[Tensor, "heads rows 4"]:
    """The `MEASURES` of rows over their visible keys; an entropy ratio of a single key is 0."""
    weights = normalizer.weights(logits, visible).detach()
    keys = torch.full_like(weights[..., 0], weights.shape[-1]) if visible is None else visible.sum(-1)
    top = weights.topk(min(TOP, weights.shape[-1])).values
    squares = torch.einsum("hrk,hrk->hr", weights, weights)
    entropy = torch.special.entr(weights).sum(-1)
    measured = (top.sum(-1), 1 / squares, entropy / keys.clamp_min(2).log(), top[..., 0])
    return torch.stack(measured, -1).double()
