"""Run a model on tokens, or a module on inputs, and pass every attention call to an observer.

`observed` combines the ways to observe attention: transformers' interface, attention written out in a model file,
PyTorch's own modules, and `record`. None of them changes the output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

from attnscope.capture import huggingface, torch_modules
from attnscope.capture.attention import AttentionCall
from attnscope.capture.models import refuse_empty
from attnscope.capture.modules import writes_attention_out
from attnscope.capture.watching import WatchedForward, recording
from attnscope.capture.written_out import Batches, WrittenOutAttention
from attnscope.errors import InputError, ModelError

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.capture.attention import Call, ObservedCall, Observer
    from attnscope.capture.models import Model
    from attnscope.capture.watching import ErrorHandler

Inputs = Any
"""A tensor, a tuple of positional arguments, a mapping of keyword arguments, or a function that runs the module."""


def forward(
    model: Model,
    ids: Sequence[int] | Tensor,
    observer: Observer,
    mask: Tensor | None = None,
    first_position: int | None = None,
) -> None:
    """Run a transformers model on tokens: one sequence, or a batch with its attention mask.

    `first_position` is the position of the first token; None lets the model count, which starts at 0.

    In an encoder-decoder, the encoder gets the tokens, and the decoder gets the start token followed by all tokens but
    the last, so that the decoder has as many queries as the encoder has keys.
    """
    module = model.module
    batch = torch.as_tensor(ids, device=_input_device(module))
    batch = batch[None] if batch.ndim == 1 else batch
    inputs: dict[str, Any] = {"input_ids": batch}
    if mask is not None:
        inputs["attention_mask"] = mask.to(batch.device)
    if first_position is not None:
        inputs["position_ids"] = torch.arange(batch.shape[1], device=batch.device)[None] + first_position
    if module.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = _shifted_right(model, batch)
        inputs["use_cache"] = False
    elif model.causal:
        inputs["use_cache"] = False
    calls = 0

    def count(call: Call) -> None:
        nonlocal calls
        calls += 1
        observer(call)

    body = module.base_model
    with torch.no_grad(), observed(body, count, ((len(batch), None),), frozenset({batch.shape[1]})):
        body(**inputs)
    if not calls:
        raise ModelError(
            f"{model.name} ({model.family}) has no softmax attention that attnscope can see: neither transformers' "
            "attention interface nor a softmax over keys"
        )


def run(module: nn.Module, inputs: Inputs, observer: Observer) -> Any:
    """Run any module on inputs, pass each of its attention calls to a function, and return its output.

    >>> attention, x = torch.nn.MultiheadAttention(8, 2, batch_first=True), torch.ones(1, 4, 8)
    >>> output = attnscope.capture.forward.run(attention, (x, x, x), lambda call: print(call.heads, call.keys))
    2 4

    Parameters
    ----------
    module
        The module.
    inputs
        A tensor, a tuple of positional arguments, a mapping of keyword arguments, or a function without arguments that
        runs the module itself.
    observer
        Takes a call, with `heads`, `queries`, `keys`, `logits(positions)`, `visible(positions)` and `values()`.

    Returns
    -------
    object
        What the module returned.
    """
    refuse_empty(module, type(module).__name__)
    tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
    if any(tensor.is_nested for tensor in tensors):
        raise InputError("the inputs hold a nested tensor; pad its items to one length and give the module their mask")
    if any(tensor.is_meta for tensor in tensors):
        raise InputError(
            "the inputs hold a tensor on the meta device, which has no numbers; create it on a real device"
        )
    calls = 0

    def count(call: Call) -> None:
        nonlocal calls
        calls += 1
        observer(call)

    with torch.no_grad(), observed(module, count, possible_batches(module, inputs)):
        if callable(inputs) and not isinstance(inputs, torch.Tensor):
            result = inputs()
        elif isinstance(inputs, Mapping):
            result = module(**inputs)
        else:
            result = module(*(inputs if isinstance(inputs, (tuple, list)) else (inputs,)))
    if not calls:
        raise ModelError(
            f"no attention was seen in {type(module).__name__}: it must run in the thread of the scan; if it computes "
            "attention in a custom way, call attnscope.capture.record(query, key, value, ...) there"
        )
    return result


@contextmanager
def observed(
    module: nn.Module,
    observer: Observer,
    batches: Batches = ((1, None),),
    tokens: frozenset[int] | None = None,
    on_error: ErrorHandler | None = None,
) -> Iterator[None]:
    """Pass every attention call of a module to the observer within this block, however the attention is computed.

    The observer only gets calls from the current thread. `batches` and `tokens` are for attention that is written out
    in the model's code (`WrittenOutAttention`). With `on_error` the model is being trained: it runs as it is, compiled
    modules included, and errors of the observation are passed to that handler.
    """

    watched = WatchedForward(module)

    def pass_on(call: ObservedCall) -> None:
        # What the observer computes is not the model's attention: function modes must not observe it.
        with torch._C.DisableTorchFunction():
            if watched.active():
                observer(watched.complete(call))

    written_out = WrittenOutAttention(module, pass_on, batches, tokens, on_error)

    def recorder(
        caller: nn.Module | None, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, /, **options: Any
    ) -> None:
        if not watched.active():
            return
        if caller is None:
            caller = written_out.calling_module()
        attending = module if caller is None else caller
        written_out.recorded(attending)
        cross = options.pop("cross", None)
        with torch.no_grad():
            pass_on(AttentionCall(attending, query, key, value, mask, options, "torch", cross))

    with ExitStack() as stack:
        stack.enter_context(watched.followed())
        stack.enter_context(huggingface.observed(module, pass_on, on_error=on_error))
        stack.enter_context(recording(recorder, on_error))
        if any(isinstance(part, nn.MultiheadAttention) for part in module.modules()):
            stack.enter_context(torch_modules.observed(module, pass_on, on_error))
        if on_error is None and any(
            getattr(part, "_compiled_call_impl", None) is not None for part in module.modules()
        ):
            # A compiled graph has its kernels built in; the same module runs uncompiled instead.
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        if writes_attention_out(module):
            stack.enter_context(written_out)
        yield
        written_out.finish()


def _shifted_right(model: Model, batch: Tensor) -> Tensor:
    """The decoder's input: the start token, then all tokens of the encoder but the last."""
    config = model.module.config
    candidates = (getattr(config, name, None) for name in ("decoder_start_token_id", "bos_token_id", "pad_token_id"))
    start = next((value for value in candidates if value is not None), None)
    if start is None:
        raise ModelError(f"{model.name} ({model.family}) names no token for its decoder to start with")
    return torch.cat([torch.full_like(batch[:, :1], start), batch[:, :-1]], 1)


def _input_device(module: Any) -> torch.device:
    """The device of the embeddings, or the one on which an offloaded model computes them."""
    device: torch.device = module.get_input_embeddings().weight.device
    hook = getattr(module, "_hf_hook", None)
    if device.type != "meta":
        return device
    execution_device = getattr(hook, "execution_device", None)
    return torch.device("cpu" if execution_device is None else execution_device)


def possible_batches(module: nn.Module, inputs: Inputs) -> Batches:
    """Possible batch sizes according to the first tensor: transformers models are batch first, others may not be."""
    tensor = next((leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor)), None)
    if tensor is None:
        return ()
    if tensor.ndim < 2:
        return ((1, None),)
    first, second = tensor.shape[:2]
    if isinstance(module, PreTrainedModel) or first == 1:
        return ((first, None),)
    without_batch = ((1, first),) if tensor.ndim == 2 and tensor.is_floating_point() else ()
    return (first, second), (second, first), *without_batch
