"""Load a model: the embedded sample, a folder, a GGUF file, or a hub id."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
import transformers
from torch import nn

from attnscope.capture.huggingface import SWAP_CONFIG_KEY
from attnscope.capture.layers import causal_flags
from attnscope.errors import InputError, ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Dtype = Literal["auto", "float32", "float16", "bfloat16", "float64"]
DTYPES: tuple[str, ...] = get_args(Dtype)
SAMPLE = "sample"
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclass(frozen=True)
class ModelSource:
    """Where a model comes from and how it is loaded: plain data, so that another process can load the same model."""

    name: str | None = None  # a folder, a .gguf file or a hub id; None for the embedded sample
    revision: str | None = None
    device: str = "cpu"
    dtype: str = "float32"
    device_map: str | dict[str, Any] | None = None
    trust_remote_code: bool = False
    allow_pickle: bool = False

    def load(self) -> Model:
        """Load the model and its tokenizer, ready to scan."""
        device = _device(self.device)
        trust = {"trust_remote_code": self.trust_remote_code}  # without it transformers asks on the terminal
        how = {"use_safetensors": not self.allow_pickle or None, "device_map": self.device_map}
        if self.name is None:
            with resources.as_file(resources.files("attnscope") / "sample") as folder:
                module, tokenizer = _load(str(folder), {"local_files_only": True, **trust}, how, self.dtype, SAMPLE)
        else:
            source, options = _locate(self.name, self.revision)
            module, tokenizer = _load(source, options | trust, how, self.dtype, self.name)
        if self.device_map is None:
            module.to(device)  # type: ignore[arg-type]  # transformers wraps the method and loses self
        module.eval()
        return Model(module, tokenizer, self.name or SAMPLE, getattr(module.config, "_commit_hash", None), self)


@dataclass(frozen=True)
class Model:
    """A loaded model, its tokenizer, and what a scan needs to know about them."""

    module: PreTrainedModel
    tokenizer: Any
    name: str
    revision: str | None
    source: ModelSource | None = None  # None for a model that was given as an object

    @property
    def family(self) -> str:
        """The model type of its configuration."""
        return str(self.module.config.model_type)

    @property
    def positions(self) -> int | None:
        """The longest input the model accepts, if it has a limit."""
        config = self.module.config.get_text_config()
        limit = getattr(config, "max_position_embeddings", None)
        return int(limit) if limit else None

    @cached_property
    def causal(self) -> bool:
        """Whether no query sees a later key, so that one forward pass gives the rows of every prefix.

        An encoder-decoder is not causal: its encoder sees everything, and through it its decoder does.
        """
        config = self.module.config
        if config.is_encoder_decoder:
            return False
        flags = causal_flags(self.module)
        if flags:
            return any(flags)
        if getattr(config, "attn_type", None) == "bi":  # XLNet sees everything unless it permutes
            return False
        if type(config) in transformers.AutoModelForMaskedLM._model_mapping:  # an encoder that can be made a decoder
            return bool(getattr(config, "is_decoder", False) or getattr(config, "causal", False))
        return _predicts_next(config)


@dataclass(frozen=True)
class PlainModel:
    """A module to run on tensors: nothing is known about tokens, positions or causality."""

    module: nn.Module
    name: str
    family: str
    revision: None = None
    causal: bool = False


def plain_model(model: Any) -> PlainModel:
    """Wrap any torch module, transformers' included, to run it on tensors."""
    module = as_module(model)
    refuse_empty(module, type(module).__name__)
    if isinstance(module, transformers.PreTrainedModel):
        return PlainModel(module, module.config.name_or_path or type(module).__name__, str(module.config.model_type))
    return PlainModel(module, type(module).__name__, type(module).__module__.partition(".")[0])


