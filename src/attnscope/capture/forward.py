"""Run a model on tokens, or a module on inputs, and show every attention call to an observer.

This is where the ways of watching are chosen: transformers' attention interface where the model uses it, what the
model file writes out where it does not, PyTorch's own modules, and `record`. All of them leave the output as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from attnscope.capture import huggingface, torch_modules
from attnscope.capture.attention import AttentionCall
from attnscope.capture.eager import WrittenOutAttention
from attnscope.capture.layers import writes_attention_out
from attnscope.capture.models import refuse_empty
from attnscope.capture.recording import recording
from attnscope.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.capture.attention import Call, Observer
    from attnscope.capture.models import Model

Inputs = Any
"""A tensor, a tuple of positional arguments, a mapping of named ones, or a function that runs the module."""


def forward(model: Model, ids: Sequence[int] | Tensor, observer: Observer, mask: Tensor | None = None) -> None:
    """Run a transformers model on tokens: one sequence, or a batch with its attention mask.

    An encoder-decoder gets the tokens in its encoder, and in its decoder the same tokens moved by one behind the
    start token: the decoder then has as many queries as the encoder has keys.
    """
    module = model.module
    batch = torch.as_tensor(ids, device=_input_device(module))
    batch = batch[None] if batch.ndim == 1 else batch
    inputs: dict[str, Any] = {"input_ids": batch}
    if mask is not None:
        inputs["attention_mask"] = mask.to(batch.device)
    if module.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = _moved(model, batch)
        inputs["use_cache"] = False
    elif model.causal:
        inputs["use_cache"] = False
    calls = 0

    def count(call: Call) -> None:
        nonlocal calls
        calls += 1
        observer(call)

    body = module.base_model
    with torch.no_grad(), watched(body, count, len(batch), frozenset({batch.shape[1]})):
        body(**inputs)
    if not calls:
        raise ModelError(
            f"{model.name} ({model.family}) has no softmax attention that attnscope can see: neither transformers' "
            "attention interface nor a softmax over keys"
        )


def run(module: nn.Module, inputs: Inputs, observer: Observer) -> Any:
    """Run any module on inputs, and give back its output.

    `inputs` are a tensor, a tuple of positional arguments, a mapping of named ones, or a function without arguments
    that runs the module by itself.
    """
    refuse_empty(module, type(module).__name__)
    calls = 0

    def count(call: Call) -> None:
        nonlocal calls
        calls += 1
        observer(call)

    with torch.no_grad(), watched(module, count, _batch(inputs)):
        if callable(inputs) and not isinstance(inputs, torch.Tensor):
            result = inputs()
        elif isinstance(inputs, Mapping):
            result = module(**inputs)
        else:
            result = module(*(inputs if isinstance(inputs, (tuple, list)) else (inputs,)))
    if not calls:
        raise ModelError(
            f"no attention was seen in {type(module).__name__}; call attnscope.capture.record(query, key, value, ...) "
            "where it attends"
        )
    return result


@contextmanager
def watched(
    module: nn.Module, observer: Observer, batch: int = 1, tokens: frozenset[int] | None = None
) -> Iterator[None]:
    """Show every attention call of a module to the observer, by whichever way it attends."""

    def unseen(call: Call) -> None:
        # What the observer computes is not the model's attention: no function mode may see it.
        with torch._C.DisableTorchFunction():
            observer(call)

    own = WrittenOutAttention(module, unseen, batch, tokens)

    def recorder(
        caller: nn.Module | None, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, /, **options: Any
    ) -> None:
        caller = own.calling_module() if caller is None else caller
        owner = module if caller is None else caller
        own.recorded(owner)
        cross = options.pop("cross", None)
        with torch.no_grad():
            unseen(AttentionCall(owner, query, key, value, mask, options, "torch", cross))

    with ExitStack() as stack:
        stack.enter_context(huggingface.observed(module, unseen))
        stack.enter_context(recording(recorder))
        if any(isinstance(part, nn.MultiheadAttention) for part in module.modules()):
            stack.enter_context(torch_modules.observed(module, unseen))
        if any(getattr(part, "_compiled_call_impl", None) is not None for part in module.modules()):
            # A compiled graph has its kernels built in; the same module runs uncompiled instead.
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        if writes_attention_out(module):
            stack.enter_context(own)
        yield
        own.finish()


def _moved(model: Model, batch: Tensor) -> Tensor:
    """The decoder's input: the start token, then the encoder's tokens but the last."""
    config = model.module.config
    candidates = (getattr(config, name, None) for name in ("decoder_start_token_id", "bos_token_id", "pad_token_id"))
    start = next((value for value in candidates if value is not None), None)
    if start is None:
        raise ModelError(f"{model.name} ({model.family}) names no token for its decoder to start with")
    return torch.cat([torch.full_like(batch[:, :1], start), batch[:, :-1]], 1)


def _input_device(module: Any) -> torch.device:
    """Where the tokens go: to the embeddings, or to where an offloaded model runs them."""
    device: torch.device = module.get_input_embeddings().weight.device
    hook = getattr(module, "_hf_hook", None)
    if device.type != "meta":
        return device
    place = getattr(hook, "execution_device", None)
    return torch.device("cpu" if place is None else place)


def _batch(inputs: Inputs) -> int:
    """Items in the batch: the first size of the first tensor."""
    if isinstance(inputs, torch.Tensor):
        return len(inputs) if inputs.ndim > 1 else 1
    values = inputs.values() if isinstance(inputs, Mapping) else inputs if isinstance(inputs, (tuple, list)) else ()
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return _batch(tensors[0]) if tensors else 1
