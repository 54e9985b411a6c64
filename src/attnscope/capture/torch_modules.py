"""Observe PyTorch's own attention: `nn.MultiheadAttention`, and the layers of `nn.TransformerEncoder` around it.

Both have a fast path that computes everything in one kernel. Hooks and function modes disable it, which would change
the numbers. Therefore the `forward` of these classes is wrapped while a model is observed: the wrapper projects
queries, keys and values once more with the module's own weights, and runs the original without function modes. The
output is bit-identical, on the fast path too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from attnscope.capture.attention import AttentionCall
from attnscope.capture.watching import handled

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from attnscope.capture.watching import ErrorHandler

    Observer = Callable[[AttentionCall], None]

_lock = threading.Lock()
_originals: dict[type[nn.Module], Callable[..., Any]] = {}


@dataclass(frozen=True, eq=False)
class _Observation:
    """An observer of the modules with these ids, in one thread, and where its errors go."""

    thread: int
    modules: frozenset[int]
    observer: Observer
    on_error: ErrorHandler | None


_observations: list[_Observation] = []
# Ids of the attention modules whose `forward` ran inside the current encoder layer; None outside of one.
_called_in_layer: ContextVar[set[int] | None] = ContextVar("attnscope_called_in_layer", default=None)


@contextmanager
def observed(model: nn.Module, observer: Observer, on_error: ErrorHandler | None = None) -> Iterator[None]:
    """Pass the calls of every `nn.MultiheadAttention` of the model to the observer within this block."""
    observation = _Observation(threading.get_ident(), frozenset(map(id, model.modules())), observer, on_error)
    with _lock:
        if not _observations:
            _wrap(nn.MultiheadAttention, _attention)
            _wrap(nn.TransformerEncoderLayer, _encoder_layer)
            _wrap(nn.TransformerEncoder, _encoder)
        _observations.append(observation)
    try:
        yield
    finally:
        with _lock:
            _observations.remove(observation)
            if not _observations:
                for cls, original in _originals.items():
                    cls.forward = original
                _originals.clear()


def _current_observations(module: nn.Module) -> list[_Observation]:
    """The observers of a module that were added in this thread."""
    # Gradient checkpointing runs a layer again inside the backward pass; that call was observed in the forward.
    if torch._C._current_graph_task_id() != -1:
        return []
    thread = threading.get_ident()
    return [each for each in list(_observations) if each.thread == thread and id(module) in each.modules]


def _wrap(cls: type[nn.Module], wrapper: Callable[..., Any]) -> None:
    original = cls.forward
    _originals[cls] = original

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not any(each.thread == threading.get_ident() for each in list(_observations)):
            return original(self, *args, **kwargs)
        return wrapper(original, self, *args, **kwargs)

    cls.forward = forward


def _attention(
    original: Callable[..., Any],
    module: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> Any:
    called = _called_in_layer.get()
    if called is not None:
        called.add(id(module))
    with torch._C.DisableTorchFunction():
        # Nested tensors come from the fast path of an encoder, whose layer passes the call on.
        if not query.is_nested:
            _pass_on(module, query, key, value, key_padding_mask, attn_mask)
        return original(
            module, query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
        )


def _encoder_layer(
    original: Callable[..., Any],
    layer: nn.TransformerEncoderLayer,
    src: Tensor,
    src_mask: Tensor | None = None,
    src_key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Any:
    called: set[int] = set()
    token = _called_in_layer.set(called)
    try:
        with torch._C.DisableTorchFunction():
            result = original(layer, src, src_mask, src_key_padding_mask, is_causal)
            if id(layer.self_attn) not in called:
                with torch.no_grad():
                    inputs, padding = (src, src_key_padding_mask) if not src.is_nested else _padded(src)
                    inputs = layer.norm1(inputs) if layer.norm_first else inputs
                _pass_on(layer.self_attn, inputs, inputs, inputs, padding, src_mask)
    finally:
        _called_in_layer.reset(token)
    return result


def _encoder(original: Callable[..., Any], encoder: nn.TransformerEncoder, *args: Any, **kwargs: Any) -> Any:
    if not all(type(layer) is nn.TransformerEncoderLayer for layer in encoder.layers):
        return original(encoder, *args, **kwargs)
    with torch._C.DisableTorchFunction():
        return original(encoder, *args, **kwargs)


def _padded(nested: Tensor) -> tuple[Tensor, Tensor]:
    """A nested tensor as a padded batch, and a mask that is True on the padding."""
    padded = torch.nested.to_padded_tensor(nested, 0.0)
    lengths = torch.tensor([len(item) for item in nested.unbind()], device=padded.device)
    return padded, torch.arange(padded.shape[1], device=padded.device) >= lengths[:, None]


def _pass_on(
    module: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
) -> None:
    call = None
    for observation in _current_observations(module):
        with handled(observation.on_error), torch.no_grad(), _without_cached_casts():
            call = call or _call(module, query, key, value, key_padding_mask, attn_mask)
            observation.observer(call)


@contextmanager
def _without_cached_casts() -> Iterator[None]:
    """Keep autocast from caching weights cast without gradients, which the module's own forward would then use."""
    enabled = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(enabled)


