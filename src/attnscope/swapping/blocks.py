"""Attention in blocks of rows, with any normalizer in the place of softmax.

Decisions:

- a block has so few rows that its logits stay in the processor's cache, and no matrix of keys by keys
  exists unless the weights are asked for;
- a block computes only the keys that one of its rows sees: in causal attention those up to its last row, in a
  sliding window those of the window, in a static cache those that are filled;
- a hidden key is a logit of -inf, which every normalizer takes for a masked key and leaves out of the length, so
  that no mask travels with the logits;
- when gradients are wanted each block is computed anew in the backward pass, so that training needs no more
  memory for the weights than inference;
- the arguments of the kernel are applied in the order of `capture/attention.py`: scaling, softcap, position
  bias, mask, sinks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from attnscope.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from jaxtyping import Bool, Float
    from torch import Tensor

    from attnscope.capture.attention import AttentionCall

# Logits of a block: 2 MiB of float32, the size of a core's own cache.
BLOCK_LOGITS = 1 << 19
FEWEST_ROWS, MOST_ROWS = 8, 128


@dataclass(frozen=True)
class Weigher:
    """How the rows of some heads get their weights.

    `weigh(logits, visible, sinks)` gives weights of the shape of the logits, (batch, heads, rows, keys). A hidden key
    has a logit of -inf. `sinks` (heads,) are logits that take weight and have no key, or None. `visible` is None,
    and keys that no row sees are left out on both sides, unless `wants_mask`.
    """

    weigh: Callable[[Tensor, Tensor | None, Tensor | None], Tensor]
    wants_mask: bool = False


@dataclass(frozen=True)
class _Block:
    """Some items of the batch and some rows, and the keys that they see."""

    items: slice
    rows: slice
    keys: slice
    mask: Tensor | None  # to be added to the logits: 0 or a bias where visible, -inf where not
    triangle: Tensor | None  # True where a key of the last rows-by-rows part comes after its row


def attend(
    call: AttentionCall, heads: Sequence[int] | None, weigher: Weigher, *, with_weights: bool
) -> tuple[Float[Tensor, "batch queries heads dims"], Float[Tensor, "batch heads queries keys"] | None]:
    """The output of these heads (None: all), and their weights if asked for."""
    work = _Work(call, heads, weigher)
    again = torch.is_grad_enabled() and not with_weights
    outputs: list[list[Tensor]] = []
    weights: list[list[Tensor]] = []
    for block in work.blocks():
        if block.rows.start == 0:
            outputs.append([])
            weights.append([])
        if again:
            output = checkpoint(work.output, block, use_reentrant=False, preserve_rng_state=work.dropout > 0)
        else:
            shares = work.weights(block)
            output = work.context(shares, block)
            if with_weights:
                rest = (block.keys.start, call.key.shape[2] - block.keys.stop)
                weights[-1].append(functional.pad(shares.flatten(1, 2), rest))
        outputs[-1].append(output)
    result = torch.cat([torch.cat(rows, 1) for rows in outputs])
    return result, torch.cat([torch.cat(rows, 2) for rows in weights]) if with_weights else None


class _Work:
    """One attention call for some of its heads, heads that share a key gathered: (batch, groups, repeats, ...)."""

    def __init__(self, call: AttentionCall, heads: Sequence[int] | None, weigher: Weigher) -> None:
        self.call, self.weigher = call, weigher
        self.heads = None if heads is None else list(heads)
        query, key, value = call.query, call.key, call.value
        if self.heads is not None:
            shared = [head * key.shape[1] // query.shape[1] for head in self.heads]
            query, key, value = query[:, self.heads], key[:, shared], value[:, shared]
        self.query = query.unflatten(1, (key.shape[1], -1))
        self.key, self.value = key, value
        self.dropout = float(call.options.get("dropout") or 0.0) if call.module.training else 0.0
        sinks = call.options.get("s_aux")
        self.sinks = None if sinks is None else self._of_heads(sinks.reshape(-1), 0)

    def _of_heads(self, values: Tensor, dim: int) -> Tensor:
        """The part of these heads, of something that all heads may share."""
        if self.heads is None or values.shape[dim] == 1:
            return values
        return values.index_select(dim, torch.tensor(self.heads, device=values.device))

    def blocks(self) -> Iterator[_Block]:
        """The blocks of the call, all rows of some items of the batch before the next items."""
        batch, queries, keys = self.query.shape[0], self.query.shape[3], self.key.shape[2]
        heads = self.query.shape[1] * self.query.shape[2]
        rows = max(FEWEST_ROWS, min(MOST_ROWS, BLOCK_LOGITS // max(1, heads * keys)))
        items = max(1, BLOCK_LOGITS // max(1, heads * keys * min(rows, queries)))
        for first in range(0, batch, items):
            for start in range(0, queries, rows):
                yield self._block(slice(first, min(first + items, batch)), slice(start, min(start + rows, queries)))

    def _block(self, items: slice, rows: slice) -> _Block:
        call, keys = self.call, self.key.shape[2]
        if call.mask is None:
            if not call.causal:
                return _Block(items, rows, slice(0, keys), None, None)
            last = min(rows.stop, keys)
            places = torch.arange(rows.start, rows.stop, device=self.query.device)
            triangle = places[: last - rows.start] > places[:, None] if rows.start < last else None
            return _Block(items, rows, slice(0, last), None, triangle)
        mask = self._mask(items, rows)
        if mask.dtype == torch.bool:
            visible, bias = mask, torch.zeros((), dtype=self.query.dtype, device=mask.device)
        else:
            visible, bias = mask > torch.finfo(mask.dtype).min / 2, mask.to(self.query.dtype)
        seen = self._seen(visible)
        added = torch.where(visible[..., seen], bias if bias.ndim == 0 else bias[..., seen], -torch.inf)
        return _Block(items, rows, seen, added, None)

    def _mask(self, items: slice, rows: slice) -> Tensor:
        mask = self.call.mask
        if mask is None or mask.ndim != 4:
            raise ModelError(
                f"{type(self.call.module).__name__} got an attention mask of shape "
                f"{None if mask is None else tuple(mask.shape)}; attnscope reads masks of four dimensions"
            )
        own = mask if mask.shape[0] == 1 else mask[items]
        own = own if mask.shape[2] == 1 else own[:, :, rows]
        return self._of_heads(own[..., : self.key.shape[2]], 1)

    def _seen(self, visible: Bool[Tensor, "batch heads rows keys"]) -> slice:
        """The keys from the first to the last that any row sees; one key if there is none."""
        places = visible.flatten(0, -2).any(0).nonzero()
        if self.weigher.wants_mask or not len(places):
            return slice(0, int(places[-1]) + 1 if len(places) else 1)
        return slice(int(places[0]), int(places[-1]) + 1)

    def output(self, block: _Block) -> Float[Tensor, "items rows heads dims"]:
        """What the heads of a block put out."""
        return self.context(self.weights(block), block)

    def weights(self, block: _Block) -> Float[Tensor, "items groups repeats rows keys"]:
        """The weights of a block, under dropout while training."""
        logits = self._logits(block)
        visible = logits != -torch.inf if self.weigher.wants_mask else None
        weights = self.weigher.weigh(logits, visible, self.sinks).to(self.value.dtype)
        if self.dropout:
            weights = functional.dropout(weights, self.dropout)
        return weights.unflatten(1, self.query.shape[1:3])

    def _logits(self, block: _Block) -> Float[Tensor, "items heads rows keys"]:
        query = self.query[block.items, :, :, block.rows] * self.call.scale
        key = self.key[block.items, :, block.keys]
        logits = (query.flatten(2, 3) @ key.mT).unflatten(2, query.shape[2:4]).flatten(1, 2)
        softcap = self.call.options.get("softcap")
        if softcap is not None:
            logits = softcap * torch.tanh(logits / softcap)
        bias = self.call.options.get("position_bias")
        if bias is not None:
            own = bias if bias.shape[0] == 1 else bias[block.items]
            logits = logits + self._of_heads(own, 1)[:, :, block.rows, block.keys]
        if block.mask is not None:
            logits += block.mask
        if block.triangle is not None:
            logits[..., block.rows.start :].masked_fill_(block.triangle, -torch.inf)
        return logits

    def context(
        self, weights: Float[Tensor, "items groups repeats rows keys"], block: _Block
    ) -> Float[Tensor, "items rows heads dims"]:
        """The weighted sum of the values."""
        value = self.value[block.items, :, block.keys]
        output = weights.flatten(2, 3) @ value
        return output.unflatten(2, weights.shape[2:4]).flatten(1, 2).transpose(1, 2)
