"""Which keys a simpler rule would keep of a row, and what the head's output then is.

A rule keeps some of a row's visible keys and gives them the softmax of their logits, so that the row's total weight
stays what it was; where the model has a sink logit, it stays in the sum. The same rules replace a head's weights inside
the model when a diagnosis is verified (`attnscope.swapping.interventions`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from attnscope._threads import share_out
from attnscope.diagnosis._kernels import growing_errors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Bool, Float, Int
    from torch import Tensor


def first_visible(visible: Bool[Tensor, "*batch rows keys"]) -> Bool[Tensor, "*batch rows keys"]:
    """The first key that a row sees."""
    return visible & (visible.cumsum(-1) == 1)


def first_and_near(
    visible: Bool[Tensor, "*batch rows keys"], positions: Sequence[int], count: int
) -> Bool[Tensor, "*batch rows keys"]:
    """The first visible key and the `count` visible keys nearest to the query, itself included; ties to the earlier.

    In a causal row the nearest keys are the last ones.
    """
    places = torch.arange(visible.shape[-1], device=visible.device)
    own = torch.tensor(list(positions), device=visible.device)[:, None]
    # Twice the distance, less one on the left side: no two keys are equally near.
    nearness = 2 * (places - own).abs() - (places < own).long()
    nearness = torch.where(visible, nearness, torch.iinfo(torch.long).max)
    farthest = nearness.topk(min(count, visible.shape[-1]), dim=-1, largest=False).values[..., -1:]
    return visible & ((nearness <= farthest) | first_visible(visible))


def top_counts(length: Int[Tensor, "*batch rows"], share: float) -> Int[Tensor, "*batch rows"]:
    """How many keys a share of a row is: rounded up, at least one."""
    return (length * share).ceil().long().clamp_min(1)


def error_squares(
    weights: Float[Tensor, "heads rows keys"],
    values: Float[Tensor, "heads keys dims"],
    context: Float[Tensor, "heads rows dims"],
    kept: Bool[Tensor, "heads rows keys"],
) -> Float[Tensor, "heads rows"]:
    """|c - c_rule|^2 when only the kept keys get weight, in the proportions they had, the total unchanged."""
    return (context - kept_context(weights, values, kept)).square().sum(-1)


def kept_context(
    weights: Float[Tensor, "heads rows keys"],
    values: Float[Tensor, "heads keys dims"],
    kept: Bool[Tensor, "heads rows keys"],
) -> Float[Tensor, "heads rows dims"]:
    """The head's output under a rule that keeps these keys."""
    chosen = torch.where(kept, weights, 0)
    total, mass = weights.sum(-1, keepdim=True), chosen.sum(-1, keepdim=True)
    # Kept keys whose weights all vanish share the row's weight equally: the limit of their softmax is not recorded.
    even = kept / kept.sum(-1, keepdim=True).clamp_min(1)
    shares = torch.where(mass > 0, chosen / torch.where(mass > 0, mass, 1), even)
    return (shares * total) @ values


def key_grid(length: int) -> tuple[int, ...]:
    """Sizes of top sets to try, 1, 2, 3, 5, 8, ... up to the length."""
    sizes = [1, 2]
    while sizes[-1] < length:
        sizes.append(sizes[-1] + sizes[-2])
    return tuple(size for size in sizes if size <= length)


def keys_enough(
    weights: Float[Tensor, "heads rows keys"],
    visible: Bool[Tensor, "heads rows keys"],
    values: Float[Tensor, "heads keys dims"],
    context: Float[Tensor, "heads rows dims"],
    errors: Sequence[float],
) -> Float[Tensor, "errors heads rows"]:
    """How many of the largest weights give the head's output within each of some relative errors.

    Tried on the sizes of `key_grid`, with a straight line in ln k between the last size that is not enough and the
    first that is. All visible keys are always enough.
    """
    length = visible.sum(-1)
    norm = context.norm(dim=-1)
    sizes = key_grid(int(length.max()))
    wanted = torch.tensor(list(errors), dtype=norm.dtype, device=norm.device)[:, None, None]
    found = torch.full((len(errors), *norm.shape), torch.nan, dtype=norm.dtype, device=norm.device)
    before_size, before_error = torch.ones_like(norm), torch.full_like(norm, torch.inf)
    for size, error in zip(sizes, _top_errors(weights, visible, values, context, sizes).unbind(-1), strict=True):
        reached = error / torch.where(norm > 0, norm, 1)
        count = length.clamp_max(size).to(norm.dtype)
        step = ((before_error - wanted) / (before_error - reached)).nan_to_num(1).clamp(0, 1)
        between = torch.exp(before_size.log() + step * (count.log() - before_size.log()))
        found = torch.where(found.isnan() & (reached <= wanted), between, found)
        before_size, before_error = count, reached
    return torch.where(found.isnan(), length.to(norm.dtype), found)


def _top_errors(
    weights: Float[Tensor, "heads rows keys"],
    visible: Bool[Tensor, "heads rows keys"],
    values: Float[Tensor, "heads keys dims"],
    context: Float[Tensor, "heads rows dims"],
    sizes: Sequence[int],
) -> Float[Tensor, "heads rows sizes"]:
    """|c - c_k| for top sets of each size; 0 where a row has no more keys."""
    order = weights.masked_fill(~visible, -1).argsort(dim=-1, descending=True, stable=True)
    keys, lengths, shares, vectors, own = (
        part.cpu().numpy() for part in (order, visible.sum(-1), weights, values, context)
    )
    out = torch.empty(*weights.shape[:2], len(sizes), dtype=torch.float64)
    wanted = np.array(sizes)

    def head_errors(head: int) -> None:
        errors = out[head].numpy()
        growing_errors(keys[head], lengths[head], shares[head], vectors[head], own[head], wanted, errors)

    share_out(head_errors, range(len(weights)))
    return out.to(weights.device)
