"""A row as it would be in a longer input: its nearest keys where they are, the first keys rotated to longer distances.

Rotary positions turn the vector of a token at position p by the angle p theta in each of several planes. Families
differ in how the planes lie in the vector, in how much of it they turn, and in how the angles follow from the
configuration (plain, linear, llama3, YaRN, ...). None of that is assumed: `fit_rotation` compares the keys of the same
tokens at several positions, tries every usual arrangement of planes, and measures the angles.

and in between keys of the other windows, each moved to a distance at which a new key will stand.

The logits of an extended row are ordered by distance: index d holds the key at distance d. The row of length n is its
first n - s entries, followed by the s first keys of the window. Every entry is one key, so that any normalizer applies
as it is, and those that depend on the length see the new one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from attnscope.capture.attention import AttentionCall
from attnscope.errors import ModelError

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from attnscope.capture.attention import Call
    from attnscope.normalizers import Normalizer

    LayerPositions = Any  # of positions.py, which imports this file


class Planes(NamedTuple):
    """The two dimensions of each plane, as slices of a vector."""

    first: slice
    second: slice


@dataclass(frozen=True, eq=False)
class Rotation:
    """Turns each plane of a vector by its angle for every position that the vector moves.

    >>> quarter = Rotation(Planes(slice(0, 1), slice(1, 2)), torch.tensor([math.pi / 2], dtype=torch.float64))
    >>> quarter.moved(torch.tensor([[1.0, 0.0, 5.0]]), torch.tensor([1])).round()
    tensor([[0., 1., 5.]])
    """

    planes: Planes
    angles: Float[Tensor, " planes"]  # radians for one position, float64

    def moved(self, vectors: Float[Tensor, "*some dims"], by: Int[Tensor, "*some"]) -> Float[Tensor, "*some dims"]:
        """The vectors as they would be `by` positions later, or earlier where it is negative."""
        angle = by[..., None].double() * self.angles.to(by.device)
        cos, sin = angle.cos().to(vectors.dtype), angle.sin().to(vectors.dtype)
        a, b = vectors[..., self.planes.first], vectors[..., self.planes.second]
        result = vectors.clone()
        result[..., self.planes.first] = a * cos - b * sin
        result[..., self.planes.second] = a * sin + b * cos
        return result


def fit_rotation(vectors: Mapping[int, Float[Tensor, "some dims"]]) -> Rotation:
    """The rotation that comes nearest to giving `vectors[p]` from `vectors[0]` for every position p.

    The positions include 0 and 1, and each is at most eight times the one before. How good the rotation is, is for
    `misfit` to say.
    """
    start = vectors[0].double()
    last = vectors[max(vectors)].double()
    planes = min(_arrangements(start.shape[-1]), key=lambda each: _residual(each, start, last))
    angles = torch.zeros(len(start[0, planes.first]), dtype=torch.float64)
    for position in sorted(vectors)[1:]:
        measured = _turned_by(planes, start, vectors[position].double()).angle()
        turns = torch.round((position * angles - measured) / (2 * math.pi)) if position > 1 else 0
        angles = (measured + 2 * math.pi * turns) / position
    return Rotation(planes, angles)


def misfit(rotation: Rotation, vectors: Mapping[int, Float[Tensor, "some dims"]]) -> float:
    """The largest relative error of `vectors[p]` as `vectors[0]` moved by p, over all positions."""
    start = vectors[0].double()
    by = torch.ones(len(start), dtype=torch.long)
    return max(relative_change(rotation.moved(start, by * position), at) for position, at in vectors.items())


def relative_change(before: Tensor, after: Tensor) -> float:
    """|after - before| / |before|, over all numbers."""
    before, after = before.double(), after.double()
    return float((after - before).norm() / before.norm().clamp_min(1e-30))


def _arrangements(dims: int) -> Iterator[Planes]:
    """Neighboring dimensions, and two halves of the whole vector, of its first or of its last dimensions."""
    even = dims // 2 * 2
    yield Planes(slice(0, even, 2), slice(1, even, 2))
    for half in range(1, dims // 2 + 1):
        for first in {0, dims - 2 * half}:
            yield Planes(slice(first, first + half), slice(first + half, first + 2 * half))


def _complex(planes: Planes, vectors: Tensor) -> Tensor:
    return torch.complex(vectors[:, planes.first], vectors[:, planes.second])


def _turned_by(planes: Planes, start: Tensor, end: Tensor) -> Tensor:
    """The complex factor of each plane that takes `start` nearest to `end`."""
    a, b = _complex(planes, start), _complex(planes, end)
    return (a.conj() * b).sum(0) / a.abs().square().sum(0).clamp_min(1e-30)


def _residual(planes: Planes, start: Tensor, end: Tensor) -> float:
    """The squared error of `start` turned as well as possible in these planes and unchanged elsewhere."""
    factor = _turned_by(planes, start, end)
    inside = (_complex(planes, end) - factor * _complex(planes, start)).abs().square().sum()
    change = (end - start).square().sum(0)
    outside = change.sum() - change[planes.first].sum() - change[planes.second].sum()
    return float(inside + outside)


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
