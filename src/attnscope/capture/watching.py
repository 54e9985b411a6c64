"""The forward pass being observed: its thread, its models, its padding, where errors go, and calls that modules report.

A kernel's mask says which keys are hidden. It shows which queries are padding only if no query may attend to padding.
That is not so in cross-attention, whose keys belong to another sequence, after an indexer, which chooses keys, or where
padded tokens may attend to themselves (XLNet). But the model around the call was given a mask with one number per
token; forward hooks on the models remember it.

A custom module whose attention cannot be observed calls `record(query, key, value, ...)` just before it computes it.
During a scan the call is measured; at any other time `record` returns immediately.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn
from transformers import PreTrainedModel

from attnscope.capture.attention import is_cross_attention, kind_of
from attnscope.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
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


class Recorder(Protocol):
    """Receives the calls that a custom module records."""

    def __call__(
        self,
        module: nn.Module | None,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        /,
        **options: Any,
    ) -> None:
        """Receive one call."""


_active: ContextVar[tuple[Recorder, ErrorHandler | None] | None] = ContextVar("attnscope_recorder", default=None)


def record(
    query: Float[Tensor, "batch heads queries key_dims"],
    key: Float[Tensor, "batch kv_heads keys key_dims"],
    value: Float[Tensor, "batch kv_heads keys dims"],
    mask: Tensor | None = None,
    *,
    scale: float | None = None,
    causal: bool = False,
    bias: Tensor | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " heads"] | None = None,
    cross: bool | None = None,
    module: nn.Module | None = None,
) -> None:
    """Report one attention call of a custom module to the scan that is running, if any.

    >>> class Mine(torch.nn.Module):
    ...     def forward(self, x):  # (batch, heads, tokens, size)
    ...         attnscope.capture.record(x, x, x, causal=True, module=self)
    ...         return torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
    >>> result = attnscope.scan(Mine(), inputs=torch.randn(1, 2, 8, 4), top_n=[2], progress=False)
    >>> result.heads.height
    2

    The logits are query · key x `scale`, through `softcap`, plus `bias` and a float `mask`. Masks and biases broadcast
    to (batch, heads, queries, keys).

    Parameters
    ----------
    query : (batch, heads, queries, key_dims)
        Queries.
    key : (batch, kv_heads, keys, key_dims)
        Keys; heads may share them.
    value : (batch, kv_heads, keys, dims)
        Values; heads may share them.
    mask
        Boolean, True where a key is visible; or a float that is added, where -1e4 or less hides a key.
    scale
        Factor of the products. Default: one over the root of the key size.
    causal
        Hide later keys, whatever the mask says about them.
    bias
        Added to the logits.
    softcap
        Largest magnitude of a logit: softcap tanh(logit / softcap).
    sinks : (heads,)
        Logits that take weight and have no key.
    cross
        Whether the keys come from another sequence than the queries. Default: not known.
    module
        The attention module. Default: the innermost one on the call stack.
    """
    active = _active.get()
    if active is None:
        return
    recorder, on_error = active
    with handled(on_error):
        mask, bias = _checked(query, key, value, mask, bias, softcap)
        options = {"scaling": scale, "is_causal": causal, "position_bias": bias, "softcap": softcap, "s_aux": sinks}
        recorder(module, query, key, value, mask, cross=cross, **options)


def _checked(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, bias: Tensor | None, softcap: float | None
) -> tuple[Tensor | None, Tensor | None]:
    """The mask and the bias, expanded over all keys; raises InputError for arguments that do not fit together."""
    shapes = [tuple(tensor.shape) for tensor in (query, key, value)]
    wrong = any(len(shape) != 4 for shape in shapes) or not (
        shapes[0][0] == shapes[1][0] == shapes[2][0]
        and shapes[0][3] == shapes[1][3]
        and shapes[1][1:3] == shapes[2][1:3]
        and min(shapes[1][1], shapes[1][3]) > 0
        and shapes[0][1] % shapes[1][1] == 0
    )
    if wrong:
        raise InputError(
            "record takes query (batch, heads, queries, size), key (batch, kv heads, keys, size) and value (batch, kv "
            f"heads, keys, value size), heads a multiple of kv heads; received {', '.join(map(str, shapes))}"
        )
    full = (*shapes[0][:3], shapes[1][2])
    mask, bias = _fitted("mask", mask, full), _fitted("bias", bias, full)
    if softcap is not None and not softcap > 0:
        raise InputError(f"record takes a softcap above zero, or None for none; received {softcap!r}")
    return mask, bias


def _fitted(name: str, tensor: Tensor | None, full: tuple[int, ...]) -> Tensor | None:
    """A mask or bias expanded over all keys; raises if it does not broadcast or has an integer dtype."""
    if tensor is None:
        return None
    shape = tuple(tensor.shape)
    fits = len(shape) <= 4 and all(size in (1, of) for size, of in zip(shape[::-1], full[::-1], strict=False))
    integer = not tensor.dtype.is_floating_point and (name == "bias" or str(tensor.dtype) != "torch.bool")
    if not fits or integer:
        kinds = "boolean or float" if name == "mask" else "float"
        raise InputError(
            f"record takes a {kinds} {name} that broadcasts to {full}; received {tensor.dtype} of shape {shape}"
        )
    return tensor.expand(*shape[:-1], full[-1]) if shape else tensor.expand(full[-2:])


@contextmanager
def recording(recorder: Recorder, on_error: ErrorHandler | None = None) -> Iterator[None]:
    """Send all calls of `record` within this block to the recorder."""
    token = _active.set((recorder, on_error))
    try:
        yield
    finally:
        _active.reset(token)
