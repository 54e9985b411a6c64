"""A head's output when only some of its keys keep weight, and how many keys are enough for nearly the same output.

A rule keeps some of a row's visible keys (`swapping.key_budget`) and gives them the softmax of their logits, so that
the row's total weight stays what it was; where the model has a sink logit, it stays in the sum. The same rules replace
a head's weights inside the model when a diagnosis is verified (`swapping.interventions`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from attnscope._numerics import loop
from attnscope._process import parallel_for
from attnscope.diagnosis.states import RULES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Bool, Float
    from torch import Tensor

    from attnscope.diagnosis.states import Thresholds


class HeadOutputs(NamedTuple):
    """The outputs of heads in some rows, as they arrive at the output projection."""

    weights: Float[Tensor, "heads rows keys"]
    values: Float[Tensor, "heads keys dims"]
    context: Float[Tensor, "heads rows dims"]  # sum of the weighted values, times the factor
    factor: Float[Tensor, "heads rows dims"]  # of gates and norms; 1 where a model has none

    @classmethod
    def of(cls, weights: Float[Tensor, "heads rows keys"], values: Float[Tensor, "groups keys dims"]) -> HeadOutputs:
        """The outputs of a kernel with these weights."""
        values = values.repeat_interleave(len(weights) // len(values), 0)
        context = weights @ values
        return cls(weights, values, context, torch.ones_like(context))

    def times(self, factor: Float[Tensor, "heads rows dims"] | None) -> HeadOutputs:
        """The same after a gate or a norm."""
        return self if factor is None else self._replace(context=self.context * factor, factor=factor)


@loop
def growing_errors(
    order: Any,  # (rows, keys), the row's keys with the largest weight first
    lengths: Any,  # (rows,)
    weights: Any,  # (rows, keys)
    values: Any,  # (keys, dims)
    context: Any,  # (rows, dims), as it arrives
    factor: Any,  # (rows, dims), of what arrives at the output projection
    sizes: Any,  # (sizes,), ascending
    out: Any,  # (rows, sizes)
) -> None:
    """|c - c_k| of the top k keys, in the proportions they had and the total unchanged, for each k of `sizes`."""
    dims = values.shape[1]
    partial = np.empty(dims)
    for r in range(len(order)):
        total = 0.0
        for j in range(lengths[r]):
            total += weights[r, order[r, j]]
        partial[:] = 0
        mass = 0.0
        done = 0
        for s in range(len(sizes)):
            while done < min(sizes[s], lengths[r]):
                key = order[r, done]
                weight = weights[r, key]
                mass += weight
                for d in range(dims):
                    partial[d] += weight * values[key, d]
                done += 1
            square = 0.0
            scale = total / mass if mass > 0 else 0.0
            for d in range(dims):
                gap = context[r, d] - factor[r, d] * scale * partial[d]
                square += gap * gap
            out[r, s] = np.sqrt(square) if done < lengths[r] else 0.0


def rule_error_squares(
    outputs: HeadOutputs, visible: Bool[Tensor, "heads rows keys"], positions: Sequence[int], thresholds: Thresholds
) -> dict[str, Float[Tensor, "heads rows"]]:
    """Column of |c - c_rule|^2 for each rule of the states that keeps some of the keys."""
    return {
        rule.square: error_squares(outputs, rule.keys(thresholds)(outputs.weights, visible, positions))
        for rule in RULES
        if rule.keys
    }


def error_squares(outputs: HeadOutputs, keys: Bool[Tensor, "heads rows keys"]) -> Float[Tensor, "heads rows"]:
    """|c - c_rule|^2 when only these keys keep weight, in the proportions they had, the total unchanged."""
    return (outputs.context - context_of(outputs, keys)).square().sum(-1)


def context_of(outputs: HeadOutputs, keys: Bool[Tensor, "heads rows keys"]) -> Float[Tensor, "heads rows dims"]:
    """The head's output when only these keys keep weight."""
    weights = outputs.weights
    chosen = torch.where(keys, weights, 0)
    total, mass = weights.sum(-1, keepdim=True), chosen.sum(-1, keepdim=True)
    # Keys whose weights all vanish share the row's weight equally: the limit of their softmax is not recorded.
    even = keys / keys.sum(-1, keepdim=True).clamp_min(1)
    shares = torch.where(mass > 0, chosen / torch.where(mass > 0, mass, 1), even)
    return (shares * total) @ outputs.values * outputs.factor


def key_grid(length: int) -> tuple[int, ...]:
    """Sizes of top sets to try: 1, 2, 3, 5, 8, ... up to the length."""
    sizes = [1, 2]
    while sizes[-1] < length:
        sizes.append(sizes[-1] + sizes[-2])
    return tuple(size for size in sizes if size <= length)


def keys_enough(
    outputs: HeadOutputs, visible: Bool[Tensor, "heads rows keys"], errors: Sequence[float]
) -> Float[Tensor, "errors heads rows"]:
    """How many of the largest weights give the head's output within each of some relative errors.

    Tried on the sizes of `key_grid`, with linear interpolation in ln k between the last size that is not enough and the
    first that is. All visible keys are always enough.
    """
    length = visible.sum(-1)
    norm = outputs.context.norm(dim=-1)
    sizes = key_grid(int(length.max()))
    wanted = torch.tensor(list(errors), dtype=norm.dtype, device=norm.device)[:, None, None]
    counts = torch.full((len(errors), *norm.shape), torch.nan, dtype=norm.dtype, device=norm.device)
    before_size, before_error = torch.ones_like(norm), torch.full_like(norm, torch.inf)
    for size, error in zip(sizes, _top_errors(outputs, visible, sizes).unbind(-1), strict=True):
        reached = error / torch.where(norm > 0, norm, 1)
        count = length.clamp_max(size).to(norm.dtype)
        step = ((before_error - wanted) / (before_error - reached)).nan_to_num(1).clamp(0, 1)
        between = torch.exp(before_size.log() + step * (count.log() - before_size.log()))
        counts = torch.where(counts.isnan() & (reached <= wanted), between, counts)
        before_size, before_error = count, reached
    return torch.where(counts.isnan(), length.to(norm.dtype), counts)


def _top_errors(
    outputs: HeadOutputs, visible: Bool[Tensor, "heads rows keys"], sizes: Sequence[int]
) -> Float[Tensor, "heads rows sizes"]:
    """|c - c_k| for top sets of each size; 0 where a row has no more keys."""
    order = outputs.weights.masked_fill(~visible, -1).argsort(dim=-1, descending=True, stable=True)
    keys, lengths, shares, vectors, contexts, factors = (
        part.cpu().numpy() for part in (order, visible.sum(-1), *outputs)
    )
    out = torch.empty(*outputs.weights.shape[:2], len(sizes), dtype=torch.float64)
    wanted = np.array(sizes)

    def head_errors(head: int) -> None:
        growing_errors(
            keys[head], lengths[head], shares[head], vectors[head], contexts[head], factors[head], wanted,
            out[head].numpy(),
        )  # fmt: skip

    parallel_for(head_errors, range(len(out)))
    return out.to(outputs.weights.device)
