"""The normalizer that a layer uses now, swapped heads included, for measuring its rows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from attnscope.normalizers import Facts, Normalizer, SinkSoftmax, Softmax, Tempered
from attnscope.swapping.replacement import Entry, replacement_of
from attnscope.swapping.rules import LEARNED, normalized

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from attnscope.capture.attention import Call


def effective_normalizer(call: Call) -> Normalizer:
    """The normalizer of this call's rows: the model's own softmax, except in swapped heads."""
    sinks = call.sinks
    plain = Softmax() if sinks is None else SinkSoftmax(sinks[:, None])
    replacement = replacement_of(call.module)
    if replacement is None:
        return plain
    parts = [_part(heads, entry) for heads, entry in replacement.plan() if entry.output is None]
    return _Mixed(plain, sinks, parts) if parts else plain


def with_sinks(normalizer: Normalizer, sinks: Tensor | None) -> Normalizer:
    """The normalizer as a swap would apply it in a model with these sinks, one per head."""
    if sinks is None:
        return normalizer
    heads = list(range(len(sinks)))
    return _Mixed(SinkSoftmax(sinks[:, None]), sinks, [(heads, heads, normalizer)])


def at_temperature(normalizer: Normalizer, sinks: Tensor | None, temperature: float) -> Normalizer:
    """A model's normalizer at a temperature; sinks are logits too and are divided like the others."""
    if sinks is None:
        return Tempered(normalizer, temperature)
    divided = SinkSoftmax(sinks[:, None] / temperature)
    if isinstance(normalizer, _Mixed):
        return Tempered(_Mixed(divided, sinks / temperature, normalizer.parts), temperature)
    return Tempered(divided, temperature)


def _part(heads: list[int], entry: Entry) -> tuple[list[int], list[int], Any]:
    """All heads of a change, the indices of those that no later change overrides, and the current rule."""
    rule = entry.rule.normalizer if isinstance(entry.rule, LEARNED) else entry.rule
    return list(entry.heads), [entry.heads.index(head) for head in heads], rule


class _Mixed(Normalizer):
    """The model's own normalizer with others in some heads; logits are (heads, rows, keys)."""

    name: ClassVar[str] = "mixed"
    facts: ClassVar[Facts] = Facts(
        sums_to_one=False, at_most_one=False, non_negative=False, shift_invariant=False, permutation_equivariant=False
    )

    def __init__(self, plain: Normalizer, sinks: Tensor | None, parts: list[tuple[list[int], list[int], Any]]) -> None:
        self.plain, self.sinks, self.parts = plain, sinks, parts

    def weights(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        """Weights of each row, same shape and type as the logits."""
        mask = torch.ones_like(logits, dtype=torch.bool) if visible is None else visible
        result = self.plain.weights(logits, visible)
        for heads, index, rule in self.parts:
            z = logits[heads].masked_fill(~mask[heads], -torch.inf)
            if isinstance(rule, Normalizer):
                weights = normalized(rule, z, None if self.sinks is None else self.sinks[heads])
            else:
                weights = rule(z[None], mask[heads][None])[0]
            result[[heads[i] for i in index]] = weights[index].detach().to(result.dtype)
        return result

    def jacobian_norm(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        """The exact norm; NaN for functions that are not a `Normalizer`, and in models with sinks."""
        return self._of_parts(lambda rule, z, mask: rule.jacobian_norm(z, mask), logits, visible)

    def jacobian_bound(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        """A bound on the norm; NaN where `jacobian_norm` is."""
        return self._of_parts(lambda rule, z, mask: rule.jacobian_bound(z, mask), logits, visible)

    def _of_parts(self, function: Callable[..., Tensor], logits: Tensor, visible: Tensor | None) -> Tensor:
        result = function(self.plain, logits, visible)
        for heads, index, rule in self.parts:
            decided = [heads[i] for i in index]
            if isinstance(rule, Normalizer) and self.sinks is None:
                values = function(rule, logits[heads], None if visible is None else visible[heads])
                result[decided] = values[index].detach().to(result.dtype)
            else:
                result[decided] = math.nan
        return result

    def weight_bounds(self, length: int, low: float, high: float) -> tuple[float, float]:
        """No bound is known for all heads together."""
        return -math.inf, math.inf

    def lipschitz(self, length: int) -> float:
        """No constant is known for all heads together."""
        return math.inf
