"""Preparation of the arguments of all normalizers: dtypes, masks, lengths, per-row parameters."""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope.errors import InputError
from attnscope.normalizers import _kernels, _loops

_HALF = (torch.float16, torch.bfloat16)


def prepare(logits: Tensor, visible: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The logits in the dtype of the computation, and the mask expanded to their shape.

    float16 and bfloat16 are computed in float32. `visible` may have any shape that broadcasts to
    that of the logits.
    """
    if not isinstance(logits, Tensor) or not logits.dtype.is_floating_point:
        kind = logits.dtype if isinstance(logits, Tensor) else type(logits).__name__
        raise InputError(f"logits must be a floating point tensor, received {kind}: convert with .float()")
    if logits.ndim == 0:
        raise InputError("logits must have at least one dimension, received a scalar: use logits[None]")
    z = logits.float() if logits.dtype in _HALF else logits
    if visible is None:
        return z, None
    if not isinstance(visible, Tensor):
        raise InputError(
            f"visible must be a boolean tensor (True = attended), received {type(visible).__name__}: "
            "convert with torch.tensor(...)"
        )
    if visible.dtype != torch.bool:
        raise InputError(
            f"visible must be a boolean mask (True = attended), received {visible.dtype}: "
            "for an additive mask pass visible = mask > torch.finfo(mask.dtype).min / 2"
        )
    if visible.shape == logits.shape:
        return z, visible.to(z.device)
    try:
        shape = torch.broadcast_shapes(logits.shape, visible.shape)
    except RuntimeError:
        raise InputError(
            f"visible of shape {tuple(visible.shape)} does not broadcast against logits of shape {tuple(logits.shape)}"
        ) from None
    if shape != logits.shape:
        raise InputError(
            f"visible of shape {tuple(visible.shape)} would enlarge logits of shape {tuple(logits.shape)}: "
            "expand the logits first"
        )
    return z, visible.to(z.device).expand(shape)


def lengths(z: Tensor, visible: Tensor | None) -> Tensor:
    """Number of visible keys of each row, shape (..., 1), in the dtype of the logits.

    A logit of -inf is a masked key, with or without a mask. An empty row has length one, so that
    ln n is defined; its weights are zero at any scale.
    """
    values = z.detach()
    if _loops.usable(values, visible):
        counts = torch.empty(z.shape[:-1], dtype=z.dtype)
        mask, index = _loops.mask_rows(visible, z.shape)
        _loops.run(_kernels.lengths, values, _loops.rows(values), mask, index, counts.view(-1).numpy())
    else:
        counts = effective_mask(values, visible).sum(-1).to(z.dtype)
    return counts.clamp(min=1).unsqueeze(-1)


def effective_mask(z: Tensor, visible: Tensor | None) -> Tensor:
    """Mask of the keys that are visible and whose logit is not -inf."""
    present = z != -torch.inf
    return present if visible is None else present & visible


def column(value: Tensor | float, like: Tensor) -> Tensor:
    """A parameter as a tensor with a last dimension of one, to broadcast against lengths of shape (..., 1)."""
    return torch.as_tensor(value, dtype=like.dtype, device=like.device).unsqueeze(-1)


def per_row(value: Tensor | None, z: Tensor) -> Tensor | None:
    """A parameter of shape (..., 1) expanded to one value per row of z."""
    return None if value is None else value.expand(*z.shape[:-1], 1)
