"""Observe transformers models through their attention interface.

While a model is observed, every kernel in transformers' registry is wrapped: the wrapper shows the call to
the observer of that model, then runs the very kernel that would have run, with the same arguments. The
model's configuration, masks and kernels stay as they are, so its output is bit-identical to an unobserved
run. Models that nobody observes pass through untouched, and the registry is restored when the last
observation ends.
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

_lock = threading.Lock()
_observers: weakref.WeakKeyDictionary[nn.Module, Observer] = weakref.WeakKeyDictionary()
_originals: dict[str, Callable[..., Any] | None] = {}
_observations = 0


@contextmanager
def observed(model: nn.Module, observer: Observer) -> Iterator[None]:
    """Show every attention call of the model to the observer while the block runs."""
    modules = list(model.modules())
    with _lock:
        _install()
        for module in modules:
            _observers[module] = observer
    try:
        yield
    finally:
        with _lock:
            for module in modules:
                _observers.pop(module, None)
            _uninstall()


def _install() -> None:
    global _observations
    _observations += 1
    if _observations > 1:
        return
    # Eager attention is not in the registry: each model file has its own, passed as the default.
    for name in [*AttentionInterface._global_mapping, "eager"]:
        _originals[name] = AttentionInterface._global_mapping.get(name)
        AttentionInterface.register(name, _wrapper(name))


def _uninstall() -> None:
    global _observations
    _observations -= 1
    if _observations:
        return
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
        if observer is not None:
            with torch.no_grad():
                observer(AttentionCall(module, query, key, value, attention_mask, options))
        return kernel(module, query, key, value, attention_mask, **options)

    return attention


def _eager_of(module: nn.Module) -> Callable[..., Any]:
    """The eager attention of the file that defines the module's class, or a base of it."""
    for base in type(module).__mro__:
        kernel = getattr(sys.modules.get(base.__module__), "eager_attention_forward", None)
        if kernel is not None:
            return kernel
    raise AttributeError(f"no eager attention beside {type(module).__name__}")
