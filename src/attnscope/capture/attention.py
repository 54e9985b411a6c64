"""Attention calls: what a model gave to its attention kernel, what that means, and the rows that follow from it.

`AttentionCall` holds queries, keys, values, a mask and the other arguments of a kernel; an unknown argument is an
error, because ignoring it would give wrong numbers. `LogitsCall` holds the logits themselves, for models that compute
them in full and expose nothing else. Both are a `Call`: one item of the batch, and only the requested
rows.

Which keys a mask hides and what the logits are is decided by the first functions and no others, for scans (float64) and
swapped models (the model's own dtype). Logits are computed in the order of the kernels: scaled products, softcap,
position bias, mask.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch

from attnscope.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Bool, Float
    from torch import Tensor, nn

    Index = slice | Tensor
    Kernel = Literal["eager", "sdpa", "torch"]

# -1e4, the highest number that is in use to hide keys, as bfloat16 rounds it: no weight is left of exp(-9984).
HIDDEN = -9984.0
# Numbers in the keys that are converted to the queries' dtype at a time: 8 MiB in float64.
CONVERTED_NUMBERS = 1 << 20


def visible_keys(mask: Tensor) -> Bool[Tensor, "*shape"]:
    """True where a mask leaves keys visible: True in a boolean mask, above `HIDDEN` (or NaN) in a float mask."""
    return mask if mask.dtype == torch.bool else ~(mask <= HIDDEN)


def additive_mask(mask: Tensor, dtype: torch.dtype, hidden: float) -> Float[Tensor, "*shape"]:
    """The mask as a term to add to the logits: its bias (0 for a boolean mask) on visible keys, else `hidden`."""
    bias = torch.zeros((), dtype=dtype, device=mask.device) if mask.dtype == torch.bool else mask.to(dtype)
    return torch.where(visible_keys(mask), bias, hidden)


def as_4d(mask: Tensor) -> Float[Tensor, "batch_or_1 heads_or_1 queries_or_1 keys_or_1"]:
    """A mask or bias with its leading dimensions filled in as by broadcasting."""
    return mask.reshape((1,) * (4 - mask.ndim) + tuple(mask.shape))


def mask_block(
    mask: Tensor, keys: int, *, items: Index | None = None, heads: Index | None = None, rows: Index | None = None
) -> Float[Tensor, "items_or_1 heads_or_1 rows_or_1 keys"]:
    """Part of a mask or bias over the first `keys` keys; other broadcast dimensions keep their size of 1.

    `items`, `heads` and `rows` are indices into the batch, the heads and the queries; None takes all of them.
    """
    block = as_4d(mask)
    for dim, index in enumerate((items, heads, rows)):
        if index is not None and block.shape[dim] > 1:
            block = block[(slice(None),) * dim + (index,)]
    return block.expand(-1, -1, -1, keys) if block.shape[3] == 1 else block[..., :keys]


def rebuild_logits(
    query: Float[Tensor, "*batch heads rows dims"],
    key: Float[Tensor, "*batch groups keys dims"],
    *,
    scale: float,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    mask: Tensor | None = None,
) -> Float[Tensor, "*batch heads rows keys"]:
    """Logits of a block of queries and keys in the queries' dtype, with several heads for each group of keys.

    `position_bias` and `mask`, which comes from `additive_mask`, broadcast to the result.
    """
    heads, rows, dims = query.shape[-3:]
    grouped = (query * scale).reshape(*key.shape[:-2], -1, dims)
    logits = _products(grouped, key).reshape(*query.shape[:-3], heads, rows, key.shape[-2])
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    if position_bias is not None:
        logits = logits + position_bias
    if mask is not None:
        logits += mask
    return logits


def _products(query: Float[Tensor, "*groups rows dims"], key: Float[Tensor, "*groups keys dims"]) -> Tensor:
    if query.dtype == key.dtype:
        return query @ key.mT
    # A few groups at a time: all keys in float64 would need at least twice the memory of the model's own.
    products = query.new_empty(*query.shape[:-1], key.shape[-2])
    queries, keys, out = (tensor.flatten(0, -3) for tensor in (query, key, products))
    step = max(1, CONVERTED_NUMBERS // max(1, keys[:1].numel()))
    for start in range(0, len(keys), step):
        groups = slice(start, start + step)
        torch.bmm(queries[groups], keys[groups].to(query.dtype).mT, out=out[groups])
    return products


Kind = Literal["self", "cross"]
_CROSS = re.compile(r"cross|encoder_attn|encdec|enc_dec|encoder_decoder_att|multihead_attn|x_attn", re.IGNORECASE)

APPLIED = {"scaling", "softcap", "s_aux", "position_bias", "is_causal"}
# These select an implementation or repeat what the mask says; the result does not depend on them.
HARMLESS = {
    "block_indices",
    "cache_position",
    "deterministic",
    "dropout",
    "layer_idx",
    "num_items_in_batch",
    "position_embeddings",
    "position_ids",
    "return_dict",
    "sliding_window",
    "use_cache",
}
# For models of which only the scores are known: a score below the first is never a logit; a score below the second with
# a weight of 0 is one to which a mask of -1e4 was added.
LOWEST_LOGIT, HIDDEN_SCORE = -1e8, -9e3


class Call:
    """One attention call of a model. `positions` are indices of its queries, `item` is an index into its batch."""

    module: nn.Module  # that attends
    value: Float[Tensor, "batch groups keys dims"]
    cross: bool | None  # whether the keys come from a different sequence than the queries; None: it does not say
    batch_index: int  # of the call's first item in the model's batch; above 0 only after `only`
    padding: Bool[Tensor, "batch queries"] | None  # which queries are padding, as the model says; None: see `padded`

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Items of the batch, query heads, queries and keys, padding included."""
        raise NotImplementedError

    @property
    def batch(self) -> int:
        return self.shape[0]

    @property
    def heads(self) -> int:
        return self.shape[1]

    @property
    def queries(self) -> int:
        return self.shape[2]

    @property
    def keys(self) -> int:
        return self.shape[3]

    @property
    def sinks(self) -> Float[Tensor, " heads"] | None:
        """Logits that take weight and have no key, one for each head; None if there are none."""
        return None

    @property
    def mask_key(self) -> Hashable | None:
        """Hashable key, equal for calls with the same visibility; None if the mask must be read."""
        return None

    def logits(
        self, positions: Sequence[int], item: int = 0, keys: int | None = None
    ) -> Float[Tensor, "heads rows keys"]:
        """Logits of these queries in float64, over the first `keys` keys (default: all); finite on hidden keys."""
        raise NotImplementedError

    def visible(self, positions: Sequence[int], item: int = 0) -> Bool[Tensor, "heads rows keys"]:
        """Which keys each of these queries may attend to; none for a query that is padding."""
        raise NotImplementedError

    def values(self, item: int = 0) -> Float[Tensor, "groups keys dims"]:
        """Value vectors in the model's dtype, one group for heads that share them."""
        return self.value[item]

    def only(self, item: int) -> Call:
        """The same call with this item as its whole batch."""
        raise NotImplementedError


