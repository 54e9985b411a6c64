"""A digest of a model's weights: 64 numbers from every tensor, wherever and in whatever form it is stored.

Weights may be packed (int8), offloaded by accelerate (on the meta device, with the numbers in memory or on disk), or of
a type that only its own package understands. A tensor that cannot be read contributes its name, shape and type.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

_SAMPLES = 64


def weights_digest(module: nn.Module) -> str:
    """SHA-256 of samples from all parameters, buffers and packed weights of a module."""
    digest = hashlib.sha256()
    offloaded = _offloaded(module)
    for name, value in module.state_dict().items():
        if isinstance(value, Tensor) and value.is_meta:
            value = offloaded.get(name, value)
        digest.update(f"{name} {_describe(value)}".encode())
    return digest.hexdigest()


def _offloaded(module: nn.Module) -> dict[str, Tensor]:
    """Offloaded weights by name: accelerate keeps them in memory or on disk, the model's own are on the meta device."""
    tensors: dict[str, Tensor] = {}
    for prefix, submodule in module.named_modules():
        hook = getattr(submodule, "_hf_hook", None)
        for single in getattr(hook, "hooks", [hook]):  # accelerate's SequentialHook has several
            weights = getattr(single, "weights_map", None)
            if weights is None:
                continue
            for name, tensor in [*submodule.named_parameters(), *submodule.named_buffers()]:
                if tensor.is_meta:
                    try:
                        tensors[f"{prefix}.{name}" if prefix else name] = weights[name]
                    except KeyError:  # the hook of a submodule has it
                        continue
    return tensors


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{tuple(value.shape)} {value.dtype} {_sample(value)}"
    if isinstance(value, Mapping):
        return str({str(key): _describe(part) for key, part in value.items()})
    if isinstance(value, list | tuple):
        return str([_describe(part) for part in value])
    return repr(value) if isinstance(value, str | int | float | bool | bytes | torch.dtype | None) else str(type(value))


def _sample(tensor: Tensor) -> str:
    if tensor.is_meta:
        return ""
    try:
        plain = tensor.detach().dequantize() if tensor.is_quantized else tensor.detach()
        flat = (torch.view_as_real(plain) if plain.is_complex() else plain).reshape(-1)
        some = flat[:: max(1, flat.numel() // _SAMPLES)].cpu().to(torch.float64)
        return some.numpy().tobytes().hex()
    except (RuntimeError, TypeError, NotImplementedError, AttributeError):  # a type of another package
        return ""
