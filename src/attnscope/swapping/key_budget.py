"""Which keys a head keeps: budgets as plain data (`budget.json`), and the rules that choose keys from a row's scores.

A key rule takes the rows' scores (logits or weights), which keys are visible, and the positions of the queries; it
returns the mask of the keys to keep, for captured rows and for heads inside a model alike. Without positions (inside a
model) every query is taken to be its last visible key. torch is imported where it is used: the report reads the states,
which name these rules, without it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from attnscope.errors import InputError, shown

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

Kind = Literal["first_recent", "top", "all"]
KINDS: tuple[str, ...] = get_args(Kind)
FILE = "budget.json"


@dataclass(frozen=True)
class HeadBudget:
    """The keys that one key-value head keeps, for all heads that share it.

    >>> from attnscope.swapping import HeadBudget
    >>> HeadBudget(layer=0, kv_head=1, kind="first_recent", first=4, recent=60).kept(1024)
    64
    >>> HeadBudget(layer=0, kv_head=2, kind="top", share=0.25).kept(1024)
    256

    Attributes
    ----------
    layer, kv_head
        Counted from 0.
    kind
        "first_recent": the first keys and the nearest ones, whatever their weights; "top": the keys with the largest
        weights in any head that shares them; "all": every key.
    first, recent
        How many keys of either kind, the query's own included ("first_recent").
    share
        The share of the visible keys, rounded up ("top").
    """

    layer: int
    kv_head: int
    kind: Kind
    first: int = 0
    recent: int = 0
    share: float = 1.0

    def __post_init__(self) -> None:
        numbers = (self.layer, self.kv_head, self.first, self.recent)
        if not all(type(n) is int and n >= 0 for n in numbers) or self.kind not in KINDS:
            raise InputError(
                f"a head's budget has whole numbers from 0 up and a kind ({', '.join(KINDS)}); received {shown(self)}"
            )
        if self.kind == "first_recent" and self.recent < 1:
            raise InputError(f"kind first_recent keeps at least the query's own key: recent is 1 or more, in {self}")
        if not isinstance(self.share, int | float) or not 0 < self.share <= 1:
            raise InputError(f"the share of a head's budget is above 0 and at most 1; received {shown(self.share)}")

    def kept(self, length: int) -> int:
        """How many of `length` visible keys a row of this head attends to."""
        if self.kind == "first_recent":
            return min(length, self.first + self.recent)
        return length if self.kind == "all" else max(1, math.ceil(self.share * length))

    def stored(self, length: int) -> int:
        """How many keys its cache holds: a key that is not among the largest weights now may be so later."""
        return self.kept(length) if self.kind == "first_recent" else length


@dataclass(frozen=True)
class KeyBudget:
    """The budgets of a model's key-value heads; heads that are not named keep all keys.

    >>> from attnscope.swapping import HeadBudget, KeyBudget
    >>> budget = KeyBudget((HeadBudget(0, 0, "first_recent", first=1, recent=7), HeadBudget(0, 1, "all")), length=32)
    >>> budget.share()
    0.625

    Attributes
    ----------
    heads
        One entry for each key-value head.
    length
        The number of keys that it was made for.
    about
        How it was made: model, text, settings.
    """

    heads: tuple[HeadBudget, ...]
    length: int
    about: Mapping[str, Any] = field(default_factory=dict)

    def share(self, length: int | None = None) -> float:
        """The share of all key-value pairs that rows of `length` keys attend to."""
        length = self.length if length is None else length
        return sum(head.kept(length) for head in self.heads) / (len(self.heads) * length)

    def stored_share(self, length: int | None = None) -> float:
        """The share of all key-value pairs that a cache of `length` tokens holds under `apply_budget`."""
        length = self.length if length is None else length
        return sum(head.stored(length) for head in self.heads) / (len(self.heads) * length)

    def as_json(self) -> dict[str, Any]:
        """The content of `budget.json`."""
        return {**self.about, "length": self.length, "heads": [asdict(head) for head in self.heads]}


def given_budget(budget: KeyBudget | Sequence[HeadBudget] | str | Path) -> KeyBudget:
    """A budget from an argument: the object, a list of head budgets, a `budget.json`, or the folder that has one."""
    if isinstance(budget, KeyBudget):
        return _checked(budget)
    if isinstance(budget, str | Path):
        return load_budget(budget)
    heads = tuple(budget)
    if not all(isinstance(head, HeadBudget) for head in heads):
        raise InputError(f"a budget is a KeyBudget, a list of HeadBudget or a budget.json; received {shown(budget)}")
    return _checked(KeyBudget(heads, 1))


def load_budget(source: str | Path) -> KeyBudget:
    """Read `budget.json`, or the one in a folder.

    >>> from attnscope.studies.budget.running import budget
    >>> result = budget(keep=0.5, length=32, windows=3, calibration_windows=1, progress=False)
    >>> attnscope.swapping.load_budget(result.save("a budget")) == result.budget
    True

    Parameters
    ----------
    source
        A folder that `attnscope budget` wrote, or the file itself.

    Returns
    -------
    KeyBudget
    """
    path = Path(source)
    path = path / FILE if path.is_dir() else path
    try:
        found = json.loads(path.read_text("utf-8"))
        heads = tuple(HeadBudget(**head) for head in found.pop("heads"))
        return _checked(KeyBudget(heads, int(found.pop("length")), found))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"{str(path)!r} is not a readable budget: {reason}; write one with attnscope budget"
        ) from error


def _checked(budget: KeyBudget) -> KeyBudget:
    places = [(head.layer, head.kv_head) for head in budget.heads]
    if not places or len(set(places)) < len(places):
        raise InputError("a budget names at least one key-value head, and each only once")
    return budget


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