Observer = Callable[[Call], None]
"""Receives the attention calls of a forward pass, one at a time."""


@dataclass(frozen=True, eq=False)
class AttentionCall(Call):
    """The arguments of one call of an attention kernel.

    What a missing mask means depends on the kernel: `eager` leaves every key visible, `sdpa` (transformers' function of
    that name) hides later keys if the module is causal, `torch` (PyTorch's own function) follows `is_causal`.
    """

    module: nn.Module
    query: Float[Tensor, "batch heads queries key_dims"]
    key: Float[Tensor, "batch kv_heads keys key_dims"]
    value: Float[Tensor, "batch kv_heads keys dims"]
    mask: Tensor | None
    options: dict[str, Any]
    kernel: Kernel = "sdpa"
    cross: bool | None = None
    kernel_function: Callable[..., Any] | None = None
    batch_index: int = 0
    padding: Bool[Tensor, "batch queries"] | None = None  # as the model says; None: as the mask says

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
        full = self.shape
        for name, each in (("an attention mask", self.mask), ("a position bias", self.options.get("position_bias"))):
            # A kernel may ignore the entries of a mask beyond the last key.
            if isinstance(each, torch.Tensor) and not all(
                size in (1, wanted) or (dim == 3 and size > wanted)
                for dim, (size, wanted) in enumerate(zip(as_4d(each).shape, full, strict=True))
            ):
                raise ModelError(
                    f"{type(self.module).__name__} got {name} of shape {tuple(each.shape)}, which does not fit "
                    f"(batch, heads, queries, keys) = {full}"
                )
        if self.kernel == "eager" and self.mask is not None and self.mask.dtype == torch.bool:
            raise ModelError(
                f"{type(self.module).__name__} got a boolean attention mask, which eager attention adds to the logits "
                "as 0 and 1: it hides nothing; pass 0 for visible and -inf for hidden keys, or load the model with "
                "attn_implementation='sdpa'"
            )

    @property
    def shape(self) -> tuple[int, int, int, int]:
        batch, heads, queries, _ = self.query.shape
        return batch, heads, queries, self.key.shape[2]

    def kernel_output(self) -> Any:
        """What the model's own kernel returns: outputs (batch, queries, heads, dims), and weights or None."""
        assert self.kernel_function is not None
        return self.kernel_function(self.module, self.query, self.key, self.value, self.mask, **self.options)

    @property
    def scale(self) -> float:
        """Factor applied to the products of queries and keys."""
        scaling = self.options.get("scaling")
        return self.query.shape[-1] ** -0.5 if scaling is None else float(scaling)

    @property
    def causal(self) -> bool:
        """Whether the kernel itself hides later keys: transformers' only where there is no mask, PyTorch's always."""
        is_causal = self.options.get("is_causal")
        if self.kernel == "torch":
            return bool(is_causal)
        if self.kernel == "eager" or self.mask is not None:
            return False
        if is_causal is None:
            is_causal = getattr(self.module, "is_causal", True)
        return bool(is_causal) and self.queries > 1

    @property
    def mask_key(self) -> Hashable | None:
        if self.mask is not None or (self.padding is not None and self.padding.any()):
            return None
        return self.causal, self.heads, self.queries, self.keys, self.query.device

    @property
    def sinks(self) -> Float[Tensor, " heads"] | None:
        sinks = self.options.get("s_aux")
        return None if sinks is None else sinks.detach().double().reshape(-1)

    def visible(self, positions: Sequence[int], item: int = 0) -> Bool[Tensor, "heads rows keys"]:
        shape = (self.heads, len(positions), self.keys)
        visible = torch.ones((), dtype=torch.bool, device=self.query.device)
        if self.mask is not None:
            visible = visible_keys(self._mask_rows(self.mask, positions, item, self.keys))
        if self.causal:
            rows = _index(positions).to(self.query.device)
            visible = visible & (torch.arange(self.keys, device=rows.device) <= rows[:, None])
        if self.mask is not None or self.padding is not None:
            visible = visible & ~self.padded(positions, item).to(visible.device)[:, None]
        return visible.expand(shape)

    def padded(self, positions: Sequence[int], item: int = 0) -> Bool[Tensor, " rows"]:
        """Which of these queries are padding, on the CPU."""
        if self.padding is not None:
            return self.padding[item, _index(positions)].cpu()
        # A key that an indexer chose for no query looks like padding but is not.
        choosing = getattr(self.module, "indexer", None) is not None
        if self.mask is None or self.queries != self.keys or self.cross or choosing:
            return torch.zeros(len(positions), dtype=torch.bool)
        mask = mask_block(self.mask, self.keys, items=slice(item, item + 1))[0].expand(-1, self.queries, -1)
        return _unseen(positions, lambda rows, keys: visible_keys(mask[:, rows, keys]))

    def logits(
        self, positions: Sequence[int], item: int = 0, keys: int | None = None
    ) -> Float[Tensor, "heads rows keys"]:
        keys = self.keys if keys is None else keys
        bias = self.options.get("position_bias")
        mask = None
        if self.mask is not None and self.mask.dtype != torch.bool:  # a boolean mask adds nothing to visible keys
            mask = additive_mask(self._mask_rows(self.mask, positions, item, keys), torch.float64, hidden=0.0)
        return rebuild_logits(
            self.query[item, :, _index(positions)].detach().double(),
            self.key[item, :, :keys].detach(),
            scale=self.scale,
            softcap=self.options.get("softcap"),
            position_bias=None if bias is None else self._mask_rows(bias, positions, item, keys),
            mask=mask,
        )

    def only(self, item: int) -> AttentionCall:
        bias = self.options.get("position_bias")
        return replace(
            self,
            query=self.query[item, None],
            key=self.key[item, None],
            value=self.value[item, None],
            mask=None if self.mask is None else _item(self.mask, item),
            options=self.options if bias is None else self.options | {"position_bias": _item(bias, item)},
            batch_index=item,
            padding=None if self.padding is None else self.padding[item, None],
        )

    def _mask_rows(
        self, mask: Tensor, positions: Sequence[int], item: int, keys: int
    ) -> Float[Tensor, "heads_or_1 rows_or_1 keys"]:
        """The part of a mask or bias for these queries, on the device of the queries."""
        block = mask_block(mask, keys, items=slice(item, item + 1), rows=_index(positions))
        return block[0].detach().to(self.query.device)


