"""Which keys of a context each method keeps.

All methods see the same: the keys of the context, and the weights that its last tokens give them. None sees what comes
after the context, except the oracle, which is no method but a limit: it chooses anew in every row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch.nn import functional

from attnscope.errors import ModelError
from attnscope.experiments.budget.settings import FIRST
from attnscope.key_rules import largest
from attnscope.normalizers import softmax

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Bool, Float, Int
    from numpy.typing import NDArray
    from torch import Tensor

    from attnscope.experiments.budget.settings import BudgetSettings
    from attnscope.swapping.interventions import WeightRule

Kind = Literal["first_recent", "top"]
KINDS: tuple[Kind, ...] = ("first_recent", "top")
_POOLED = 5  # neighboring keys whose scores are averaged, as in SnapKV
_SAFEGUARD = 0.2  # of the even share, which every head keeps in AdaKV


def observed_scores(call: Any, settings: BudgetSettings) -> Float[Tensor, "kv_heads length"]:
    """The weight of each key of the context in its last rows, mean over rows, heads that share it and neighbors."""
    rows = range(settings.length - settings.observed, settings.length)
    weights = softmax(call.logits(rows), call.visible(rows))[..., : settings.length].mean(1)
    shared = weights.unflatten(0, (call.key.shape[1], -1)).mean(1)
    return functional.avg_pool1d(shared[:, None], _POOLED, 1, _POOLED // 2, count_include_pad=False)[:, 0]


def selected(
    kind: Kind, counts: Int[Tensor, " kv_heads"], scores: Float[Tensor, "kv_heads length"], settings: BudgetSettings
) -> Bool[Tensor, "kv_heads length"]:
    """Mask of the keys that heads of this kind keep: `counts` of them, protected ones included."""
    length = scores.shape[-1]
    if kind == "top":
        return _highest(_protected(scores, settings), counts)
    keys = torch.arange(length, device=scores.device)
    first = (counts.to(scores.device) - 1).clamp_max(FIRST)[:, None]
    return (keys < first) | (keys >= length - counts.to(scores.device)[:, None] + first)


def _protected(scores: Tensor, settings: BudgetSettings) -> Tensor:
    """Scores with the protected keys before all others: the last tokens, the latest first, then the first keys.

    A head that does not attend to the first keys now may do so later, where it has nothing else to attend to.
    """
    protected = scores.clone()
    protected[:, :FIRST] = 2
    protected[:, -settings.observed :] = 3 + torch.arange(settings.observed, dtype=scores.dtype, device=scores.device)
    return protected


def _highest(scores: Tensor, counts: Tensor) -> Tensor:
    return largest(scores, torch.ones_like(scores, dtype=torch.bool), counts[:, None])


@dataclass(frozen=True)
class Allocation:
    """How many keys each key-value head keeps, and of which kind (an index of `KINDS`); layer after layer."""

    counts: NDArray[np.int64]
    kinds: NDArray[np.int64]


@dataclass(frozen=True)
class Context:
    """What methods choose keys by, one entry for each layer."""

    scores: list[Float[Tensor, "kv_heads length"]]
    norms: list[Float[Tensor, "kv_heads length"]]


Selection = Callable[[Context, "Plan", np.random.Generator], "list[Tensor]"]


@dataclass(frozen=True)
class Plan:
    """The budgets to compare; `even` gives every head the same number of keys, to the same total."""

    settings: BudgetSettings
    kv_heads: list[int]
    ours: Allocation

    @property
    def even(self) -> NDArray[np.int64]:
        """As many keys for every head; the first ones get one more where the total does not divide."""
        total, heads = int(self.ours.counts.sum()), len(self.ours.counts)
        return total // heads + (np.arange(heads) < total % heads).astype(np.int64)

    def masks(self, context: Context, counts: NDArray[np.int64], kinds: NDArray[np.int64]) -> list[Tensor]:
        """The keys that heads of these kinds and counts keep, by layer."""
        masks, start = [], 0
        for scores in context.scores:
            heads = slice(start, start + len(scores))
            near, top = (selected(kind, torch.from_numpy(counts[heads]), scores, self.settings) for kind in KINDS)
            masks.append(torch.where(torch.from_numpy(kinds[heads] == 0).to(scores.device)[:, None], near, top))
            start = heads.stop
        return masks

    def layers(self, counts: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Counts by layer."""
        return np.split(counts, np.cumsum(self.kv_heads)[:-1])


def _of_kind(kind: Kind) -> Selection:
    return lambda context, plan, _: plan.masks(context, plan.even, np.full(len(plan.even), KINDS.index(kind)))


