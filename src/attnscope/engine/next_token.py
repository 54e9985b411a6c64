"""Next-token logits of a causal model, used to compare a changed model with the original."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


def next_token_logits(
    module: Any, tokens: Int[Tensor, " positions"], rows: Int[Tensor, " rows"] | None = None
) -> Float[Tensor, "rows vocabulary"]:
    """Logits of one window at all positions, or at the given ones; differentiable unless gradients are off."""
    some = rows is not None and "logits_to_keep" in inspect.signature(module.forward).parameters
    options = {"logits_to_keep": rows} if some else {}
    logits: Tensor = module(input_ids=tokens[None], use_cache=False, **options).logits[0]
    return logits if rows is None or some else logits[rows]
