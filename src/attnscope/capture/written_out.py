"""Observe attention that a model file, or your own code, computes with plain torch functions.

A torch function mode intercepts every torch function that the model calls. Two forms of attention are recognized: a
call of `torch.nn.functional.scaled_dot_product_attention`, and a softmax whose result is multiplied with values. The
functions themselves are unchanged, so the output is bit-identical. In the second case the model itself computes the
heads x queries x keys logits; they are observed one layer at a time and dropped before the next.

A softmax over keys whose result is used in another way (masked again, mixed between heads, cut into blocks) is an error
that names the module: its rows would not be the model's weights.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from attnscope.capture.attention import AttentionCall, LogitsCall
from attnscope.capture.huggingface import in_kernel
from attnscope.capture.watching import handled
from attnscope.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from torch import Tensor, nn

    from attnscope.capture.attention import ObservedCall
    from attnscope.capture.watching import ErrorHandler

Batches = tuple[tuple[int, int | None], ...]
"""Possible batch sizes, each with the number of tokens it applies to; None: any number."""

SOFTMAX = {torch.softmax, torch.nn.functional.softmax, torch.Tensor.softmax, torch.special.softmax}
SDPA = torch.nn.functional.scaled_dot_product_attention
MATMUL = {torch.matmul, torch.bmm, torch.Tensor.matmul, torch.Tensor.bmm, torch.Tensor.__matmul__}
# Functions that return the same weights in another dtype or shape; dropout that drops nothing is one too.
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
    """A softmax whose weights have not yet been multiplied with values."""

    module: nn.Module
    scores: Tensor
    weights: Tensor
    changes: int  # how often the scores were changed in place before the softmax


class WrittenOutAttention(TorchFunctionMode):
    """Torch function mode that passes attention computed by a model's own code to an observer."""

    def __init__(
        self,
        model: nn.Module,
        observer: Callable[[ObservedCall], None],
        batches: Batches = ((1, None),),
        tokens: frozenset[int] | None = None,
        on_error: ErrorHandler | None = None,
    ) -> None:
        """`tokens` are the possible numbers of keys, if known; weights over anything else are refused.

        `batches` are the possible batch sizes, each with the number of tokens it applies to. With `on_error` the model
        is being trained: weights are observed as they are before dropout.
        """
        super().__init__()
        self._modules = {id(module): module for module in model.modules()}
        self._observer = observer
        self._batches = batches
        self._tokens = tokens
        self._on_error = on_error
        self._pending: dict[int, tuple[Tensor, _Softmax]] = {}
        self._recorded: set[int] = set()
        self._unfollowed: dict[str, None] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        with handled(self._on_error):
            if func is SDPA and not in_kernel():
                self._kernel(*args, **kwargs)
            elif self._pending and func in MATMUL:
                names = ("input", "other", "mat2", "tensor2")
                self._product(*args, *(kwargs[name] for name in names if name in kwargs))
            elif self._pending and func is torch.einsum:
                self._einsum(*args)
        result = func(*args, **kwargs)
        with handled(self._on_error):
            if func in SOFTMAX and not in_kernel():
                self._softmax(args, kwargs, result)
            elif self._pending and args and id(args[0]) in self._pending and isinstance(result, torch.Tensor):
                weights = args[0]
                if self._same_weights(func, args, kwargs) or torch.equal(result, weights):
                    self._pending[id(result)] = (result, self._pending[id(weights)][1])
        return result

    def _same_weights(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a function returns the weights that it is given, up to dtype and shape, and dropout in training."""
        return func in SAME_WEIGHTS or (func in DROPOUT and (self._on_error is not None or _no_dropout(args, kwargs)))

    def recorded(self, module: nn.Module) -> None:
        """Ignore the module's calls from now on, because it calls `record` itself."""
        self._recorded.add(id(module))

    def finish(self) -> None:
        """End a forward pass; raises if the weights of a softmax could not be followed."""
        for _, softmax in self._pending.values():
            self._add_unfollowed(softmax)
        self._pending.clear()
        if self._unfollowed:
            names = ", ".join(self._unfollowed)
            with handled(self._on_error):
                raise ModelError(
                    f"attnscope cannot follow the attention of {names}: its weights are changed after the softmax, or "
                    "are not over keys; call attnscope.capture.record inside it, or leave this model out"
                )

    def calling_module(self) -> nn.Module | None:
        """The innermost module of the model on the call stack."""
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
        module = self._attending_module()
        if module is None:
            return
        batch = self._batch(module, query, key.shape[-2])
        query, key, value = (_as_4d(tensor, batch) for tensor in (query, key, value))
        if attn_mask is not None and attn_mask.ndim == 3 and len(attn_mask) > 1:
            attn_mask = _as_4d(attn_mask, batch)
        options = {"scaling": scale, "is_causal": is_causal}
        with torch.no_grad():
            self._observer(AttentionCall(module, query, key, value, attn_mask, options, "torch"))

    def _attending_module(self) -> nn.Module | None:
        module = self.calling_module()
        return None if module is None or id(module) in self._recorded else module

    def _softmax(self, args: tuple[Any, ...], kwargs: dict[str, Any], weights: Tensor) -> None:
        scores = args[0] if args else kwargs["input"]
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if scores.ndim < 3 or dim not in (-1, scores.ndim - 1) or not scores.is_floating_point():
            return
        module = self._attending_module()
        if module is None:
            return
        for _, earlier in list(self._pending.values()):
            # Either its module has finished and its tensors must be freed, or this module combines several softmaxes
            # (as landmark approximations do), none of which gives the weights of the values.
            self._drop_pending(earlier)
            self._add_unfollowed(earlier)
        self._pending[id(weights)] = (weights, _Softmax(module, scores, weights, _changes(scores)))

    def _product(self, weights: Tensor, value: Tensor) -> None:
        """Observe a product of weights and values, which completes the attention; other products are ignored."""
        if id(weights) not in self._pending:
            return
        softmax = self._pending[id(weights)][1]
        self._drop_pending(softmax)
        leading = weights.shape[:-2]
        if value.ndim < 3 or value.shape[-2] != weights.shape[-1]:
            self._add_unfollowed(softmax)
            return
        self._observe(softmax, weights, value.expand(*leading, *value.shape[-2:]))

    def _einsum(self, equation: Any, *operands: Any) -> None:
        if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
            operands = tuple(operands[0])
        first = next((i for i, operand in enumerate(operands) if id(operand) in self._pending), None)
        if first is None or not isinstance(equation, str):
            return
        softmax = self._pending[id(operands[first])][1]
        self._drop_pending(softmax)
        if len(operands) != 2 or "." in equation:
            self._add_unfollowed(softmax)
            return
        weights, value = operands[first], operands[1 - first]
        terms = equation.replace(" ", "").partition("->")[0].split(",")
        of_weights, of_value = terms[first], terms[1 - first]
        *shared, row, key = list(of_weights)
        width = [letter for letter in of_value if letter not in of_weights]
        if key not in of_value or row in of_value or len(width) != 1 or not set(shared) <= set(of_value):
            self._add_unfollowed(softmax)
            return
        order = [of_value.index(letter) for letter in [*shared, key, *width]]
        self._observe(softmax, weights, value.permute(order))

    def _observe(self, softmax: _Softmax, weights: Tensor, value: Tensor) -> None:
        batch = self._batch(softmax.module, softmax.scores, softmax.scores.shape[-1])
        scores, weights, value = (_as_4d(tensor, batch) for tensor in (softmax.scores, weights, value))
        same_shape = scores.shape == weights.shape and value.shape[:2] == scores.shape[:2]
        over_keys = self._tokens is None or set(scores.shape[2:]) <= self._tokens
        changed = any(_changes(tensor) for tensor in (weights, softmax.weights))
        if not same_shape or not over_keys or changed or _changes(softmax.scores) != softmax.changes:
            self._add_unfollowed(softmax)
            return
        if self._on_error is not None:  # dropout made some of them zero
            weights = _as_4d(softmax.weights, batch)
        with torch.no_grad():
            self._observer(LogitsCall(softmax.module, scores, weights, value))

    def _drop_pending(self, softmax: _Softmax) -> None:
        self._pending = {key: entry for key, entry in self._pending.items() if entry[1] is not softmax}

    def _add_unfollowed(self, softmax: _Softmax) -> None:
        """Remember a softmax over keys that could not be followed; those over experts or classes are ignored."""
        name, shape = type(softmax.module).__name__, softmax.scores.shape
        over_keys = "ttention" in name or self._tokens is None or shape[-1] in self._tokens
        items = {batch for batch, _ in self._batches} or {1}
        if over_keys and (len(shape) > 3 or (shape[0] > min(items) and shape[0] not in items)):
            self._unfollowed[name] = None

    def _batch(self, module: nn.Module, rows: Tensor, keys: int) -> int:
        """Batch size of an attention; where heads are folded into the batch, it follows from the number of tokens."""
        if rows.ndim > 3:
            return len(rows)
        folded, queries = rows.shape[:2]
        fitting = {
            batch for batch, tokens in self._batches if tokens in (None, queries, keys) and folded % max(batch, 1) == 0
        }
        if len(fitting) != 1:
            raise ModelError(
                f"attnscope cannot tell heads from items of the batch in {type(module).__name__}, whose attention has "
                f"the shape {(folded, queries, keys)}; scan one item at a time, or call attnscope.capture.record in it"
            )
        return fitting.pop()


def _as_4d(tensor: Tensor, batch: int) -> Tensor:
    """Reshape to (batch, heads, tokens, size); heads may be folded into the batch or span several dimensions."""
    return tensor.unflatten(0, (batch, -1)) if tensor.ndim == 3 else tensor.flatten(1, -3)


def _changes(tensor: Tensor) -> int:
    """How often a tensor was modified in place; 0 in inference mode, where torch does not count."""
    return 0 if tensor.is_inference() else tensor._version


def _no_dropout(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    p = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
    training = kwargs.get("training", kwargs.get("train", args[2] if len(args) > 2 else True))
    return p == 0 or not training