def load_model(
    model: str | Path | nn.Module | None = None,
    *,
    tokenizer: Any = None,
    device: str = "cpu",
    dtype: str = "float32",
    revision: str | None = None,
    device_map: str | dict[str, Any] | None = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
) -> Model:
    """Load a model and its tokenizer, ready to scan.

    `device_map` spreads it over devices, memory and disk as accelerate does. Code that comes with a model runs only
    with `trust_remote_code`; pickled weights, which can contain code too, are read only with `allow_pickle`.
    """
    if dtype not in DTYPES:
        raise InputError(f"unknown dtype {dtype!r}; use one of {', '.join(DTYPES)}")
    if revision is not None and (model is None or not isinstance(model, str) or Path(model).exists()):
        raise InputError(f"--revision {revision} is for models of a hub; leave it out for {model or 'the sample'}")
    if not isinstance(model, str | Path | None):
        if dtype != "float32" or device != "cpu":
            raise InputError("dtype and device are for models that attnscope loads; use to() of the model itself")
        return _given(as_module(model), tokenizer)
    name = None if model is None else str(model)
    loaded = ModelSource(name, revision, device, dtype, device_map, trust_remote_code, allow_pickle).load()
    return replace(loaded, tokenizer=tokenizer) if tokenizer else loaded


def _given(model: nn.Module, tokenizer: Any) -> Model:
    if not isinstance(model, transformers.PreTrainedModel):
        raise InputError(
            f"cannot scan a {type(model).__name__} on a text; give a transformers model, a path or a hub id, or "
            "run it on tensors of your own: scan(module, inputs=...)"
        )
    refuse_empty(model, type(model).__name__)
    if tokenizer is None:
        raise InputError(f"a loaded {type(model).__name__} needs its tokenizer: pass tokenizer=...")
    name = model.config.name_or_path or type(model).__name__
    return Model(model, tokenizer, name, getattr(model.config, "_commit_hash", None))


def _locate(name: str, revision: str | None) -> tuple[str, dict[str, Any]]:
    """The source to give to from_pretrained, and its options."""
    path = Path(name)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ModelError(f"no GGUF file at {name!r}; check the path")
        return str(path.parent), {"gguf_file": path.name, "local_files_only": True}
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"the folder {name!r} has no config.json; give a folder saved by save_pretrained")
        return name, {"local_files_only": True}
    if path.exists():
        raise ModelError(f"{name!r} is neither a model folder nor a .gguf file")
    if name.startswith((".", "/", "~")) or not _HUB_ID.fullmatch(name):
        raise ModelError(f"no model at {name!r}; give a folder, a .gguf file or a hub id such as openai-community/gpt2")
    return name, {"revision": revision}


def _load(
    source: str, options: dict[str, Any], how: dict[str, Any], dtype: str, name: str
) -> tuple[PreTrainedModel, Any]:
    gguf = {key: options[key] for key in options if key == "gguf_file"}
    where = {key: value for key, value in options.items() if key != "gguf_file"}
    try:
        with quiet():
            config = transformers.AutoConfig.from_pretrained(source, **where, **gguf)
            loader = transformers.AutoModelForCausalLM if _is_causal(config) else transformers.AutoModel
            given = {key: value for key, value in how.items() if value is not None and not (gguf and "safe" in key)}
            torch_dtype = dtype if dtype == "auto" else getattr(torch, dtype)
            module = loader.from_pretrained(source, dtype=torch_dtype, **where, **gguf, **given)
            if gguf:
                _forget_quantization(module)
            if hasattr(module.config, SWAP_CONFIG_KEY):
                from attnscope.swapping import restore

                restore(module, source, revision=where.get("revision"))
            tokenizer = transformers.AutoTokenizer.from_pretrained(source, **where, **gguf)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise ModelError(_load_error(name, error)) from error
    return module, tokenizer


def _forget_quantization(module: Any) -> None:
    """Remove the record of how a GGUF file was packed: its weights are unpacked now, and it would prevent saving."""
    module.hf_quantizer = None
    for owner, name in ((module, "quantization_method"), (module.config, "quantization_config")):
        if hasattr(owner, name):
            delattr(owner, name)


