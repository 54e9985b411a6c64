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
from typing import TYPE_CHECKING, Any

import torch
from transformers.modeling_utils import AttentionInterface

from attnscope.capture.attention import AttentionCall

if TYPE_CHECKING:
    from torch import nn

Observer = Callable[[AttentionCall], None]

# The name of the child that answers an attention module's calls in place of its kernel.
REPLACEMENT = "attnscope"
# The attribute of a model's configuration that says what was replaced; `save_pretrained` writes it.
RECORD = "attnscope_swap"

_lock = threading.RLock()  # a finalizer may release while this thread holds it
_observers: weakref.WeakKeyDictionary[nn.Module, Observer] = weakref.WeakKeyDictionary()
_originals: dict[str, Callable[..., Any] | None] = {}
_holders = 0


@contextmanager
def observed(model: nn.Module, observer: Observer) -> Iterator[None]:
    """Show every attention call of the model to this observer alone while the block runs."""
    modules = list(model.modules())
    hold()
    with _lock:
        before = {module: _observers.get(module) for module in modules}
        for module in modules:
            _observers[module] = observer
    try:
        yield
    finally:
        with _lock:
            for module, earlier in before.items():
                if earlier is None:
                    _observers.pop(module, None)
                else:
                    _observers[module] = earlier
        release()


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
        observer = _observers.get(module)
        replacement = module._modules.get(REPLACEMENT)
        if observer is None and replacement is None:
            return kernel(module, query, key, value, attention_mask, **options)
        call = AttentionCall(module, query, key, value, attention_mask, options, name, kernel)
        if observer is not None:
            with torch.no_grad():
                observer(call)
        return call.own() if replacement is None else replacement(call)

    return attention


def _eager_of(module: nn.Module) -> Callable[..., Any]:
    """The eager attention of the file that defines the module's class, or a base of it."""
    for base in type(module).__mro__:
        kernel = getattr(sys.modules.get(base.__module__), "eager_attention_forward", None)
        if kernel is not None:
            return kernel
    raise AttributeError(f"no eager attention beside {type(module).__name__}")
