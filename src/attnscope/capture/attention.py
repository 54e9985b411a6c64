"""From one attention call to the rows that measures want.

A call is what an attention kernel was given. `AttentionCall` has queries, keys and a mask: arguments that change
the result are applied here exactly as the kernels apply them, in this order: scaling, softcap, position bias,
mask. An argument that this module does not know raises: a silent guess would give wrong numbers. `LogitsCall`
has the logits themselves, where a model forms them in full and shows nothing else.

Both answer the same questions, for one item of the batch and the wanted rows only: `Call`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch

from attnscope._pages import empty
from attnscope._threads import share_out
from attnscope.capture._kernels_logits import ROWS, multiply
from attnscope.errors import ModelError
from attnscope.normalizers import _loops

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Bool, Float
    from torch import Tensor, nn

    Kernel = Literal["eager", "sdpa", "torch"]

APPLIED = {"scaling", "softcap", "s_aux", "position_bias", "is_causal"}
# These say how to compute, or repeat what the mask already says; the result does not depend on them.
HARMLESS = {
    "block_indices",
    "cache_position",
    "deterministic",
    "dropout",
    "layer_idx",
    "position_embeddings",
    "position_ids",
    "return_dict",
    "sliding_window",
    "use_cache",
}
# Model files that write their mask by hand hide a key with this number instead of the type's most negative one.
HAND_WRITTEN_MASK = -1e4
# So much below zero is never a bias: whoever adds it hides the key.
HIDDEN = -1e8
# Pieces of the keys for each thread, and how many keys are worth one.
_PIECES = 2
_FEWEST_KEYS = 64


class Call(Protocol):
    """What a scan asks of a call. `positions` are queries of the call, `item` is the place in the batch."""

    @property
    def module(self) -> nn.Module:
        """The module whose attention this is."""

    @property
    def cross(self) -> bool | None:
        """Whether the keys come from another sequence than the queries; None where the call cannot tell."""

    @property
    def batch(self) -> int:
        """Items in the batch."""

    @property
    def place(self) -> int:
        """The item that was taken out of a batch, or 0."""

    @property
    def heads(self) -> int:
        """Query heads."""

    @property
    def queries(self) -> int:
        """Queries of an item, padding included."""

    @property
    def keys(self) -> int:
        """Keys of an item, padding included."""

    @property
    def sinks(self) -> Float[Tensor, " heads"] | None:
        """Logits that take weight and have no key, one for each head."""

    @property
    def mask_key(self) -> Hashable | None:
        """What calls that see alike have in common, where that is plain without looking; else None."""

    def logits(
        self, positions: Sequence[int], item: int = 0, keys: int | None = None
    ) -> Float[Tensor, "heads rows keys"]:
        """The logits of these queries in float64, on the first `keys` keys if only those are wanted."""

    def visible(self, positions: Sequence[int], item: int = 0) -> Bool[Tensor, "heads rows keys"]:
        """The keys that each of the queries may attend to; none for a query that is padding."""

    def values(self, item: int = 0) -> Float[Tensor, "groups keys dims"]:
        """The value vectors as the model has them, one group for heads that share them."""

    def only(self, item: int) -> Call:
        """The same call for one item of the batch, as if that had been alone in it."""


Observer = Callable[[Call], None]
"""Takes the calls of a forward pass, one after another."""


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """The arguments of one call of an attention kernel.

    The kernel decides what no mask means: `eager` then shows every key, `sdpa` (transformers' function of that name)
    hides later keys where the module is causal, `torch` (PyTorch's own function) does as `is_causal` says.
    """

    module: nn.Module
    query: Float[Tensor, "batch heads queries key_dims"]
    key: Float[Tensor, "batch kv_heads keys key_dims"]
    value: Float[Tensor, "batch kv_heads keys dims"]
    mask: Tensor | None
    options: dict[str, Any]
    kernel: Kernel = "sdpa"
    cross: bool | None = None
    answer: Callable[..., Any] | None = None  # the kernel itself
    place: int = 0

    def __post_init__(self) -> None:
        unknown = [
            name
            for name, value in self.options.items()
            if value is not None and name not in APPLIED | HARMLESS and not name.startswith("output_")
        ]
        if unknown:
            raise ModelError(
                f"{type(self.module).__name__} passes {', '.join(sorted(unknown))} to its attention kernel, which "
                "attnscope cannot apply; the weights it would measure would be wrong"
            )
        if self.mask is not None and not (isinstance(self.mask, torch.Tensor) and self.mask.ndim <= 4):
            shape = tuple(self.mask.shape) if isinstance(self.mask, torch.Tensor) else type(self.mask).__name__
            raise ModelError(
                f"{type(self.module).__name__} got an attention mask of shape {shape}; attnscope reads masks of at "
                "most four dimensions"
            )

    @property
    def batch(self) -> int:
        """Items in the batch."""
        return self.query.shape[0]

    @property
    def heads(self) -> int:
        """Query heads."""
        return self.query.shape[1]

    @property
    def queries(self) -> int:
        """Queries of an item."""
        return self.query.shape[2]

    @property
    def keys(self) -> int:
        """Keys of an item."""
        return self.key.shape[2]

    def own(self) -> Any:
        """What the model's own kernel answers: (batch, queries, heads, dims), and weights or None."""
        assert self.answer is not None
        return self.answer(self.module, self.query, self.key, self.value, self.mask, **self.options)

    @property
    def scale(self) -> float:
        """What the products of queries and keys are multiplied by."""
        scaling = self.options.get("scaling")
        return self.query.shape[-1] ** -0.5 if scaling is None else float(scaling)

    @property
    def causal(self) -> bool:
        """Whether the kernel hides later keys by itself, there being no mask."""
        if self.kernel == "eager" or self.mask is not None:
            return False
        asked = self.options.get("is_causal")
        if self.kernel == "torch":
            return bool(asked)
        causal = getattr(self.module, "is_causal", True) if asked is None else asked
        return bool(causal) and self.queries > 1

    @property
    def mask_key(self) -> Hashable | None:
        """What calls without a mask have in common if they see alike."""
        return (self.causal, self.heads, self.queries, self.keys, self.query.device) if self.mask is None else None

    @property
    def sinks(self) -> Float[Tensor, " heads"] | None:
        """Logits that take weight and have no key, one for each head."""
        sinks = self.options.get("s_aux")
        return None if sinks is None else sinks.detach().double().reshape(-1)

    def visible(self, positions: Sequence[int], item: int = 0) -> Bool[Tensor, "heads rows keys"]:
        """The keys that each of the queries may attend to; none for a query that is padding."""
        rows = self._rows(positions)
        if self.mask is None:
            if self.causal:
                seen = torch.arange(self.keys, device=rows.device) <= rows[:, None]
            else:
                seen = torch.ones(len(rows), self.keys, dtype=torch.bool, device=rows.device)
            return seen.expand(self.heads, -1, -1)
        seen = _shown(self._mask_rows(rows, item))
        # An indexer leaves out keys that nobody chose: they look like padding, and are not.
        if self.queries == self.keys and not self.cross and not hasattr(self.module, "indexer"):
            seen = seen & ~self._padding(seen, positions, item)[:, None]
        return seen.expand(self.heads, -1, -1)

    def logits(
        self, positions: Sequence[int], item: int = 0, keys: int | None = None
    ) -> Float[Tensor, "heads rows keys"]:
        """The logits of these queries in float64, from the model's own queries and keys."""
        rows = self._rows(positions)
        keys = self.keys if keys is None else keys
        query = (self.query[item, :, rows].double() * self.scale).reshape(self.key.shape[1], -1, self.query.shape[-1])
        logits = _products(query, self.key[item, :, :keys].detach()).reshape(self.heads, len(rows), keys)
        softcap = self.options.get("softcap")
        if softcap is not None:
            logits = softcap * torch.tanh(logits / softcap)
        bias = self.options.get("position_bias")
        if bias is not None:
            logits = logits + _rows_of(bias, rows, item, keys).double()
        if self.mask is not None and self.mask.dtype != torch.bool:
            mask = self._mask_rows(rows, item)[..., :keys]
            logits = logits + torch.where(_shown(mask), mask, 0).double()
        return logits

    def values(self, item: int = 0) -> Float[Tensor, "groups keys dims"]:
        """The value vectors as the model has them."""
        return self.value[item]

    def only(self, item: int) -> AttentionCall:
        """The same call for one item of the batch."""
        bias = self.options.get("position_bias")
        return replace(
            self,
            query=self.query[item, None],
            key=self.key[item, None],
            value=self.value[item, None],
            mask=None if self.mask is None else _item(self.mask, item),
            options=self.options if bias is None else self.options | {"position_bias": _item(bias, item)},
            place=item,
        )

    def _rows(self, positions: Sequence[int]) -> Tensor:
        return torch.tensor(list(positions), dtype=torch.long, device=self.query.device)

    def _mask_rows(self, rows: Tensor, item: int) -> Tensor:
        if self.mask is None:
            raise ValueError("there is no mask")
        return _rows_of(self.mask, rows, item, self.keys)

    def _padding(
        self, seen: Bool[Tensor, "heads rows keys"], positions: Sequence[int], item: int
    ) -> Bool[Tensor, " rows"]:
        """Which rows are padding: a token that nobody may attend to, not even itself."""
        padding = torch.zeros(len(positions), dtype=torch.bool, device=seen.device)
        own = seen.any(0).gather(-1, self._rows(positions)[:, None]).squeeze(-1)
        for row in (~own).nonzero().flatten().tolist():
            column = _as_4d(self.mask)[item if len(_as_4d(self.mask)) > 1 else 0, :, :, positions[row]]
            padding[row] = not _shown(column).any()
        return padding


@dataclass(frozen=True, eq=False)
class LogitsCall:
    """Logits as a model gave them to its own softmax, and the values that it weighted with the result."""

    module: nn.Module
    scores: Float[Tensor, "batch heads queries keys"]
    weights: Float[Tensor, "batch heads queries keys"]
    value: Float[Tensor, "batch heads keys dims"]
    cross: bool | None = None
    place: int = 0

    @property
    def batch(self) -> int:
        """Items in the batch."""
        return self.scores.shape[0]

    @property
    def heads(self) -> int:
        """Query heads."""
        return self.scores.shape[1]

    @property
    def queries(self) -> int:
        """Queries of an item."""
        return self.scores.shape[2]

    @property
    def keys(self) -> int:
        """Keys of an item."""
        return self.scores.shape[3]

    @property
    def mask_key(self) -> None:
        """Only the scores say what is visible."""
        return

    @property
    def sinks(self) -> None:
        """No family that forms its logits in full has sinks."""
        return

    def logits(
        self, positions: Sequence[int], item: int = 0, keys: int | None = None
    ) -> Float[Tensor, "heads rows keys"]:
        """The logits of these queries, as the model rounded them; zero where a key is hidden."""
        logits = torch.where(self._seen(positions, item), self._pick(self.scores, positions, item), 0)
        return logits[..., :keys].double()

    def visible(self, positions: Sequence[int], item: int = 0) -> Bool[Tensor, "heads rows keys"]:
        """The keys that each of the queries may attend to; none for a query that is padding."""
        seen = self._seen(positions, item)
        if self.queries != self.keys or self.cross:
            return seen
        for row, position in enumerate(positions):
            if not seen[:, row, position].any():
                column, weights = self.scores[item, :, :, position], self.weights[item, :, :, position]
                if not self._kept(column, weights).any():
                    seen[:, row] = False
        return seen

    def values(self, item: int = 0) -> Float[Tensor, "groups keys dims"]:
        """The value vectors as the model has them."""
        return self.value[item]

    def only(self, item: int) -> LogitsCall:
        """The same call for one item of the batch."""
        scores, weights, value = (part[item, None] for part in (self.scores, self.weights, self.value))
        return replace(self, scores=scores, weights=weights, value=value, place=item)

    def _pick(self, scores: Tensor, positions: Sequence[int], item: int) -> Tensor:
        return scores[item, :, torch.tensor(list(positions), dtype=torch.long, device=scores.device)]

    def _seen(self, positions: Sequence[int], item: int) -> Tensor:
        return self._kept(self._pick(self.scores, positions, item), self._pick(self.weights, positions, item))

    def _kept(self, scores: Tensor, weights: Tensor) -> Tensor:
        """Which keys no mask has hidden.

        The number that hides a key may be of the values' type, and the scores of a wider one; and some families divide
        by the root of the head's size after the mask is added.
        """
        by_hand = (scores == HAND_WRITTEN_MASK) & (weights == 0)
        cut = _cut(self.value.dtype) / self.value.shape[-1] ** 0.5
        return (scores > max(_cut(scores.dtype), cut)) & ~by_hand


def _products(query: Float[Tensor, "groups rows dims"], key: Float[Tensor, "groups keys dims"]) -> Tensor:
    """The products of every group's queries and keys in float64; all keys in float64 are never held at one time."""
    count, keys = query.shape[1], key.shape[1]
    if not _loops.usable(query, key):
        return torch.cat([torch.mm(query[group], key[group].double().mT)[None] for group in range(len(query))])
    room = max(count, ROWS)
    queries = (query if room == count else torch.nn.functional.pad(query, (0, 0, 0, room - count))).detach()
    products = empty((len(query), room, keys), query)
    step = max(_FEWEST_KEYS, -(-keys // (_PIECES * torch.get_num_threads())))

    def some(begin: int) -> None:
        part = key[:, begin : begin + step]
        part = part if part.dtype in (torch.float32, torch.float64) else part.float()
        multiply(queries.numpy(), part.numpy(), begin, products.numpy())

    share_out(some, range(0, keys, step))
    return products[:, :count]


def _shown(mask: Tensor) -> Tensor:
    """Where a mask lets a key be seen."""
    return mask if mask.dtype == torch.bool else mask > _cut(mask.dtype)


def _cut(dtype: torch.dtype) -> float:
    """Keys are hidden by adding the most negative number of the type, more of it, or one that does as well."""
    return max(torch.finfo(dtype).min / 2, HIDDEN)


def _as_4d(mask: Tensor | None) -> Tensor:
    """A mask with the dimensions that broadcasting would give it."""
    if mask is None:
        raise ValueError("there is no mask")
    return mask.reshape((1,) * (4 - mask.ndim) + tuple(mask.shape))


def _item(mask: Tensor, item: int) -> Tensor:
    """One item of a mask or bias that may broadcast over the batch."""
    four = _as_4d(mask)
    return four[item, None] if len(four) > 1 else four


def unpadded(call: Call, block: int = 512) -> list[int]:
    """The queries of a call with one item that are not padding: those that see a key in some head."""
    found: list[int] = []
    for start in range(0, call.queries, block):
        positions = range(start, min(call.queries, start + block))
        seen = call.visible(positions).any(-1).any(0)
        found.extend(start + place for place in seen.nonzero().flatten().tolist())
    return found


def _rows_of(mask: Tensor, rows: Tensor, item: int, keys: int) -> Float[Tensor, "heads_or_1 rows keys"]:
    """Rows of a mask or bias that broadcasts over the batch, the heads or the queries."""
    mask = _as_4d(mask)
    one = mask[item if mask.shape[0] > 1 else 0]
    return one[:, (rows if mask.shape[2] > 1 else torch.zeros_like(rows)).to(mask.device), :keys].to(rows.device)
