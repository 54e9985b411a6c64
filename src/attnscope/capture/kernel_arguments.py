"""What the arguments of an attention kernel mean: which keys a mask hides, and what the logits are.

Scans (float64) and swapped models (the model's own dtype) both use these functions and no others. Logits are computed
in the order of the kernels: scaled products, softcap, position bias, mask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

    Index = slice | Tensor

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
