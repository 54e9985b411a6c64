"""Attention calls: what a model gave to its attention kernel, and the rows that follow from it.

`AttentionCall` has queries, keys, values, a mask and the other arguments of a kernel; an argument that attnscope does
not know raises, as ignoring it would give wrong numbers. `LogitsCall` has the logits themselves, from models that form
them in full and show nothing else. Both have the interface `Call`: one item of the batch, the wanted rows only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch

from attnscope.capture.kernel_arguments import (
    additive_mask,
    as_4d,
    hidden_below,
    mask_block,
    rebuild_logits,
    visible_keys,
)
from attnscope.errors import ModelError

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
# Model files that write their mask by hand hide a key with this number instead of the dtype's most negative one.
HAND_WRITTEN_MASK = -1e4


class Call(Protocol):
    """One attention call of a model. `positions` are indices of its queries, `item` is an index into its batch."""

    @property
    def module(self) -> nn.Module:
        """The module that attends."""

    @property
    def cross(self) -> bool | None:
        """Whether the keys come from another sequence than the queries; None if the call does not say."""

    @property
    def batch(self) -> int:
        """Number of items in the batch."""

    @property
    def batch_index(self) -> int:
        """Where the call's first item was in the model's batch; above 0 only after `only`."""

    @property
    def heads(self) -> int:
        """Number of query heads."""

    @property
    def queries(self) -> int:
        """Number of queries of an item, padding included."""

    @property
    def keys(self) -> int:
        """Number of keys of an item, padding included."""

    @property
    def sinks(self) -> Float[Tensor, " heads"] | None:
        """Logits that take weight and have no key, one for each head; None if there are none."""

    @property
    def mask_key(self) -> Hashable | None:
        """Hashable key, equal for calls with the same visibility; None if the mask must be read."""

    def logits(
        self, positions: Sequence[int], item: int = 0, keys: int | None = None
    ) -> Float[Tensor, "heads rows keys"]:
        """Logits of these queries in float64, over the first `keys` keys (default: all); finite on hidden keys."""

    def visible(self, positions: Sequence[int], item: int = 0) -> Bool[Tensor, "heads rows keys"]:
        """Which keys each of these queries may attend to; none for a query that is padding."""

    def values(self, item: int = 0) -> Float[Tensor, "groups keys dims"]:
        """Value vectors in the model's dtype, one group for heads that share them."""

    def only(self, item: int) -> Call:
        """The same call with this item as its whole batch."""


Observer = Callable[[Call], None]
"""Takes the calls of a forward pass, one after another."""


@dataclass(frozen=True, eq=False)
class AttentionCall:
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
        """Number of items in the batch."""
        return self.query.shape[0]

    @property
    def heads(self) -> int:
        """Number of query heads."""
        return self.query.shape[1]

    @property
    def queries(self) -> int:
        """Number of queries of an item, padding included."""
        return self.query.shape[2]

    @property
    def keys(self) -> int:
        """Number of keys of an item, padding included."""
        return self.key.shape[2]

    def kernel_output(self) -> Any:
        """What the model's own kernel returns: outputs (batch, queries, heads, dims), and weights or None."""
        assert self.kernel_function is not None
        return self.kernel_function(self.module, self.query, self.key, self.value, self.mask, **self.options)

    @property
    def scale(self) -> float:
        """Factor of the products of queries and keys."""
        scaling = self.options.get("scaling")
        return self.query.shape[-1] ** -0.5 if scaling is None else float(scaling)

    @property
    def causal(self) -> bool:
        """Whether the kernel itself hides later keys, because there is no mask."""
        if self.kernel == "eager" or self.mask is not None:
            return False
        is_causal = self.options.get("is_causal")
        if self.kernel == "torch":
            return bool(is_causal)
        if is_causal is None:
            is_causal = getattr(self.module, "is_causal", True)
        return bool(is_causal) and self.queries > 1

    @property
    def mask_key(self) -> Hashable | None:
        """Hashable key, equal for calls with the same visibility; None if the mask must be read."""
        return (self.causal, self.heads, self.queries, self.keys, self.query.device) if self.mask is None else None

    @property
    def sinks(self) -> Float[Tensor, " heads"] | None:
        """Logits that take weight and have no key, one for each head; None if there are none."""
        sinks = self.options.get("s_aux")
        return None if sinks is None else sinks.detach().double().reshape(-1)

    def visible(self, positions: Sequence[int], item: int = 0) -> Bool[Tensor, "heads rows keys"]:
        """Which keys each of these queries may attend to; none for a query that is padding."""
        shape = (self.heads, len(positions), self.keys)
        if self.mask is None:
            if not self.causal:
                return torch.ones((), dtype=torch.bool, device=self.query.device).expand(shape)
            rows = _index(positions).to(self.query.device)
            return (torch.arange(self.keys, device=rows.device) <= rows[:, None]).expand(shape)
        visible = visible_keys(self._mask_rows(self.mask, positions, item, self.keys))
        # A key that an indexer chose for no query looks like padding, and is not.
        if self.queries == self.keys and not self.cross and not hasattr(self.module, "indexer"):
            visible = visible & ~self._padding(visible, positions, item)[:, None]
        return visible.expand(shape)

    def logits(
        self, positions: Sequence[int], item: int = 0, keys: int | None = None
    ) -> Float[Tensor, "heads rows keys"]:
        """Logits of these queries in float64, over the first `keys` keys (default: all); finite on hidden keys."""
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

    def values(self, item: int = 0) -> Float[Tensor, "groups keys dims"]:
        """Value vectors in the model's dtype, one group for heads that share them."""
        return self.value[item]

    def only(self, item: int) -> AttentionCall:
        """The same call with this item as its whole batch."""
        bias = self.options.get("position_bias")
        return replace(
            self,
            query=self.query[item, None],
            key=self.key[item, None],
            value=self.value[item, None],
            mask=None if self.mask is None else _item(self.mask, item),
            options=self.options if bias is None else self.options | {"position_bias": _item(bias, item)},
            batch_index=item,
        )

    def _mask_rows(
        self, mask: Tensor, positions: Sequence[int], item: int, keys: int
    ) -> Float[Tensor, "heads_or_1 rows_or_1 keys"]:
        """The part of a mask or bias for these queries, on the device of the queries."""
        block = mask_block(mask, keys, items=slice(item, item + 1), rows=_index(positions))
        return block[0].detach().to(self.query.device)

    def _padding(
        self, visible: Bool[Tensor, "heads_or_1 rows_or_1 keys"], positions: Sequence[int], item: int
    ) -> Bool[Tensor, " rows"]:
        """Which of these queries are padding: tokens that no query may attend to, not even themselves."""
        assert self.mask is not None
        to_self = visible.any(0).expand(len(positions), -1)[torch.arange(len(positions)), _index(positions)]
        padding = torch.zeros_like(to_self)
        for row in (~to_self).nonzero().flatten().tolist():
            column = mask_block(self.mask, self.keys, items=slice(item, item + 1))[..., positions[row]]
            padding[row] = not visible_keys(column).any()
        return padding


