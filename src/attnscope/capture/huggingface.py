"""Observe transformers models through their attention interface.

While a model is observed, every kernel in transformers' registry is wrapped: the wrapper passes the call to
the observers of that model, then runs the original kernel with the same arguments. The model's configuration, masks and
kernels are unchanged, so its output is bit-identical to an unobserved run. Calls of other models go straight to
their kernel, and the registry is restored when the last observation ends.

An attention module with a child named `REPLACEMENT` passes its calls to that child instead (`swapping/`). Both use
the same wrapper, so observing a model and replacing its attention cannot undo each other.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from transformers.modeling_utils import AttentionInterface

from attnscope.capture.attention import AttentionCall
from attnscope.capture.watching import handled
from attnscope.errors import ModelError

if TYPE_CHECKING:
    from torch import nn

    from attnscope.capture.attention import Kernel
    from attnscope.capture.watching import ErrorHandler

CallObserver = Callable[[AttentionCall], None]

# The kernels whose arguments say which keys are visible.
READABLE = ("eager", "sdpa")

# The name of the child module that runs an attention module's calls instead of its kernel.
REPLACEMENT = "attnscope"
# The attribute of a model's configuration that records what was replaced; `save_pretrained` writes it.
SWAP_CONFIG_KEY = "attnscope_swap"


@dataclass(frozen=True, eq=False)
class _Entry:
    """An observer, the thread it observes, whether it pauses the others, and where its errors go."""

    thread: int
    observer: CallObserver
    alone: bool
    on_error: ErrorHandler | None


_lock = threading.RLock()  # reentrant: a finalizer may run while this thread has it
_observers: weakref.WeakKeyDictionary[nn.Module, list[_Entry]] = weakref.WeakKeyDictionary()
_originals: dict[str, Callable[..., Any] | None] = {}
_users = 0
_running_kernels = threading.local()


@contextmanager
def observed(
    model: nn.Module, observer: CallObserver, *, alone: bool = False, on_error: ErrorHandler | None = None
) -> Iterator[None]:
    """Pass every attention call that the model makes through the interface to the observer within this block.

    An observer gets the calls of its own thread; other threads may run or observe the same model. With `alone`, used
    for trial runs, the other observers of the thread are paused.
    """
    modules = list(model.modules())
    entry = _Entry(threading.get_ident(), observer, alone, on_error)
    wrap_registry()
    with _lock:
        for module in modules:
            _observers.setdefault(module, []).append(entry)
    try:
        yield
    finally:
        with _lock:
            for module in modules:
                others = [other for other in _observers.get(module, []) if other is not entry]
                if others:
                    _observers[module] = others
                else:
                    _observers.pop(module, None)
        unwrap_registry()


def in_kernel() -> bool:
    """Whether an observed kernel is running in this thread; what it calls has already been observed."""
    return getattr(_running_kernels, "depth", 0) > 0


def wrap_registry() -> None:
    """Wrap the kernels in transformers' registry, if not yet wrapped, until the matching `unwrap_registry`."""
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            _wrap()


def unwrap_registry() -> None:
    """Restore the registry, unless someone else still needs it wrapped."""
    global _users
    with _lock:
        _users -= 1
        if _users == 0:
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
        replacement = module._modules.get(REPLACEMENT)
        observers = _current_observers(module)
        if not observers and replacement is None:
            return kernel(module, query, key, value, attention_mask, **options)
        call = None
        for entry in observers:
            with handled(entry.on_error), torch.no_grad():
                call = call or _readable(name, kernel, module, query, key, value, attention_mask, options)
                entry.observer(call)
        _running_kernels.depth = getattr(_running_kernels, "depth", 0) + 1
        try:
            if replacement is None:
                return kernel(module, query, key, value, attention_mask, **options)
            return replacement(call or _readable(name, kernel, module, query, key, value, attention_mask, options))
        finally:
            _running_kernels.depth -= 1

    return attention


def _readable(
    name: str,
    kernel: Callable[..., Any],
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    options: dict[str, Any],
) -> AttentionCall:
    """The call of a kernel whose arguments can be read; others are refused."""
    refuse_unreadable(name, type(module).__name__)
    return AttentionCall(module, query, key, value, mask, options, cast("Kernel", name), kernel_function=kernel)


def refuse_unreadable(kernel: str, who: str) -> None:
    """Raise ModelError for kernels whose arguments do not say which keys are visible."""
    if kernel not in READABLE:
        raise ModelError(
            f"{who} runs the attention kernel {kernel!r}, whose mask attnscope cannot read; load the model with "
            "attn_implementation='sdpa' or 'eager'"
        )


def _current_observers(module: nn.Module) -> list[_Entry]:
    """The observers of a module that were added in this thread and are not paused."""
    entries = [entry for entry in _observers.get(module, ()) if entry.thread == threading.get_ident()]
    # Gradient checkpointing runs a layer again inside the backward pass; that call was observed in the forward.
    if not entries or torch._C._current_graph_task_id() != -1:
        return []
    return [entry for entry in entries if entry.alone] or entries


def _eager_of(module: nn.Module) -> Callable[..., Any]:
    """The eager attention function of the file that defines the module's class, or a base class of it."""
    for base in type(module).__mro__:
        kernel = getattr(sys.modules.get(base.__module__), "eager_attention_forward", None)
        if kernel is not None:
            return kernel
    raise AttributeError(f"no eager attention in the file of {type(module).__name__}")
