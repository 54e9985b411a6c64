"""Observe attention that is written out in a model file, or in your own: no interface, no registry.

While the block runs, a torch function mode sees every torch function that the model calls. Two shapes of attention are
understood: a call of `torch.nn.functional.scaled_dot_product_attention`, and a softmax whose result is multiplied with
values. The functions run as they are, so the output is bit-identical. In the second case the model itself forms
heads x queries x keys logits; they are seen one layer at a time and dropped before the next.

A softmax over keys whose result goes another way (masked again, mixed between heads, cut into blocks) is an error that
names the module: its rows would not be the model's weights.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from attnscope.capture.attention import AttentionCall, LogitsCall
from attnscope.capture.huggingface import in_kernel
from attnscope.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from torch import Tensor, nn

    from attnscope.capture.attention import Observer

SOFTMAX = {torch.softmax, torch.nn.functional.softmax, torch.Tensor.softmax, torch.special.softmax}
SDPA = torch.nn.functional.scaled_dot_product_attention
MATMUL = {torch.matmul, torch.bmm, torch.Tensor.matmul, torch.Tensor.bmm, torch.Tensor.__matmul__}
# The result of these is the same weights: another type, shape or name. Dropout is one of them outside training.
SAME_WEIGHTS = {
    torch.Tensor.to,
    torch.Tensor.type,
    torch.Tensor.type_as,
    torch.Tensor.float,
    torch.Tensor.half,
    torch.Tensor.bfloat16,
    torch.Tensor.contiguous,
    torch.Tensor.view,
    torch.Tensor.reshape,
    torch.reshape,
}
DROPOUT = {torch.dropout, torch.nn.functional.dropout}


@dataclass
class _Softmax:
    """A softmax whose weights have not met their values yet."""

    module: nn.Module
    scores: Tensor
    weights: Tensor
    changes: int  # of the scores in place, before the softmax


class WrittenOutAttention(TorchFunctionMode):
    """Shows the attention that modules of a model compute by themselves to an observer."""

    def __init__(
        self, model: nn.Module, observer: Observer, batch: int = 1, tokens: frozenset[int] | None = None
    ) -> None:
        """`tokens`: the numbers of keys there can be, where known; weights over anything else are refused."""
        super().__init__()
        self._modules = {id(module): module for module in model.modules()}
        self._observer = observer
        self._batch = batch
        self._tokens = tokens
        self._open: dict[int, tuple[Tensor, _Softmax]] = {}
        self._recorded: set[int] = set()
        self._lost: dict[str, None] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is SDPA and not in_kernel():
            self._kernel(*args, **kwargs)
        elif self._open and func in MATMUL:
            self._product(*args, *(kwargs[name] for name in ("input", "other", "mat2", "tensor2") if name in kwargs))
        elif self._open and func is torch.einsum:
            self._einsum(*args)
        result = func(*args, **kwargs)
        if func in SOFTMAX and not in_kernel():
            self._softmax(args, kwargs, result)
        elif self._open and args and id(args[0]) in self._open and isinstance(result, torch.Tensor):
            weights = args[0]
            if func in SAME_WEIGHTS or (func in DROPOUT and _no_dropout(args, kwargs)) or torch.equal(result, weights):
                self._open[id(result)] = (result, self._open[id(weights)][1])
        return result

    def recorded(self, module: nn.Module) -> None:
        """The module speaks for itself (`record`): what else it calls is not attention to be shown again."""
        self._recorded.add(id(module))

    def finish(self) -> None:
        """The forward is over: whatever could not be followed is an error."""
        for _, softmax in self._open.values():
            self._lose(softmax)
        self._open.clear()
        if self._lost:
            raise ModelError(
                f"attnscope cannot follow the attention of {', '.join(self._lost)}: its weights are changed after the "
                "softmax, or are not over keys; call attnscope.capture.record inside it, or leave this model out"
            )

    def calling_module(self) -> nn.Module | None:
        """The innermost module of the model among the callers."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            owner = self._modules.get(id(frame.f_locals.get("self")))
            if owner is not None and not isinstance(owner, torch.nn.Softmax):
                return owner
            frame = frame.f_back
        return None

    def _kernel(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> None:
        module = self._speaker()
        if module is None:
            return
        query, key, value = (self._as_4d(tensor) for tensor in (query, key, value))
        if attn_mask is not None and attn_mask.ndim == 3 and len(attn_mask) > 1:
            attn_mask = self._as_4d(attn_mask)
        options = {"scaling": scale, "is_causal": is_causal}
        with torch.no_grad():
            self._observer(AttentionCall(module, query, key, value, attn_mask, options, "torch"))

    def _speaker(self) -> nn.Module | None:
        module = self.calling_module()
        return None if module is None or id(module) in self._recorded else module

    def _softmax(self, args: tuple[Any, ...], kwargs: dict[str, Any], weights: Tensor) -> None:
        scores = args[0] if args else kwargs["input"]
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if scores.ndim < 3 or dim not in (-1, scores.ndim - 1) or not scores.is_floating_point():
            return
        module = self._speaker()
        if module is None:
            return
        for _, earlier in list(self._open.values()):
            if earlier.module is not module:  # that module is done, and nothing of it may pile up
                self._close(earlier)
                self._lose(earlier)
        self._open[id(weights)] = (weights, _Softmax(module, scores, weights, _changes(scores)))

    def _product(self, weights: Tensor, value: Tensor) -> None:
        """Weights times values: the attention is complete. Any other product is none of ours."""
        if id(weights) not in self._open:
            return
        softmax = self._open[id(weights)][1]
        self._close(softmax)
        leading = weights.shape[:-2]
        if value.ndim < 3 or value.shape[-2] != weights.shape[-1]:
            self._lose(softmax)
            return
        self._show(softmax, weights, value.expand(*leading, *value.shape[-2:]))

    def _einsum(self, equation: Any, *operands: Any) -> None:
        if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
            operands = tuple(operands[0])
        places = [place for place, operand in enumerate(operands) if id(operand) in self._open]
        if not places or not isinstance(equation, str):
            return
        softmax = self._open[id(operands[places[0]])][1]
        self._close(softmax)
        if len(operands) != 2 or "." in equation:
            self._lose(softmax)
            return
        weights, value = operands[places[0]], operands[1 - places[0]]
        terms = equation.replace(" ", "").partition("->")[0].split(",")
        own, other = terms[places[0]], terms[1 - places[0]]
        shared, width = own[:-2], [letter for letter in other if letter not in own]
        if own[-1] not in other or own[-2] in other or len(width) != 1 or not set(shared) <= set(other):
            self._lose(softmax)
            return
        order = [other.index(letter) for letter in [*shared, own[-1], *width]]
        self._show(softmax, weights, value.permute(order))

    def _show(self, softmax: _Softmax, weights: Tensor, value: Tensor) -> None:
        scores, weights, value = self._as_4d(softmax.scores), self._as_4d(weights), self._as_4d(value)
        same = scores.shape == weights.shape and value.shape[:2] == scores.shape[:2]
        over_keys = self._tokens is None or set(scores.shape[2:]) <= self._tokens
        changed = any(_changes(tensor) for tensor in (weights, softmax.weights))
        if not same or not over_keys or changed or _changes(softmax.scores) != softmax.changes:
            self._lose(softmax)
            return
        with torch.no_grad():
            self._observer(LogitsCall(softmax.module, scores, weights, value))

    def _close(self, softmax: _Softmax) -> None:
        self._open = {key: entry for key, entry in self._open.items() if entry[1] is not softmax}

    def _lose(self, softmax: _Softmax) -> None:
        """Remember a softmax over keys that was not followed; one over experts or classes is none of ours."""
        name, shape = type(softmax.module).__name__, softmax.scores.shape
        over_keys = "ttention" in name or self._tokens is None or shape[-1] in self._tokens
        if over_keys and (len(shape) > 3 or shape[0] > self._batch):
            self._lost[name] = None

    def _as_4d(self, tensor: Tensor) -> Tensor:
        """(batch, heads, tokens, size), from heads folded into the batch or spread over several dimensions."""
        if tensor.ndim == 3:
            batch = self._batch if tensor.shape[0] % self._batch == 0 else 1
            return tensor.unflatten(0, (batch, -1))
        return tensor.flatten(1, -3) if tensor.ndim > 4 else tensor


def _changes(tensor: Tensor) -> int:
    """How often a tensor was changed in place, as far as torch counts it."""
    return 0 if tensor.is_inference() else tensor._version


def _no_dropout(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    p = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
    training = kwargs.get("training", kwargs.get("train", args[2] if len(args) > 2 else True))
    return p == 0 or not training