@dataclass(frozen=True, eq=False)
class LogitsCall:
    """The logits that a model gave to its own softmax, and the values that it multiplied with the result."""

    module: nn.Module
    scores: Float[Tensor, "batch heads queries keys"]
    weights: Float[Tensor, "batch heads queries keys"]
    value: Float[Tensor, "batch heads keys dims"]
    cross: bool | None = None
    batch_index: int = 0

    @property
    def batch(self) -> int:
        """Number of items in the batch."""
        return self.scores.shape[0]

    @property
    def heads(self) -> int:
        """Number of query heads."""
        return self.scores.shape[1]

    @property
    def queries(self) -> int:
        """Number of queries of an item, padding included."""
        return self.scores.shape[2]

    @property
    def keys(self) -> int:
        """Number of keys of an item, padding included."""
        return self.scores.shape[3]

    @property
    def mask_key(self) -> None:
        """None: only the scores say what is visible."""
        return

    @property
    def sinks(self) -> None:
        """None: no family that forms its logits in full has sinks."""
        return

    def logits(
        self, positions: Sequence[int], item: int = 0, keys: int | None = None
    ) -> Float[Tensor, "heads rows keys"]:
        """Logits of these queries as the model rounded them, in float64; zero on hidden keys."""
        rows = _index(positions)
        scores, weights = self.scores[item, :, rows, :keys], self.weights[item, :, rows, :keys]
        return torch.where(self._not_hidden(scores, weights), scores, 0).double()

    def visible(self, positions: Sequence[int], item: int = 0) -> Bool[Tensor, "heads rows keys"]:
        """Which keys each of these queries may attend to; none for a query that is padding."""
        rows = _index(positions)
        visible = self._not_hidden(self.scores[item, :, rows], self.weights[item, :, rows])
        if self.queries != self.keys or self.cross:
            return visible
        for row, position in enumerate(positions):
            if not visible[:, row, position].any():
                column = self._not_hidden(self.scores[item, :, :, position], self.weights[item, :, :, position])
                if not column.any():
                    visible[:, row] = False
        return visible

    def values(self, item: int = 0) -> Float[Tensor, "groups keys dims"]:
        """Value vectors in the model's dtype, one group for heads that share them."""
        return self.value[item]

    def only(self, item: int) -> LogitsCall:
        """The same call with this item as its whole batch."""
        scores, weights, value = (part[item, None] for part in (self.scores, self.weights, self.value))
        return replace(self, scores=scores, weights=weights, value=value, batch_index=item)

    def _not_hidden(self, scores: Tensor, weights: Tensor) -> Tensor:
        """Which of these scores no mask was added to.

        The number that hides a key may be of the values' dtype, and the scores of a wider one; and some families divide
        by the root of the head's size after the mask is added.
        """
        by_hand = (scores == HAND_WRITTEN_MASK) & (weights == 0)
        of_values = hidden_below(self.value.dtype) / self.value.shape[-1] ** 0.5
        return (scores > max(hidden_below(scores.dtype), of_values)) & ~by_hand


def _index(positions: Sequence[int]) -> Tensor:
    return torch.tensor(list(positions), dtype=torch.long)


def _item(mask: Tensor, item: int) -> Tensor:
    """One item of a mask or bias that may broadcast over the batch."""
    mask = as_4d(mask)
    return mask[item, None] if len(mask) > 1 else mask


def unpadded(call: Call, block: int = 512) -> list[int]:
    """Positions of the queries of a call's first item that are not padding: those with a visible key in some head."""
    positions: list[int] = []
    for start in range(0, call.queries, block):
        rows = range(start, min(call.queries, start + block))
        has_key = call.visible(rows).any(-1).any(0)
        positions.extend(start + row for row in has_key.nonzero().flatten().tolist())
    return positions