def _predicts_next(config: Any) -> bool:
    """Whether there is a causal language model class for it, in transformers or with the model."""
    with_model = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    return with_model or type(config) in transformers.AutoModelForCausalLM._model_mapping


def _is_causal(config: Any) -> bool:
    names = config.architectures or []
    return _predicts_next(config) and (not names or any(n.endswith(("ForCausalLM", "LMHeadModel")) for n in names))


def _load_error(name: str, error: Exception) -> str:
    """A message of one line: what failed, and what to do."""
    first = " ".join(str(error).split()) or type(error).__name__
    short = first if len(first) <= 200 else first[:200] + "..."
    if "couldn't connect" in first or "ConnectError" in first or "offline" in first.lower():
        return (
            f"cannot reach the model hub for {name!r} and it is not in the local cache; check the name and the "
            "network, or give a local folder or .gguf file"
        )
    if "gated" in first.lower():
        return f"{name!r} is a gated model; accept its terms on the hub and log in with hf auth login"
    if "trust_remote_code" in first:
        return (
            f"{name!r} comes with code of its own, which attnscope does not run unless told to; read that code, then "
            "use --trust-remote-code (trust_remote_code=True)"
        )
    if "safetensors" in first:
        return (
            f"cannot load {name!r}: {short}; attnscope reads safetensors and GGUF weights, and pickles, which can run "
            "code, only with allow_pickle=True"
        )
    return f"cannot load {name!r}: {short}"


def as_module(model: Any) -> nn.Module:
    """The module inside the wrappers of torch.compile, PEFT and data parallelism."""
    while True:
        if isinstance(model, torch._dynamo.eval_frame.OptimizedModule):
            model = model._orig_mod
        elif hasattr(model, "peft_config") and callable(getattr(model, "get_base_model", None)):
            if getattr(model, "active_peft_config", None) and model.active_peft_config.is_prompt_learning:
                raise ModelError(
                    f"{type(model).__name__} learns a prompt ({model.active_peft_config.peft_type}), which a scan of "
                    "the text would leave out; merge it or scan the base model"
                )
            model = model.get_base_model()
        elif isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module
        elif isinstance(model, nn.Module):
            return model
        else:
            raise InputError(f"cannot scan a {type(model).__name__}; give a torch module")


def refuse_empty(module: nn.Module, name: str) -> None:
    """Raise if a module has weights on the meta device, unless they are loaded as it runs (offloading)."""
    for key, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if tensor.is_meta and not any(hasattr(part, "_hf_hook") for part in module.modules()):
            raise ModelError(f"{name} has no weights: {key} is on the meta device; load the model before the scan")


def _device(device: str) -> torch.device:
    try:
        parsed = torch.device(device)
        torch.empty(0, device=parsed)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device {device!r} cannot be used ({reason}); try --device cpu") from None
    if parsed.type == "meta":
        raise InputError("device 'meta' holds no numbers to measure; try --device cpu")
    return parsed


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Temporarily silence the progress bars and logs of transformers and its hub client; errors still raise."""
    from huggingface_hub.utils import logging as hub_logs
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from transformers.utils import logging as logs

    level, hub_level = logs.get_verbosity(), hub_logs.get_verbosity()
    bars, hub_bars = logs.is_progress_bar_enabled(), not are_progress_bars_disabled()
    logs.set_verbosity(logging.ERROR)
    hub_logs.set_verbosity(logging.ERROR)
    logs.disable_progress_bar()
    try:
        yield
    finally:
        logs.set_verbosity(level)
        hub_logs.set_verbosity(hub_level)
        if bars:
            logs.enable_progress_bar()
        if hub_bars == are_progress_bars_disabled():  # transformers switches the hub's bars with its own
            (enable_progress_bars if hub_bars else disable_progress_bars)()
