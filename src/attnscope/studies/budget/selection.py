"""The settings of a budget, checked, and which keys each method keeps: in every row as many as its budget says.

All methods see the same: the keys of a context, and the weights that its last tokens give them. None sees what comes
after the context, except the oracle, which is no method but a limit: it chooses again in every row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch.nn import functional

from attnscope.errors import InputError, ModelError, parameter, shown, whole_number
from attnscope.normalizers import softmax
from attnscope.swapping.budgets import refusal
from attnscope.swapping.key_budget import largest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Bool, Float, Int
    from numpy.typing import NDArray
    from torch import Tensor

    from attnscope.capture.models import Model
    from attnscope.swapping.changes import WeightRule

DEFAULT_LENGTH = 1024
FIRST = 4  # first keys of a head of kind first_recent, as in StreamingLLM
LEAST_WINDOWS = 3  # an interval over fewer says nothing
_OBSERVED = 32
_SHORTEST = 32


@dataclass(frozen=True)
class BudgetSettings:
    """How much is kept, and of what."""

    keep: float
    length: int  # tokens of the context
    windows: int  # to compare on
    calibration_windows: int  # to measure on
    seed: int

    @property
    def observed(self) -> int:
        """How many of the last tokens of a context choose its keys, and how many tokens follow it."""
        return min(_OBSERVED, self.length // 8)

    def as_json(self) -> dict[str, Any]:
        """The settings for `budget.json`."""
        return {**asdict(self), "observed": self.observed}


def refuse_share(keep: float) -> None:
    """Raise InputError for what is no share of the keys."""
    if isinstance(keep, bool) or not isinstance(keep, int | float) or not 0 < keep <= 1:
        raise InputError(
            f"{parameter('keep')} takes a share of the keys above 0 and at most 1; received {shown(keep)}: use "
            f"{parameter('keep', 0.25)}"
        )


def plan_budget(
    model: Model, keep: float, length: int | None, windows: int, calibration_windows: int, seed: int
) -> BudgetSettings:
    """Check the settings; InputError for shares, lengths and models that no budget can be made for."""
    refuse_share(keep)
    if not model.causal:
        raise InputError(f"{model.name} is an encoder, which caches no keys; budget needs a causal language model")
    reason = refusal(model.module)
    if reason is not None:
        raise ModelError(f"no budget for {model.name}: {reason}")
    longest = None if model.positions is None else model.positions - _OBSERVED
    if length is None:
        length = min(DEFAULT_LENGTH, longest or DEFAULT_LENGTH)
    length = whole_number("length", length, least=_SHORTEST)
    if longest is not None and length > longest:
        raise InputError(
            f"{parameter('length', length)} and {_OBSERVED} further tokens are more than the {model.positions:,} "
            f"positions of {model.name}; use {parameter('length', longest)} or less"
        )
    if keep * length < FIRST + 1:
        raise InputError(
            f"{parameter('keep', keep)} leaves {keep * length:.1f} of {length:,} keys, fewer than {FIRST + 1} for a "
            f"head; use {parameter('keep', round((FIRST + 1) / length + 0.005, 2))} or more"
        )
    return BudgetSettings(
        float(keep),
        length,
        whole_number("windows", windows, least=LEAST_WINDOWS),
        whole_number("calibration_windows", calibration_windows),
        whole_number("seed", seed, least=0),
    )


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


@dataclass(frozen=True)
class LayerChoice:
    """How the heads of one layer choose keys.

    Heads of kind first_recent keep the first keys and the nearest. Heads of kind top keep the first keys, the nearest
    `observed` and those of the highest scores; keys after the context have none, so that rows reach only as far beyond
    it as the nearest keys.
    """

    counts: Int[Tensor, " kv_heads"]
    kinds: Int[Tensor, " kv_heads"]  # indices of `KINDS`
    scores: Float[Tensor, "kv_heads length"]  # at most 1
    observed: int

    def kept(self, rows: Int[Tensor, " rows"], keys: int) -> Bool[Tensor, "kv_heads rows keys"]:
        """Mask of the keys that the rows at these positions keep, `counts` in each, of the first `keys` ones."""
        device = self.scores.device
        key, row = torch.arange(keys, device=device), rows.to(device)[:, None]
        counts = self.counts.to(device)[:, None, None]
        first = (counts - 1).clamp_max(FIRST)
        near = (key < first) | (key > row - (counts - first))
        scores = functional.pad(self.scores[:, :keys], (0, max(0, keys - self.scores.shape[-1])))[:, None]
        # A head that does not attend to the first keys now may do so later, where it has nothing else to attend to.
        scores = torch.where(key < FIRST, 2, scores)
        scores = torch.where(key > row - self.observed, 3.0 + key, scores)
        visible = (key <= row).expand_as(scores)
        top = largest(scores, visible, counts.minimum(visible.sum(-1, keepdim=True)))
        return visible & torch.where(self.kinds.to(device)[:, None, None] == 0, near, top)


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


Selection = Callable[[Context, "KeptKeys", np.random.Generator], "list[LayerChoice]"]


@dataclass(frozen=True)
class KeptKeys:
    """The budgets to compare; `even` gives every head the same number of keys, to the same total."""

    settings: BudgetSettings
    kv_heads: list[int]
    ours: Allocation

    @property
    def even(self) -> NDArray[np.int64]:
        """As many keys for every head; the first ones get one more where the total does not divide."""
        total, heads = int(self.ours.counts.sum()), len(self.ours.counts)
        return total // heads + (np.arange(heads) < total % heads).astype(np.int64)

    def choices(
        self, counts: NDArray[np.int64], kinds: NDArray[np.int64], scores: Sequence[Tensor]
    ) -> list[LayerChoice]:
        """The choice of each layer."""
        parts = zip(self.layers(counts), self.layers(kinds), scores, strict=True)
        observed = self.settings.observed
        return [LayerChoice(torch.from_numpy(n), torch.from_numpy(kind), each, observed) for n, kind, each in parts]

    def layers(self, numbers: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Numbers of all heads, by layer."""
        return np.split(numbers, np.cumsum(self.kv_heads)[:-1])