def _call(
    module: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
) -> AttentionCall:
    """The attention of a module, from its inputs."""
    cross = key is not query and not (key.shape == query.shape and key.data_ptr() == query.data_ptr())
    if query.ndim == 2:
        query, key, value = (tensor.unsqueeze(0) for tensor in (query, key, value))
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    elif not module.batch_first:
        query, key, value = (tensor.transpose(0, 1) for tensor in (query, key, value))
    projected = _projected(module, query, key, value)
    extra = projected[1].shape[2] - key.shape[1]
    mask = _mask(attn_mask, key_padding_mask, len(query), module.num_heads, extra)
    return AttentionCall(module, *projected, mask, {"is_causal": False}, "torch", cross)


def _projected(
    module: nn.MultiheadAttention, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of each head, including keys added by the module."""
    joint: Tensor | None = module.in_proj_weight
    separate = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    weights = separate if joint is None else joint.chunk(3)
    biases = (None, None, None) if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    query, key, value = (
        functional.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True)
    )
    if module.bias_k is not None and module.bias_v is not None:
        key = torch.cat([key, module.bias_k.expand(len(key), -1, -1)], 1)
        value = torch.cat([value, module.bias_v.expand(len(value), -1, -1)], 1)
    if module.add_zero_attn:
        key, value = (torch.cat([x, torch.zeros_like(x[:, :1])], 1) for x in (key, value))
    heads = module.num_heads
    query, key, value = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (query, key, value))
    return query, key, value


def _mask(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, batch: int, heads: int, extra: int
) -> Float[Tensor, "batch_or_1 heads_or_1 queries_or_1 keys"] | None:
    """Both masks in one that is True, or a bias, on visible keys; PyTorch's booleans are True on hidden keys.

    Keys added by the module are visible.
    """
    parts = []
    if attn_mask is not None:
        parts.append(attn_mask[None, None] if attn_mask.ndim == 2 else attn_mask.unflatten(0, (batch, heads)))
    if key_padding_mask is not None:
        parts.append(key_padding_mask[:, None, None])
    if not parts:
        return None
    parts = [functional.pad(part, (0, extra)) for part in parts]
    if all(part.dtype == torch.bool for part in parts):
        hidden = parts[0] if len(parts) == 1 else parts[0] | parts[1]
        return ~hidden
    dtype = next(part.dtype for part in parts if part.dtype != torch.bool)
    added = [
        torch.zeros(part.shape, dtype=dtype, device=part.device).masked_fill(part, -torch.inf)
        if part.dtype == torch.bool
        else part
        for part in parts
    ]
    return added[0] if len(added) == 1 else added[0] + added[1]
