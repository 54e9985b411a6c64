"""Observe transformers models through their attention interface.

While a model is observed, every kernel in transformers' registry is wrapped: the wrapper shows the call to
the observer of that model, then runs the very kernel that would have run, with the same arguments. The
model's configuration, masks and kernels stay as they are, so its output is bit-identical to an unobserved
run. Models that nobody observes pass through untouched, and the registry is restored when the last
observation ends.

An attention module with a child named `REPLACEMENT` hands its calls to that child instead (`swapping/`). Both go
through the one wrapper, so that observing a model and replacing its attention never undo one another.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from transformers.modeling_utils import AttentionInterface

from attnscope.capture.attention import AttentionCall
from attnscope.errors import ModelError

if TYPE_CHECKING:
    from torch import nn

    from attnscope.capture.attention import Kernel

Watcher = Callable[[AttentionCall], None]

# The kernels whose masks say which keys are visible. Others keep that to themselves.
READABLE = ("eager", "sdpa")

# The name of the child that answers an attention module's calls in place of its kernel.
REPLACEMENT = "attnscope"
# The attribute of a model's configuration that says what was replaced; `save_pretrained` writes it.
SWAP_CONFIG_KEY = "attnscope_swap"

_lock = threading.RLock()  # a finalizer may release while this thread holds it
_observers: weakref.WeakKeyDictionary[nn.Module, list[tuple[int, Watcher]]] = weakref.WeakKeyDictionary()
_originals: dict[str, Callable[..., Any] | None] = {}
_holders = 0
_inside = threading.local()


@contextmanager
def probed(model: nn.Module, observer: Watcher) -> Iterator[None]:
    """As `observed`, unnoticed by whoever else observes: for a trial run that is none of their business."""
    modules = list(model.modules())
    with _lock:
        hidden = {module: _observers.pop(module) for module in modules if module in _observers}
    try:
        with observed(model, observer):
            yield
    finally:
        with _lock:
            _observers.update(hidden)


@contextmanager
def observed(model: nn.Module, observer: Watcher) -> Iterator[None]:
    """Show every attention call that the model makes through the interface to the observer while the block runs.

    The same model may be observed by several threads at once: each sees the calls of its own forward.
    """
    modules = list(model.modules())
    entry = (threading.get_ident(), observer)
    hold()
    with _lock:
        for module in modules:
            _observers.setdefault(module, []).append(entry)
    try:
        yield
    finally:
        with _lock:
            for module in modules:
                left = [other for other in _observers.get(module, []) if other is not entry]
                if left:
                    _observers[module] = left
                else:
                    _observers.pop(module, None)
        release()


def in_kernel() -> bool:
    """Whether an observed kernel is running in this thread: what it calls has been seen already."""
    return getattr(_inside, "depth", 0) > 0


def hold() -> None:
    """Keep the registry wrapped until a matching `release`."""
    global _holders
    with _lock:
        _holders += 1
        if _holders == 1:
            _wrap()


def release() -> None:
    """Put the registry back if nobody else holds it."""
    global _holders
    with _lock:
        _holders -= 1
        if _holders == 0:
            _unwrap()


def _wrap() -> None:
    # Eager attention is not in the registry: each model file has its own, passed as the default.
    for name in [*AttentionInterface._global_mapping, "eager"]:
        _originals[name] = AttentionInterface._global_mapping.get(name)
        AttentionInterface.register(name, _wrapper(name))


def _unwrap() -> None:
    for name, original in _originals.items():
        if original is None:
            del AttentionInterface._global_mapping[name]
        else:
            AttentionInterface.register(name, original)
    _originals.clear()


def _wrapper(name: str) -> Callable[..., Any]:
    original = _originals[name]

    def attention(
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **options: Any,
    ) -> Any:
        kernel = original if original is not None else _eager_of(module)
        observers = _listening(module)
        replacement = module._modules.get(REPLACEMENT)
        if not observers and replacement is None:
            return kernel(module, query, key, value, attention_mask, **options)
        if name not in READABLE:
            raise ModelError(
                f"{type(module).__name__} runs the attention kernel {name!r}, whose mask attnscope cannot read; load "
                "the model with attn_implementation='sdpa' or 'eager'"
            )
        call = AttentionCall(
            module, query, key, value, attention_mask, options, cast("Kernel", name), kernel_function=kernel
        )
        with torch.no_grad():
            for observer in observers:
                observer(call)
        _inside.depth = getattr(_inside, "depth", 0) + 1
        try:
            return replacement(call) if replacement is not None else call.kernel_output()
        finally:
            _inside.depth -= 1

    return attention


def _listening(module: nn.Module) -> list[Watcher]:
    """The observers of a module: with several, those of this thread."""
    entries = _observers.get(module)
    # Gradient checkpointing runs a layer again inside the backward pass; that call was seen in the forward.
    if not entries or torch._C._current_graph_task_id() != -1:
        return []
    threads = {thread for thread, _ in entries}
    return [observer for thread, observer in entries if len(threads) == 1 or thread == threading.get_ident()]


def _eager_of(module: nn.Module) -> Callable[..., Any]:
    """The eager attention of the file that defines the module's class, or a base of it."""
    for base in type(module).__mro__:
        kernel = getattr(sys.modules.get(base.__module__), "eager_attention_forward", None)
        if kernel is not None:
            return kernel
    raise AttributeError(f"no eager attention beside {type(module).__name__}")