def _ours(context: Context, plan: Plan, draw: np.random.Generator) -> list[Tensor]:
    return plan.masks(context, plan.ours.counts, plan.ours.kinds)


def _shuffled(context: Context, plan: Plan, draw: np.random.Generator) -> list[Tensor]:
    order = draw.permutation(len(plan.ours.counts))
    return plan.masks(context, plan.ours.counts[order], plan.ours.kinds[order])


def _uniform(context: Context, plan: Plan, draw: np.random.Generator) -> list[Tensor]:
    return plan.masks(context, plan.even, plan.ours.kinds)


def _random(context: Context, plan: Plan, draw: np.random.Generator) -> list[Tensor]:
    shares = draw.uniform(0, 1, len(plan.ours.counts))
    counts = with_total(shares * plan.settings.length, int(plan.ours.counts.sum()), plan.settings.length)
    return plan.masks(context, counts, plan.ours.kinds)


def _key_norm(context: Context, plan: Plan, draw: np.random.Generator) -> list[Tensor]:
    """The keys of the smallest norm."""
    even = plan.layers(plan.even)
    return [_highest(-norms, torch.from_numpy(each)) for norms, each in zip(context.norms, even, strict=True)]


def _adakv(context: Context, plan: Plan, draw: np.random.Generator) -> list[Tensor]:
    """The highest scores of a layer, whatever the head, after a part that every head keeps."""
    masks = []
    for scores, even in zip(context.scores, plan.layers(plan.even), strict=True):
        scores = _protected(scores, plan.settings)
        counts = torch.from_numpy(even)
        safe = torch.maximum((counts * _SAFEGUARD).long(), counts.clamp_max(plan.settings.observed + FIRST))
        first = scores.masked_fill(_highest(scores, safe), 3 + scores.shape[-1])
        masks.append(_highest(first.reshape(1, -1), counts.sum()[None]).view_as(scores))
    return masks


SELECTIONS: dict[str, Selection] = {
    "random": _random,
    "uniform": _uniform,
    "streaming": _of_kind("first_recent"),
    "key norm": _key_norm,
    "snapkv-like": _of_kind("top"),
    "adakv-like": _adakv,
    "ours": _ours,
    "shuffled": _shuffled,
}


def with_total(wanted: NDArray[np.float64], total: int, most: int) -> NDArray[np.int64]:
    """Whole numbers from 1 to `most` in about these proportions, with this total."""
    low, high = 0.0, most / max(float(wanted.min()), 1e-9)
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if np.clip(np.floor(wanted * middle), 1, most).sum() <= total else (low, middle)
    counts = np.clip(np.floor(wanted * low), 1, most).astype(np.int64)
    while (missing := total - int(counts.sum())) > 0:
        room = np.flatnonzero(counts < most)
        counts[room[np.argsort(-wanted[room], kind="stable")][:missing]] += 1
    return counts


def kept_rule(mask: Bool[Tensor, "kv_heads length"], heads: int) -> WeightRule:
    """Softmax over the kept keys of the context and all later ones, for `swapping.intervene`."""
    of_heads = mask.repeat_interleave(heads // len(mask), 0)

    def rule(logits: Tensor, visible: Tensor) -> Tensor:
        length = min(of_heads.shape[-1], logits.shape[-1])
        kept = functional.pad(of_heads[:, :length], (0, logits.shape[-1] - length), value=True)
        return softmax(logits, visible & kept[:, None])

    return rule


def oracle_rule(counts: NDArray[np.int64], heads: int, length: int) -> WeightRule:
    """Softmax over the keys of the context with the largest weights in this very row, and all later ones."""
    shared = heads // len(counts)
    number = torch.from_numpy(counts)[:, None, None]

    def rule(logits: Tensor, visible: Tensor) -> Tensor:
        weights = softmax(logits, visible).unflatten(1, (-1, shared)).amax(2)
        context = visible.unflatten(1, (-1, shared))[:, :, 0].clone()
        context[..., length:] = False
        kept = largest(weights, context, number.expand(*weights.shape[:-1], 1)).repeat_interleave(shared, 1)
        kept[..., length:] = True
        return softmax(logits, visible & kept)

    return rule


def count_kept(masks: Sequence[Tensor], total: int, method: str) -> int:
    """The number of kept pairs; raises if a method keeps more or fewer than 1% from the others."""
    kept = sum(int(mask.sum()) for mask in masks)
    if abs(kept - total) > 0.01 * total:
        raise ModelError(f"{method} keeps {kept:,} pairs, not {total:,}: the comparison would not be fair")
    return kept
