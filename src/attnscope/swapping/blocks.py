"""Attention in blocks of rows, with any normalizer instead of softmax.

Decisions:

- a block has so few rows that its logits stay in the processor's cache, and no keys x keys matrix
  exists unless the weights are requested;
- a block computes only the keys from the first to the last that one of its rows sees: in causal attention those up to
  its last row, in a sliding window those of the window, in a static cache those that are filled;
- a hidden key is a logit of -inf, which every normalizer treats as a masked key and leaves out of the length, so
  that no mask travels with the logits;
- when gradients are needed each block is recomputed in the backward pass, so that training needs no more
  memory for the weights than inference;
- logits come from `capture/kernel_arguments.py`, as in a scan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from attnscope.capture.kernel_arguments import additive_mask, mask_block, rebuild_logits, visible_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from jaxtyping import Bool, Float
    from torch import Tensor

    from attnscope.capture.attention import AttentionCall

# Logits of a block: 2 MiB of float32, the size of a core's own cache.
BLOCK_LOGITS = 1 << 19
FEWEST_ROWS, MOST_ROWS = 8, 128


@dataclass(frozen=True)
class WeightFunction:
    """How the rows of some heads get their weights.

    `weights(logits, visible, sinks)` returns weights of the shape of the logits, (batch, heads, rows, keys). A hidden
    key has a logit of -inf. `sinks` (heads,) are logits that take weight and have no key, or None. `visible` is None,
    and keys before the first that a row of the block sees are left out, unless `needs_mask`.
    """

    weights: Callable[[Tensor, Tensor | None, Tensor | None], Tensor]
    needs_mask: bool = False


@dataclass(frozen=True)
class _Block:
    """Some items of the batch, some rows, and the range of keys that they see."""

    items: slice
    rows: slice
    keys: slice
    mask: Tensor | None  # added to the logits: 0 or a bias where visible, -inf elsewhere
    later: Tensor | None  # causal without a mask: True where a key from the block's first row on is after its query


def attend(
    call: AttentionCall, heads: Sequence[int] | None, function: WeightFunction, *, with_weights: bool
) -> tuple[Float[Tensor, "batch queries heads dims"], Float[Tensor, "batch heads queries keys"] | None]:
    """The output of these heads (None: all), and their weights if requested."""
    attention = _BlockwiseAttention(call, heads, function)
    recompute = torch.is_grad_enabled() and not with_weights
    outputs: list[list[Tensor]] = []  # of each slice of the batch, its blocks of rows
    weights: list[list[Tensor]] = []
    for block in attention.blocks():
        if block.rows.start == 0:
            outputs.append([])
            weights.append([])
        if recompute:
            output = checkpoint(attention.output, block, use_reentrant=False, preserve_rng_state=attention.dropout > 0)
        else:
            block_weights = attention.weights(block)
            output = attention.context(block_weights, block)
            if with_weights:
                left_out = (block.keys.start, call.keys - block.keys.stop)
                weights[-1].append(functional.pad(block_weights, left_out))
        outputs[-1].append(output)
    result = torch.cat([torch.cat(rows, 1) for rows in outputs])
    return result, torch.cat([torch.cat(rows, 2) for rows in weights]) if with_weights else None


class _BlockwiseAttention:
    """One attention call for some of its heads."""

    def __init__(self, call: AttentionCall, heads: Sequence[int] | None, function: WeightFunction) -> None:
        self.call, self.function = call, function
        self.query, self.key, self.value = call.query, call.key, call.value
        self.heads = None if heads is None else torch.tensor(list(heads), device=call.query.device)
        if self.heads is not None:
            groups = self.heads * call.key.shape[1] // call.heads
            self.query, self.key, self.value = self.query[:, self.heads], self.key[:, groups], self.value[:, groups]
        self.dropout = float(call.options.get("dropout") or 0.0) if call.module.training else 0.0
        sinks = call.options.get("s_aux")
        sinks = None if sinks is None else sinks.reshape(-1)
        self.sinks = sinks if sinks is None or self.heads is None else sinks[self.heads]

    def blocks(self) -> Iterator[_Block]:
        """The blocks of the call, all rows of some items of the batch before the next items."""
        batch, heads, queries, _ = self.query.shape
        keys = self.call.keys
        rows = max(FEWEST_ROWS, min(MOST_ROWS, BLOCK_LOGITS // max(1, heads * keys)))
        items = max(1, BLOCK_LOGITS // max(1, heads * keys * min(rows, queries)))
        for first in range(0, batch, items):
            for start in range(0, queries, rows):
                yield self._block(slice(first, min(first + items, batch)), slice(start, min(start + rows, queries)))

    def _block(self, items: slice, rows: slice) -> _Block:
        call = self.call
        if call.mask is None:
            if not call.causal:
                return _Block(items, rows, slice(0, call.keys), None, None)
            stop = min(rows.stop, call.keys)
            positions = torch.arange(rows.start, rows.stop, device=self.query.device)
            later = positions[: stop - rows.start] > positions[:, None] if rows.start < stop else None
            return _Block(items, rows, slice(0, stop), None, later)
        mask = mask_block(call.mask, call.keys, items=items, heads=self.heads, rows=rows)
        keys = self._visible_range(visible_keys(mask))
        return _Block(items, rows, keys, additive_mask(mask[..., keys], self.query.dtype, hidden=-torch.inf), None)

    def _visible_range(self, visible: Bool[Tensor, "batch heads rows keys"]) -> slice:
        """The keys from the first to the last that any row sees; one key if no row sees any."""
        positions = visible.flatten(0, -2).any(0).nonzero()
        first, last = (int(positions[0]), int(positions[-1])) if len(positions) else (0, 0)
        return slice(0 if self.function.needs_mask else first, last + 1)

    def output(self, block: _Block) -> Float[Tensor, "items rows heads dims"]:
        """The output of the heads in the rows of a block."""
        return self.context(self.weights(block), block)

    def weights(self, block: _Block) -> Float[Tensor, "items heads rows keys"]:
        """The weights of a block, with dropout while training."""
        logits = self._logits(block)
        visible = logits != -torch.inf if self.function.needs_mask else None
        weights = self.function.weights(logits, visible, self.sinks).to(self.value.dtype)
        return functional.dropout(weights, self.dropout) if self.dropout else weights

    def _logits(self, block: _Block) -> Float[Tensor, "items heads rows keys"]:
        bias = self.call.options.get("position_bias")
        if bias is not None:
            bias = mask_block(bias, self.call.keys, items=block.items, heads=self.heads, rows=block.rows)
            bias = bias[..., block.keys]
        logits = rebuild_logits(
            self.query[block.items, :, block.rows],
            self.key[block.items, :, block.keys],
            scale=self.call.scale,
            softcap=self.call.options.get("softcap"),
            position_bias=bias,
            mask=block.mask,
        )
        if block.later is not None:
            logits[..., block.rows.start :].masked_fill_(block.later, -torch.inf)
        return logits

    def context(
        self, weights: Float[Tensor, "items heads rows keys"], block: _Block
    ) -> Float[Tensor, "items rows heads dims"]:
        """The weighted sums of the values."""
        value = self.value[block.items, :, block.keys]
        grouped = weights.reshape(*value.shape[:2], -1, weights.shape[-1])  # heads that share values together
        return (grouped @ value).reshape(*weights.shape[:3], -1).transpose(1, 2)
