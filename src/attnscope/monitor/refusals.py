"""What cannot be watched is refused when a monitor is made, with the reason and what to do instead."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import nn
from transformers import GenerationMixin, PreTrainedModel

from attnscope.capture.huggingface import refuse_unreadable
from attnscope.capture.models import refuse_empty
from attnscope.capture.modules import INTERFACE, WRITTEN_OUT, uses_interface
from attnscope.errors import InputError, ModelError, shown

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