@dataclass(frozen=True, eq=False)
class LogitsCall(Call):
    """The logits that a model passed to its own softmax, and the values it multiplied the result with."""

    module: nn.Module
    scores: Float[Tensor, "batch heads queries keys"]
    weights: Float[Tensor, "batch heads queries keys"]
    value: Float[Tensor, "batch heads keys dims"]
    cross: bool | None = None
    batch_index: int = 0
    padding: Bool[Tensor, "batch queries"] | None = None  # as the model says; None: as the scores say

    @property
    def shape(self) -> tuple[int, int, int, int]:
        batch, heads, queries, keys = self.scores.shape
        return batch, heads, queries, keys

    def logits(
        self, positions: Sequence[int], item: int = 0, keys: int | None = None
    ) -> Float[Tensor, "heads rows keys"]:
        """Logits of these queries as the model rounded them, in float64; zero on hidden keys."""
        rows = _index(positions)
        return torch.where(self._visible(item, rows), self.scores[item, :, rows], 0)[..., :keys].double()

    def visible(self, positions: Sequence[int], item: int = 0) -> Bool[Tensor, "heads rows keys"]:
        visible = self._visible(item, _index(positions))
        return visible & ~self.padded(positions, item).to(visible.device)[:, None]

    def padded(self, positions: Sequence[int], item: int = 0) -> Bool[Tensor, " rows"]:
        """Which of these queries are padding, on the CPU."""
        if self.padding is not None:
            return self.padding[item, _index(positions)].cpu()
        if self.queries != self.keys or self.cross:
            return torch.zeros(len(positions), dtype=torch.bool)
        return _unseen(positions, lambda rows, keys: self._visible(item, rows, keys))

    def only(self, item: int) -> LogitsCall:
        scores, weights, value = (part[item, None] for part in (self.scores, self.weights, self.value))
        padding = None if self.padding is None else self.padding[item, None]
        return replace(self, scores=scores, weights=weights, value=value, batch_index=item, padding=padding)

    def _visible(
        self, item: int, rows: Tensor | slice, keys: Tensor | slice = slice(None)
    ) -> Bool[Tensor, "heads rows keys"]:
        """True for scores to which no mask was added.

        The masking constant may belong to the values' dtype while the scores have a wider one, and some families divide
        by the square root of the head size after adding the mask. A score that could be a logit counts as masked only
        if its weight is 0.
        """
        scores, weights = self.scores[item][:, rows, keys], self.weights[item][:, rows, keys]
        lowest = max(torch.finfo(dtype).min for dtype in (scores.dtype, self.value.dtype))
        never_a_logit = max(lowest / 2 / self.value.shape[-1] ** 0.5, LOWEST_LOGIT)
        return (scores > never_a_logit) & ((scores > HIDDEN_SCORE) | (weights != 0))


