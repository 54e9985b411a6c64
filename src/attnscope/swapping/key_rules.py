"""Which of a row's keys a simpler rule keeps: one function for captured rows and for heads inside a model.

A key rule takes the rows' scores (logits or weights), which keys are visible, and the positions of the queries; it
returns the mask of the keys to keep. Without positions (inside a model) every query is taken to be its last visible
key. torch is imported where it is used: the report reads the states, which name these rules, without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

KeyRule = Callable[["Tensor", "Tensor", "Sequence[int] | None"], "Tensor"]


def first_visible(visible: Bool[Tensor, "*batch keys"]) -> Bool[Tensor, "*batch keys"]:
    """Mask of the first visible key of each row."""
    return visible & (visible.cumsum(-1) == 1)


def keep_first(scores: Tensor, visible: Tensor, positions: Sequence[int] | None = None) -> Tensor:
    """Key rule: the first visible key."""
    return first_visible(visible)


def keep_near(count: int, first: int = 1) -> KeyRule:
    """Key rule: the `first` first visible keys and the `count` visible keys nearest to the query."""
    return lambda scores, visible, positions: first_and_near(visible, count, positions, first)


def keep_top(share: float | Tensor) -> KeyRule:
    """Key rule: the share of the visible keys with the largest scores; a tensor of shares broadcasts over the rows."""
    return lambda scores, visible, positions: largest(scores, visible, top_counts(visible, share))


def first_and_near(
    visible: Bool[Tensor, "*batch rows keys"], count: int, positions: Sequence[int] | None = None, first: int = 1
) -> Bool[Tensor, "*batch rows keys"]:
    """Mask of the `first` first visible keys and the `count` visible keys nearest to the query, itself included.

    Of two keys at the same distance the earlier is nearer. In a causal row the nearest keys are the last ones.
    """
    rank = visible.cumsum(-1)
    if positions is None:
        return visible & ((rank <= first) | (rank > rank[..., -1:] - count))
    import torch

    keys = torch.arange(visible.shape[-1], device=visible.device)
    queries = torch.tensor(list(positions), device=visible.device)[:, None]
    # Twice the distance, minus one on the left side, so that no two keys are equally near.
    distance = 2 * (keys - queries).abs() - (keys < queries).long()
    distance = torch.where(visible, distance, torch.iinfo(torch.long).max)
    farthest = distance.topk(min(count, visible.shape[-1]), dim=-1, largest=False).values[..., -1:]
    return visible & ((rank <= first) | (distance <= farthest))


def top_counts(visible: Bool[Tensor, "*batch keys"], share: float | Tensor) -> Int[Tensor, "*batch 1"]:
    """The number of keys in a share of each row, rounded up and at least one."""
    part = share if isinstance(share, int | float) else share.to(visible.device)
    return (visible.sum(-1, keepdim=True) * part).ceil().long().clamp_min(1)


def largest(
    scores: Float[Tensor, "*batch keys"], visible: Bool[Tensor, "*batch keys"], count: Int[Tensor, "*batch 1"]
) -> Bool[Tensor, "*batch keys"]:
    """Mask of the visible keys with the `count` largest scores of each row, ties broken by position.

    Without sorting, which would take most of a model's run. A row that contains NaN keeps all its keys.
    """
    import torch

    from attnscope._numerics import mark_top
    from attnscope._process import parallel_for

    masked = scores.detach().masked_fill(~visible, -torch.inf)
    rows = masked.reshape(-1, masked.shape[-1]).to("cpu", torch.promote_types(masked.dtype, torch.float32))
    marks = torch.empty(rows.shape, dtype=torch.bool)
    counts = count.expand(*masked.shape[:-1], 1).reshape(-1).cpu()
    arrays = (rows.numpy(), counts.numpy(), marks.numpy())
    step = -(-len(rows) // torch.get_num_threads())
    parallel_for(lambda start: mark_top(*arrays, start, min(start + step, len(rows))), range(0, len(rows), step))
    return marks.view(masked.shape).to(visible.device)
