"""Checks of an attention call for a reproduction: the paper's experiments must be defined for it, its heads finite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from attnscope.errors import ModelError
from attnscope.normalizers import SinkSoftmax, Softmax
from attnscope.swapping.replacement import effective_normalizer

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.engine.parts import WindowRecord
    from attnscope.engine.run import LayerCall


def check_call(layer: LayerCall, visible: Tensor, queries: Sequence[int]) -> None:
    """Raise if the paper's experiments are not defined for a call; `visible` are the masks of its queries."""
    if not (visible == visible[:1]).all():
        raise ModelError(f"the heads of {layer.name} see different keys; attnscope reproduce needs them to agree")
    if layer.causal and (visible[0] & (torch.arange(visible.shape[-1]) > torch.tensor(queries)[:, None])).any():
        raise ModelError(f"{layer.name} sees later tokens although its model is said to be causal")
    if not isinstance(effective_normalizer(layer.call), Softmax | SinkSoftmax):
        raise ModelError(f"{layer.name} runs with a swapped normalizer; the paper's experiments are about softmax")


def usable_heads(
    record: WindowRecord, layer: int, logits: Tensor, visible: Tensor, kinds: Mapping[Any, Tensor]
) -> Tensor:
    """Which heads have finite logits and vectors; the others are recorded as skipped."""
    usable = torch.where(visible, logits, 0).isfinite().all(-1).all(-1)
    for vectors in kinds.values():
        usable = usable & vectors.isfinite().all(-1).all(-1).repeat_interleave(len(logits) // len(vectors))
    for head in (~usable).nonzero().flatten().tolist():
        record.skipped.setdefault((layer, head), "logits or vectors not finite")
    return usable
