"""Normalizers with compiled loops of their own: weights from one loop, gradients from another.

The definition in torch operations is the specification. It also gives what the loops do not: higher derivatives,
forward mode, transforms of torch.func, other devices, compiled models.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnscope.normalizers import _loops
from attnscope.normalizers._autograd import dual

Definition = Callable[[Tensor, Tensor | None], Tensor]


class Loops(NamedTuple):
    """The two loops of a normalizer, with the arguments that `_kernels_composed.py` describes."""

    forward: Callable[..., None]
    backward: Callable[..., None]
    kind: int = 0


def compose(definition: Definition, loops: Loops, z: Tensor, visible: Tensor | None) -> Tensor:
    """The weights of logits z, by the loops where they can run."""
    if not _loops.usable(z, visible) or dual(z):
        return definition(z, visible)
    weights: Tensor = Composed.apply(definition, loops, z, visible)  # type: ignore[no-untyped-call]
    return weights


class Composed(torch.autograd.Function):
    """z -> weights; where a derivative is to be differentiated again, it is that of the definition."""

    @staticmethod
    def forward(ctx: Any, definition: Definition, loops: Loops, z: Tensor, visible: Tensor | None) -> Tensor:
        out = torch.empty_like(z, memory_format=torch.contiguous_format)
        mask, index = _loops.mask_rows(visible, z.shape)
        _loops.run(loops.forward, z, _loops.rows(z), mask, index, loops.kind, _loops.rows(out))
        ctx.definition, ctx.loops, ctx.visible = definition, loops, visible
        ctx.save_for_backward(z, out)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        z, w = ctx.saved_tensors
        (g,) = gradients
        differentiated_again = torch.is_grad_enabled()
        if differentiated_again or not _loops.usable(z, w, g, ctx.visible) or g.dtype != z.dtype:
            with torch.enable_grad():
                weights = ctx.definition(z, ctx.visible)
                (to_z,) = torch.autograd.grad(weights, z, g, create_graph=differentiated_again)
            return None, None, to_z, None
        out = torch.empty_like(z, memory_format=torch.contiguous_format)
        mask, index = _loops.mask_rows(ctx.visible, z.shape)
        rows = [_loops.rows(tensor) for tensor in (w, g, out)]
        _loops.run(ctx.loops.backward, z, _loops.rows(z), mask, index, ctx.loops.kind, *rows)
        return None, None, out, None