def _of_kind(kind: Kind) -> Selection:
    return lambda context, plan, _: plan.choices(plan.even, _all(kind, plan), context.scores)


def _all(kind: Kind, plan: KeptKeys) -> NDArray[np.int64]:
    return np.full(len(plan.ours.counts), KINDS.index(kind))


def _ours(context: Context, plan: KeptKeys, draw: np.random.Generator) -> list[LayerChoice]:
    return plan.choices(plan.ours.counts, plan.ours.kinds, context.scores)


def _shuffled(context: Context, plan: KeptKeys, draw: np.random.Generator) -> list[LayerChoice]:
    order = draw.permutation(len(plan.ours.counts))
    return plan.choices(plan.ours.counts[order], plan.ours.kinds[order], context.scores)


def _uniform(context: Context, plan: KeptKeys, draw: np.random.Generator) -> list[LayerChoice]:
    return plan.choices(plan.even, plan.ours.kinds, context.scores)


def _random(context: Context, plan: KeptKeys, draw: np.random.Generator) -> list[LayerChoice]:
    shares = draw.uniform(0, 1, len(plan.ours.counts))
    counts = with_total(shares * plan.settings.length, int(plan.ours.counts.sum()), plan.settings.length)
    return plan.choices(counts, plan.ours.kinds, context.scores)


def _key_norm(context: Context, plan: KeptKeys, draw: np.random.Generator) -> list[LayerChoice]:
    """The keys of the smallest norm in place of the largest weights."""
    return plan.choices(plan.even, _all("top", plan), [1 / (1 + norms) for norms in context.norms])


def _adakv(context: Context, plan: KeptKeys, draw: np.random.Generator) -> list[LayerChoice]:
    """Every head keeps its protected keys and a part of the even number; the rest goes to the layer's best scores."""
    observed, counts = plan.settings.observed, []
    for scores, even in zip(context.scores, plan.layers(plan.even), strict=True):
        safe = np.maximum((even * _SAFEGUARD).astype(np.int64), np.minimum(even, observed + FIRST))
        kinds = torch.ones(len(scores), dtype=torch.long)
        base = LayerChoice(torch.from_numpy(safe), kinds, scores, observed).kept(
            torch.tensor([scores.shape[-1] - 1]), scores.shape[-1]
        )
        free = ~base[:, 0].reshape(1, -1)
        best = largest(scores.reshape(1, -1), free, torch.tensor([[int((even - safe).sum())]])).view_as(scores)
        counts.append(safe + (best & free.view_as(scores)).sum(-1).cpu().numpy())
    return plan.choices(np.concatenate(counts), _all("top", plan), context.scores)


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


def kept_rule(choice: LayerChoice, heads: int) -> WeightRule:
    """Softmax over the kept keys, for `swapping.intervene`; rows are told by how many keys they see."""
    shared = heads // len(choice.counts)

    def rule(logits: Tensor, visible: Tensor) -> Tensor:
        kept = choice.kept(visible[0, 0].sum(-1) - 1, logits.shape[-1]).repeat_interleave(shared, 0)
        return softmax(logits, visible & kept)

    return rule


def oracle_rule(counts: NDArray[np.int64], heads: int) -> WeightRule:
    """Softmax over the keys with the largest weights in this very row."""
    shared = heads // len(counts)
    number = torch.from_numpy(counts)[:, None, None]

    def rule(logits: Tensor, visible: Tensor) -> Tensor:
        weights = softmax(logits, visible).unflatten(1, (-1, shared)).amax(2)
        seen = visible.unflatten(1, (-1, shared))[:, :, 0]
        kept = largest(weights, seen, number.to(seen.device).minimum(seen.sum(-1, keepdim=True)))
        return softmax(logits, visible & kept.repeat_interleave(shared, 1))

    return rule


def count_kept(choices: Sequence[LayerChoice], plan: KeptKeys, method: str) -> int:
    """The pairs that a method keeps in the first row after the context; raises if not within 1% of our number."""
    row, total = torch.tensor([plan.settings.length]), int(plan.ours.counts.sum())
    kept = sum(int(choice.kept(row, plan.settings.length + 1).sum()) for choice in choices)
    if abs(kept - total) > 0.01 * total:
        raise ModelError(f"{method} keeps {kept:,} pairs, not {total:,}: the comparison would not be fair")
    return kept
