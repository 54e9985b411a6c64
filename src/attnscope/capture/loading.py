"""Load a checkpoint, refuse it unless every weight that matters comes from its files, and digest its weights.

Weights may be packed (int8), offloaded by accelerate (on the meta device, with the numbers in memory or on disk), or of
a type that only its own package understands. A tensor that cannot be read contributes its name, shape and type.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attnscope.capture.checkpoints import foreign_errors
from attnscope.capture.huggingface import REPLACEMENT
from attnscope.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from attnscope.capture.checkpoints import Checkpoint

_POOLER = re.compile(r"(^|\.)pooler\.")  # after the last attention
_OLD_BUFFERS = re.compile(
    r"(^|\.)(masked_bias|inv_freq|position_ids|attn\.bias|attention\.bias)$"
)  # masks, not weights
_SHOWN = 3  # names in a message


def load_weights(loader: Any, checkpoint: Checkpoint, **options: Any) -> tuple[Any, tuple[str, ...]]:
    """Load a module from a checkpoint; also returns the names of weights that differ but do not affect its attention.

    Those are weights in the files that the module does not use, and a pooler missing from the files. Any other
    difference between module and files is refused: transformers would fill in random numbers, or drop the weights.
    """
    with quiet(), foreign_errors(f"load {checkpoint.name!r}"), _AllocationLimit(checkpoint):
        module, info = loader.from_pretrained(
            checkpoint.source,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below, by name
            **(checkpoint.options | options),
        )
        mismatched = {
            *info["mismatched_keys"],
            *(_unpacked_shapes(module) if "gguf_file" in checkpoint.options else ()),
        }
    _refuse(checkpoint.name, "lacks", (key for key in info["missing_keys"] if _needed(module, key)))
    shapes = (f"{key} ({_shape(there)} instead of {_shape(wanted)})" for key, there, wanted in mismatched)
    _refuse(checkpoint.name, "has the wrong shape for", shapes)
    unexpected = [key for key in info["unexpected_keys"] if f".{REPLACEMENT}." not in key]  # a saved swap's
    left_out = _left_out(module, unexpected)
    _refuse(checkpoint.name, "has weights that its configuration leaves out:", left_out)
    return module, tuple(sorted({*unexpected, *info["missing_keys"]}))


def _refuse(name: str, what: str, keys: Iterable[str]) -> None:
    names = sorted(keys)
    if names:
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        raise ModelError(
            f"{name!r} {what} {', '.join(names[:_SHOWN])}{more}; its numbers would not be the model's: check that "
            "weights and config.json belong together"
        )


def _needed(module: Any, key: str) -> bool:
    """Whether a weight must come from a file; poolers do not matter, and sinusoidal positions are computed."""
    owner = module.get_submodule(key.rpartition(".")[0])
    return not (_POOLER.search(key) or "Sinusoidal" in type(owner).__name__)


def _unpacked_shapes(module: Any) -> Iterator[tuple[str, torch.Size, torch.Size]]:
    """Weights whose shape differs from the configuration's; transformers does not check them in packed files."""
    with torch.device("meta"):
        wanted = {name: weight.shape for name, weight in type(module)(module.config).named_parameters()}
    for name, weight in module.named_parameters():
        if weight.shape != wanted.get(name, weight.shape):
            yield name, weight.shape, wanted[name]


def _left_out(module: Any, unexpected: list[str]) -> list[str]:
    """Weights for modules that exist (e.g. a bias that is switched off), or for more layers than were built."""
    modules = dict(module.named_modules())
    prefix = f"{module.base_model_prefix}."  # which a checkpoint may have where the module has not, and the reverse

    def belongs(key: str) -> bool:
        nearest = owner = key.rpartition(".")[0]
        while nearest not in modules:
            nearest = nearest.rpartition(".")[0]
        return (nearest == owner and bool(owner)) or isinstance(modules[nearest], nn.ModuleList)

    return [
        key
        for key in unexpected
        if not _OLD_BUFFERS.search(key) and any(map(belongs, (key, key.removeprefix(prefix), prefix + key)))
    ]


def _shape(size: Iterable[int]) -> str:
    return "x".join(map(str, size))


class _AllocationLimit(TorchFunctionMode):
    """Stops building a model that has far more tensors or numbers than its files can fill.

    A module is first built on the meta device, where a number costs nothing. Counting there gives what the
    configuration asks for, whichever of its settings does.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        self.name = checkpoint.name
        self.tensors = 10_000 + 200 * (checkpoint.size if checkpoint.tensors is None else checkpoint.tensors)
        self.numbers = 2**26 + 32 * checkpoint.size  # weights of one bit, masks of long inputs included

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.is_meta and not _shares_storage(result, args):
            self.tensors -= 1
            self.numbers -= result.numel()
            if self.tensors < 0 or self.numbers < 0:
                raise ModelError(
                    f"the configuration of {self.name!r} asks for a far larger model than its files hold; it is damaged"
                )
        return result


def _shares_storage(result: Tensor, args: Iterable[Any]) -> bool:
    """Whether a tensor is one of these or a view of one: filling a weight and looking at it ask for no more memory."""
    storage = result.untyped_storage()._cdata
    return any(isinstance(each, torch.Tensor) and each.untyped_storage()._cdata == storage for each in args)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Temporarily silence the progress bars and logs of transformers and its hub client; errors still raise."""
    from huggingface_hub.utils import logging as hub_logs
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from transformers import modeling_gguf_pytorch_utils as gguf
    from transformers.utils import logging as logs

    level, hub_level = logs.get_verbosity(), hub_logs.get_verbosity()
    bars, hub_bars = logs.is_progress_bar_enabled(), not are_progress_bars_disabled()
    logs.set_verbosity(logging.ERROR)
    hub_logs.set_verbosity(logging.ERROR)
    logs.disable_progress_bar()
    gguf_bar = vars(gguf).get("tqdm")  # no setting turns it off
    vars(gguf)["tqdm"] = lambda items, **_: items
    try:
        yield
    finally:
        vars(gguf)["tqdm"] = gguf_bar
        logs.set_verbosity(level)
        hub_logs.set_verbosity(hub_level)
        if bars:
            logs.enable_progress_bar()
        if hub_bars == are_progress_bars_disabled():  # transformers switches the hub's bars with its own
            (enable_progress_bars if hub_bars else disable_progress_bars)()


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
