"""The attention calls of the training forward itself, on the steps that are measured.

While it is armed, the modules of a model that contain attention have their calls intercepted: the first one that is
called for training is observed as a scan observes a forward, then runs as always. On all other steps nothing is
wrapped, in the model or elsewhere.

A call is for training if the model is in training mode and gradients are enabled, or the inputs need them (gradient
checkpointing of the reentrant kind runs a part of the model without gradients first). So evaluation loops in between
are not measured. Of several forwards in a step, such as the micro-batches of gradient accumulation, the first one of
each part of the model counts; what gradient checkpointing runs again in the backward pass does not.

What cannot be watched is refused when a monitor is made, with the reason and what to do instead.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from transformers import GenerationMixin, PreTrainedModel

from attnscope.capture.forward import observed, possible_batches
from attnscope.capture.huggingface import refuse_unreadable
from attnscope.capture.models import refuse_empty
from attnscope.capture.modules import INTERFACE, WRITTEN_OUT, uses_interface
from attnscope.capture.watching import handled
from attnscope.errors import InputError, ModelError, shown

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


_ATTENTION = WRITTEN_OUT | {"record", INTERFACE}
_KNOWN_PACKAGES = ("torch", "transformers")
_RUN_UNCOMPILED = (
    "a compiled graph has its attention kernels built in, and running some steps without it would change their "
    "numbers; train the model uncompiled, or watch an uncompiled run of it"
)


def refuse_unwatchable(model: object) -> None:
    """Raise InputError or ModelError if the attention of this model cannot be watched while it trains."""
    if not isinstance(model, nn.Module):
        raise InputError(f"a monitor takes the model that is trained, a torch.nn.Module; received {shown(model)}")
    name = type(model).__name__
    refuse_empty(model, name)
    refuse_changed(model)
    if not attention_modules(model):
        raise ModelError(
            f"no attention was found in {name}: neither transformers' attention interface, nor "
            "nn.MultiheadAttention, nor code that calls scaled_dot_product_attention or softmax; if it attends in "
            "another way, call attnscope.capture.record(query, key, value, ...) there"
        )
    for part in model.modules():
        kernel = getattr(getattr(part, "config", None), "_attn_implementation", None)
        if isinstance(kernel, str) and isinstance(part, PreTrainedModel) and any(map(uses_interface, part.modules())):
            refuse_unreadable(kernel, type(part).__name__)


def refuse_changed(model: nn.Module) -> None:
    """Raise ModelError if the model was wrapped so that its attention cannot be watched, also after set-up."""
    for part in model.modules():
        classes = {cls.__name__ for cls in type(part).__mro__}
        if "OptimizedModule" in classes or part._compiled_call_impl is not None:
            raise ModelError(f"{type(part).__name__} is compiled (torch.compile): {_RUN_UNCOMPILED}")
        if isinstance(part, torch.jit.ScriptModule):
            raise ModelError(f"{type(part).__name__} is a TorchScript module: {_RUN_UNCOMPILED}")
        if isinstance(part, nn.DataParallel):
            raise ModelError(
                "nn.DataParallel runs copies of the model in other threads, which cannot be watched; use "
                "DistributedDataParallel, one process for each device"
            )
        if "DeepSpeedEngine" in classes:
            raise ModelError("DeepSpeed's engine cannot be watched; use DistributedDataParallel or FSDP2 (fully_shard)")
        if "FullyShardedDataParallel" in classes:
            raise ModelError("FullyShardedDataParallel (FSDP1) cannot be watched; use FSDP2 (fully_shard)")
    fully_sharded = any(cls.__name__ == "FSDPModule" for part in model.modules() for cls in type(part).__mro__)
    for parameter_name, parameter in model.named_parameters():
        if hasattr(parameter, "ds_id"):
            raise ModelError("weights that DeepSpeed shards cannot be watched; use FSDP2 (fully_shard)")
        mesh = getattr(parameter, "device_mesh", None)
        if mesh is not None and (mesh.ndim > 1 or not fully_sharded):
            raise ModelError(
                f"{parameter_name} is a distributed tensor: with tensor parallelism no rank has all heads of a layer; "
                "watch a run with data parallelism"
            )


def attention_modules(model: nn.Module) -> list[nn.Module]:
    """The modules of a model that may compute attention, by their classes and their code."""
    return [part for part in model.modules() if _may_attend(part)]


def _may_attend(module: nn.Module) -> bool:
    if isinstance(module, nn.MultiheadAttention) or uses_interface(module):
        return True
    package = type(module).forward.__module__.partition(".")[0]
    if package in ("torch", "attnscope"):
        return "forward" in vars(module) and _mentions_attention(module)
    softmax_inside = package != "transformers" and any(isinstance(part, nn.Softmax) for part in module.children())
    return softmax_inside or _mentions_attention(module)


def _mentions_attention(module: nn.Module) -> bool:
    """Whether code of the module, or a function that it calls by name, computes a softmax or records attention."""
    waiting = [*_methods(type(module)), *(each for each in vars(module).values() if callable(each))]
    seen: set[CodeType] = set()
    while waiting:
        function = _undecorated(waiting.pop())
        if not isinstance(function, FunctionType) or function.__code__ in seen:
            continue
        seen.add(function.__code__)
        names = set(_names(function.__code__))
        if names & _ATTENTION:
            return True
        if function.__module__.partition(".")[0] not in _KNOWN_PACKAGES:
            waiting.extend(_called(function, names))
    return False


def _methods(cls: type) -> Iterator[Any]:
    # What every transformers model has mentions attention.
    for base in cls.__mro__:
        if base not in (*PreTrainedModel.__mro__, GenerationMixin) and not base.__module__.startswith("torch."):
            yield from vars(base).values()


def _undecorated(function: Any) -> Any:
    while True:
        if isinstance(function, partial):
            function = function.func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        else:
            return getattr(function, "__func__", function)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _called(function: FunctionType, names: set[str]) -> Iterator[Any]:
    """Functions that a function may call: globals of its file, and members of modules among them."""
    for name in names:
        known = function.__globals__.get(name)
        if isinstance(known, ModuleType):
            if known.__name__.partition(".")[0] not in _KNOWN_PACKAGES:
                yield from (vars(known).get(member) for member in names)
        elif isinstance(known, type) and issubclass(known, torch.autograd.Function):
            yield from vars(known).values()
        else:
            yield known
