"""The attention calls of the training forward itself, on the steps that are measured.

While it is armed, the modules of a model that contain attention have their calls intercepted: the first one that is
called for training is observed as a scan observes a forward, then runs as always. On all other steps nothing is
wrapped, in the model or elsewhere.

A call is for training if the model is in training mode and gradients are enabled, or the inputs need them (gradient
checkpointing of the reentrant kind runs a part of the model without gradients first). So evaluation loops in between
are not measured. Of several forwards in a step, such as the micro-batches of gradient accumulation, the first one of
each part of the model counts; what gradient checkpointing runs again in the backward pass does not.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from attnscope.capture.forward import observed, possible_batches
from attnscope.capture.watching import handled
from attnscope.monitor.refusals import attention_modules, refuse_changed

if TYPE_CHECKING:
    from attnscope.capture.attention import Call, Observer
    from attnscope.capture.watching import ErrorHandler


def _intercepted(live: weakref.ref[LiveCalls], part: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Call a part of the model as the monitor wants it; the model does not keep its monitor alive."""
    watching = live()
    return part._call_impl(*args, **kwargs) if watching is None else watching.call(part, *args, **kwargs)


def innermost(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel; its own mode decides, since people call it and its `train` directly."""
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model


class LiveCalls:
    """Passes the attention calls of a training step to an observer, while it is armed."""

    def __init__(
        self, model: nn.Module, observer: Observer, on_error: ErrorHandler, on_restart: Callable[[], None]
    ) -> None:
        """`on_restart` is called if a forward fails, and what was observed of it does not count."""
        self._intercepted: list[nn.Module] = []
        self._model, self._innermost = model, innermost(model)
        self._observer, self._on_error, self._on_restart = observer, on_error, on_restart
        attending = set(attention_modules(model))
        self._parts = [part for part in model.modules() if attending & set(part.modules())]
        self._finished: set[nn.Module] = set()  # parts of the model whose forward was observed in this step
        self._running = threading.Lock()

    def arm(self) -> None:
        """Observe the next training forward; ModelError if the model has become one that cannot be observed."""
        self.disarm()
        refuse_changed(self._model)
        self._finished.clear()
        for part in self._parts:
            # The slot for a module's compiled call: torch calls it in place of the module, with the module's hooks
            # inside, and leaves it out when a module is copied or saved.
            part._compiled_call_impl = partial(_intercepted, weakref.ref(self), part)
            self._intercepted.append(part)

    def disarm(self) -> None:
        """Leave the model as it was."""
        for part in self._intercepted:
            call = vars(part).get("_compiled_call_impl")
            # It may be another one by now: the module was compiled, or has a new monitor.
            if isinstance(call, partial) and call.func is _intercepted and call.args[0]() in (self, None):
                del part._compiled_call_impl
        self._intercepted.clear()

    def __del__(self) -> None:
        self.disarm()

    def call(self, part: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Call a part of the model, observed if it is the first call for training in this step."""
        if torch.compiler.is_compiling() or part in self._finished or not self._for_training(args, kwargs):
            return part._call_impl(*args, **kwargs)
        if not self._running.acquire(blocking=False):  # inside a part that is observed, or in another thread
            return part._call_impl(*args, **kwargs)
        finished = False
        try:
            with ExitStack() as stack:
                with handled(self._on_error):
                    batches = possible_batches(part, (args, kwargs))
                    stack.enter_context(observed(part, self._observe, batches, on_error=self._on_error))
                result = part._call_impl(*args, **kwargs)
            finished = True
            return result
        finally:
            if finished:
                self._finished.update(part.modules())
            else:
                self._finished.clear()
                self._on_restart()
            self._running.release()

    def _observe(self, call: Call) -> None:
        if call.module not in self._finished:
            self._observer(call)

    def _for_training(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if not self._innermost.training or torch._C._current_graph_task_id() != -1:
            return False
        given = tree_leaves((args, kwargs))
        return torch.is_grad_enabled() or any(isinstance(each, torch.Tensor) and each.requires_grad for each in given)