ObservedCall = AttentionCall | LogitsCall


def _index(positions: Sequence[int]) -> Tensor:
    return torch.tensor(list(positions), dtype=torch.long)


def _unseen(
    positions: Sequence[int], visible: Callable[[Tensor | slice, Tensor | slice], Bool[Tensor, "heads rows keys"]]
) -> Bool[Tensor, " rows"]:
    """True for tokens that no query may attend to, not even the token itself; `visible` takes rows and keys."""
    tokens = _index(positions)
    unseen = ~visible(tokens, tokens).any(0).cpu()
    if unseen.any():
        unseen[unseen.clone()] = ~visible(slice(None), tokens[unseen]).any(0).any(0).cpu()
    return unseen


def _item(mask: Tensor, item: int) -> Tensor:
    """One item of a mask or bias that may broadcast over the batch."""
    mask = as_4d(mask)
    return mask[item, None] if len(mask) > 1 else mask


def unpadded(call: Call, block: int = 512) -> list[int]:
    """Query positions of the first item that are not padding, i.e. that see a key in at least one head."""
    positions: list[int] = []
    for start in range(0, call.queries, block):
        rows = range(start, min(call.queries, start + block))
        has_key = call.visible(rows).any(-1).any(0)
        positions.extend(start + row for row in has_key.nonzero().flatten().tolist())
    return positions


def kind_of(call: Call, name: str) -> Kind:
    """Whether a call is self-attention or cross-attention."""
    cross = is_cross_attention(call.module, name) if call.cross is None else call.cross
    return "cross" if cross else "self"


def is_cross_attention(module: nn.Module, name: str) -> bool:
    """Whether a module attends to another sequence, by its attribute `is_cross_attention`, its name or its class."""
    in_block = re.sub(r".*\.\d+\.", "", name).split(".")[-3:]
    named = any(_CROSS.search(part) for part in [*in_block, type(module).__name__])
    return named or bool(getattr(module, "is_cross_attention", False))
