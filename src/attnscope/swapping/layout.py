"""Which modules of a model call the attention interface, found by running it once on a few tokens.

The run also checks, layer by layer, that attention in blocks with softmax gives the output of the model's own kernel.
A family that computes anything else is refused by name before its attention is replaced.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from attnscope.capture.huggingface import observed
from attnscope.capture.modes import evaluating, without_hooks
from attnscope.capture.vectors import VectorSource
from attnscope.errors import InputError, ModelError
from attnscope.normalizers import Softmax
from attnscope.swapping.blocks import attend
from attnscope.swapping.rules import weight_function

if TYPE_CHECKING:
    from torch import nn

    from attnscope.capture.attention import AttentionCall

IMPLEMENTATIONS = ("eager", "sdpa")
# Twenty times the rounding error of one product in the dtype; a different formula is off by far more.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


@dataclass(frozen=True)
class Site:
    """One attention module of a model."""

    module: nn.Module
    name: str
    layer: int
    heads: int
    kv_heads: int  # heads of the keys and values; each serves heads / kv_heads neighboring heads
    dims: int  # of the output of a head


_known: weakref.WeakKeyDictionary[nn.Module, tuple[str, list[Site]]] = weakref.WeakKeyDictionary()


def sites(model: nn.Module) -> list[Site]:
    """The attention modules of a model in the order in which they run."""
    config = getattr(model, "config", None)
    if config is None or not hasattr(model, "dummy_inputs"):
        raise InputError(f"swap takes a transformers model; received a {type(model).__name__}")
    state = str(getattr(config, "_attn_implementation", None))
    known = _known.get(model)
    if known is None or known[0] != state:
        known = _known[model] = state, _probe(model)
    return known[1]


def _probe(model: Any) -> list[Site]:
    names = {module: name for name, module in model.named_modules()}
    source = VectorSource(model, "value")
    modules: dict[nn.Module, Site] = {}

    def add_site(call: AttentionCall) -> None:
        _check(call, str(model.config.model_type))
        layer = source.layer(call.module, len(modules))
        sizes = call.query.shape[1], call.key.shape[1], call.value.shape[-1]
        site = Site(call.module, names[call.module], layer, *sizes)
        modules.setdefault(call.module, site)

    try:
        with torch.no_grad(), evaluating(model), without_hooks(model), observed(model, add_site, alone=True):
            model(**_inputs(model))
    except ModelError:
        raise
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(f"cannot run {_named(model)} on a few tokens to find its attention: {reason}") from error
    if not modules:
        raise ModelError(
            f"{_named(model)} does not use transformers' attention interface; attnscope cannot swap its normalizer"
        )
    return list(modules.values())


def _inputs(model: Any) -> dict[str, torch.Tensor]:
    config = model.config.get_text_config()
    if model.main_input_name == "pixel_values":
        size = model.config.image_size
        height, width = (size, size) if isinstance(size, int) else size
        return {"pixel_values": torch.zeros(1, model.config.num_channels, height, width, device=model.device)}
    vocabulary = getattr(config, "vocab_size", None) or 1
    # Without masks: a row that sees no key is uniform in some kernels and zero in others.
    return {
        name: value.to(model.device) % vocabulary
        for name, value in model.dummy_inputs.items()
        if name.endswith("input_ids")
    }


def _check(call: AttentionCall, family: str) -> None:
    """Raise if attention in blocks does not reproduce the output of the model's own kernel."""
    if call.kernel not in IMPLEMENTATIONS:
        raise ModelError(
            f"the model runs with {call.kernel} attention; swap needs eager or sdpa: load it with "
            "attn_implementation='sdpa'"
        )
    expected = call.kernel_output()[0]
    output = attend(call, None, weight_function(Softmax()), with_weights=False)[0]
    # transformers' eager attention takes its softmax in float32, whatever the model's dtype.
    dtype = torch.float32 if call.kernel == "eager" and expected.dtype == torch.float64 else expected.dtype
    limit = _TOLERANCE[dtype] * expected.abs().max().clamp(min=1)
    if expected.shape != output.shape or (expected - output).abs().max() > limit:
        raise ModelError(
            f"{type(call.module).__name__} ({family}) does more than softmax attention; attnscope cannot rebuild its "
            "output and will not swap its normalizer"
        )


def _named(model: Any) -> str:
    return f"{type(model).__name__} ({model.config.model_type})"
