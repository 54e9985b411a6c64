"""The forward pass being observed: its thread, its models, which tokens are padding, and where errors go.

A kernel's mask says which keys are hidden. It shows which queries are padding only if no query may attend to padding.
That is not so in cross-attention, whose keys belong to another sequence, after an indexer, which chooses keys, or where
padded tokens may attend to themselves (XLNet). But the model around the call was given a mask with one number per
token; forward hooks on the models remember it.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import PreTrainedModel

from attnscope.capture.modules import is_cross_attention, kind_of

if TYPE_CHECKING:
    from jaxtyping import Bool
    from torch import Tensor
    from torch.utils.hooks import RemovableHandle

    from attnscope.capture.attention import ObservedCall

ErrorHandler = Callable[[Exception], None]


@contextmanager
def handled(on_error: ErrorHandler | None) -> Iterator[None]:
    """Pass an exception of this block to the handler; without one it is raised."""
    try:
        yield
    except Exception as error:
        if on_error is None:
            raise
        on_error(error)


# Hooks on PyTorch's modules, or on modules inside them, disable their fast path, which changes the numbers.
UNHOOKED = (nn.MultiheadAttention, nn.TransformerEncoderLayer)


@dataclass
class _Running:
    """A model whose forward is running, with its token mask: (batch, tokens), None, or masks built by the caller."""

    model: nn.Module | None
    token_mask: Any
    nested: bool
    padding: Bool[Tensor, "batch queries"] | None = None  # of the last self-attention call


class WatchedForward:
    """Decides which calls belong to a module's forward in the current thread, and which of their queries are padding.

    Calls from other threads do not belong to it, nor do those of a second forward of the same module within the first,
    e.g. from a hook.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._names = {part: name for name, part in module.named_modules()}
        self._has_cross_attention = any(is_cross_attention(part, name) for part, name in self._names.items())
        self._thread = threading.get_ident()
        # The first entry is for attention outside any model's forward, e.g. in a function that calls a layer.
        self._running = [_Running(None, None, nested=False)]

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Follow the forward passes of the module, and of the transformers models inside it, within this block."""
        models: list[nn.Module] = [part for part in self._names if isinstance(part, PreTrainedModel)]
        if self._module not in models and not isinstance(self._module, UNHOOKED):
            models.append(self._module)
        handles: list[RemovableHandle] = []
        for model in models:
            handles.append(model.register_forward_pre_hook(self._enter, prepend=True, with_kwargs=True))
            handles.append(model.register_forward_hook(self._leave, always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def active(self) -> bool:
        """Whether this thread is running the watched forward, and no other forward of the module within it.

        Gradient checkpointing runs a layer again inside a backward pass; that call was observed in the forward.
        """
        in_backward = torch._C._current_graph_task_id() != -1
        return threading.get_ident() == self._thread and not self._running[-1].nested and not in_backward

    def complete(self, call: ObservedCall) -> ObservedCall:
        """Add what the call's arguments do not say: whether it is cross-attention, and which queries are padding."""
        cross = kind_of(call, self._names.get(call.module, "")) == "cross"
        running = self._running[-1]
        # The tokens that attend to another sequence are the ones that attended to each other just before.
        padding = running.padding if cross else self._token_padding(call)
        if padding is not None and padding.shape != (call.batch, call.queries):
            padding = None
        call = replace(call, cross=cross, padding=padding)
        if self._has_cross_attention and not cross and call.batch:
            queries = range(call.queries)
            running.padding = torch.stack([call.padded(queries, item) for item in range(call.batch)])
        return call

    def _token_padding(self, call: ObservedCall) -> Bool[Tensor, "batch queries"] | None:
        """Which queries are padding by the innermost model's token mask; None if they are not its tokens."""
        mask = next(each.token_mask for each in reversed(self._running) if not isinstance(each.token_mask, Mapping))
        if not isinstance(mask, torch.Tensor) or mask.shape != (call.batch, call.queries) or call.queries != call.keys:
            return None
        padding = (mask == 0).cpu()
        for item in padding.any(-1).nonzero().flatten().tolist():
            tokens = (~padding[item]).nonzero().flatten().tolist()
            # If there are as many latents as tokens, what they see tells them apart.
            if tokens and call.visible(tokens[:1], item)[..., padding[item]].any():
                return None
        return padding

    def _enter(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if threading.get_ident() == self._thread:
            nested = self._running[-1].nested or any(each.model is model for each in self._running)
            self._running.append(_Running(model, _token_mask(model, args, kwargs), nested))

    def _leave(self, model: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if threading.get_ident() == self._thread and self._running[-1].model is model:
            self._running.pop()


def _token_mask(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The token mask passed to a transformers model, zero on padding."""
    if not isinstance(model, PreTrainedModel):  # an argument of the same name may mean anything
        return None
    try:
        given = inspect.signature(type(model).forward).bind_partial(model, *args, **kwargs).arguments
    except TypeError:  # the model will say so
        return None
    mask, padding = given.get("attention_mask"), given.get("input_mask")  # XLNet takes either
    return padding == 0 if mask is None and isinstance(padding, torch.Tensor) else mask
