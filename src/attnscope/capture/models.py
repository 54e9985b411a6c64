"""Load a model: the embedded sample, a folder, a GGUF file, or a hub id."""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
import transformers
from torch import nn

from attnscope._process import hook
from attnscope.capture.checkpoints import Checkpoint, foreign_errors, open_checkpoint
from attnscope.capture.huggingface import SWAP_CONFIG_KEY
from attnscope.capture.loading import load_weights, quiet
from attnscope.capture.modules import causal_flags
from attnscope.errors import InputError, ModelError, parameter

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Dtype = Literal["auto", "float32", "float16", "bfloat16", "float64"]
DTYPES: tuple[str, ...] = get_args(Dtype)
SAMPLE = "sample"
# Families whose softmax is not over the tokens of the text, with the reason.
UNREADABLE: dict[str, str] = {
    "canine": "it attends among characters within blocks and then among groups of characters",
    "perceiver": "its latent vectors attend to the text and to each other, its tokens do not",
    "reformer": "it attends within hashed buckets and chunks, whose keys change from row to row",
}


@dataclass(frozen=True)
class ModelSource:
    """Where a model comes from and how it is loaded, as plain data: another process can load the same model.

    >>> from attnscope.capture import ModelSource
    >>> ModelSource().load().name  # the embedded sample
    'sample'
    """

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
        sample = resources.as_file(resources.files("attnscope") / "sample")
        with sample if self.name is None else nullcontext(self.name) as place:
            with quiet():
                checkpoint = open_checkpoint(str(place), self.revision, self.allow_pickle)
            module, tokenizer, unused = _load(checkpoint, self)
        if self.device_map is None:
            module.to(device)  # type: ignore[arg-type]  # transformers wraps the method and loses self
        module.eval()
        return Model(module, tokenizer, self.name or SAMPLE, checkpoint.options.get("revision"), self, unused)


def given_name(place: str | None) -> str | None:
    """What a model is called that was loaded from a place: the embedded one is the sample, not its folder."""
    embedded = resources.files("attnscope") / "sample"
    return SAMPLE if place and place == str(embedded) else place


@dataclass(frozen=True)
class Model:
    """A loaded model, its tokenizer, and what a scan needs to know about them.

    >>> model = attnscope.load_model()
    >>> model.name, model.causal
    ('sample', True)

    Attributes
    ----------
    module
        The transformers model.
    tokenizer
        Its tokenizer.
    name, revision
        What it was loaded as.
    source
        How it was loaded; None for a model that was given as an object.
    unused_weights
        Names of weights that its files have and attention does not need.
    """

    module: PreTrainedModel
    tokenizer: Any
    name: str
    revision: str | None
    source: ModelSource | None = None  # None for a model that was given as an object
    unused_weights: tuple[str, ...] = ()  # extra in its files, and poolers missing from them: attention needs neither

    @property
    def family(self) -> str:
        """The model type of its configuration."""
        return str(self.module.config.model_type)

    @property
    def positions(self) -> int | None:
        """The longest input that the model accepts; None if there is no limit.

        RoBERTa and its relatives start counting positions after the padding index, so the first ones are never used.
        """
        config = self.module.config.get_text_config()
        limit = getattr(config, "max_position_embeddings", None)
        if not limit or limit < 0:  # XLNet says -1
            return None
        for name, part in self.module.named_modules():
            padding = getattr(part, "padding_idx", None)
            if name.endswith("position_embeddings") and padding is not None:
                return int(limit) - int(padding) - 1
        return int(limit)

    @property
    def layers(self) -> int:
        """Layers of its text model, as its configuration counts them."""
        return int(self.module.config.get_text_config().num_hidden_layers)

    @property
    def heads(self) -> int:
        """Heads of all layers, about: as many in each as its configuration says."""
        counts = getattr(self.module.config.get_text_config(), "num_attention_heads", None) or 1
        return self.layers * (max(counts) if isinstance(counts, list | tuple) else int(counts))

    @property
    def embeddings(self) -> int | None:
        """How many tokens it has an embedding for; None if that is not known."""
        weight = getattr(self.module.get_input_embeddings(), "weight", None)
        return None if weight is None else len(weight)

    @property
    def encoder_decoder(self) -> bool:
        """Whether it has an encoder and a decoder."""
        return bool(self.module.config.is_encoder_decoder)

    @property
    def facts(self) -> ModelFacts:
        """What a plan needs to know about it."""
        return ModelFacts(**{each.name: getattr(self, each.name) for each in fields(ModelFacts)})

    @cached_property
    def causal(self) -> bool:
        """Whether no query sees a later key, so that one forward pass gives the rows of every prefix.

        An encoder-decoder is not causal: its encoder sees the whole input, and so does its decoder through it.
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
class ModelFacts:
    """What a plan needs to know about a `Model`, as plain data: a process that has not loaded it can plan its runs."""

    tokenizer: Any
    name: str
    revision: str | None
    source: ModelSource | None
    family: str
    causal: bool
    positions: int | None
    layers: int
    heads: int
    embeddings: int | None
    encoder_decoder: bool


@dataclass(frozen=True)
class PlainModel:
    """A module to run on tensors; nothing is known about tokens, positions or causality."""

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

    >>> model = attnscope.load_model()  # the embedded sample; or a folder, a .gguf file, a hub id
    >>> result = attnscope.scan(model, length=64, progress=False)
    >>> result.run["model"]["name"]
    'sample'

    Give the result to several functions to load a model once.

    Parameters
    ----------
    model
        A hub id, a folder, a `.gguf` file, a loaded transformers model, or nothing for the embedded sample.
    tokenizer
        The tokenizer of a loaded model. Default: the one beside the weights.
    device
        Where the model runs, e.g. "cpu" or "cuda:0".
    dtype
        Number type of the weights: "float32", "float16", "bfloat16", "float64" or "auto" for that of the file.
    revision
        Branch, tag or commit of a hub model.
    device_map
        Spread the model over devices, memory and disk, as accelerate does.
    trust_remote_code
        Run code that comes with the model.
    allow_pickle
        Read pickled weights, which can contain code too.

    Returns
    -------
    Model
        attnscope.ModelError says why a model cannot be loaded.
    """
    source = ModelSource(None, revision, device, dtype, device_map, trust_remote_code, allow_pickle)
    loading = {each.name: getattr(source, each.name) for each in fields(source) if each.name != "name"}
    if isinstance(model, str | Path | None):
        loaded = model_source(model, **loading).load()
        return replace(loaded, tokenizer=tokenizer) if tokenizer else loaded
    refuse_options(f"this {type(model).__name__}", **loading)
    return _given(as_module(model), tokenizer)


def model_source(model: str | Path | None, **loading: Any) -> ModelSource:
    """Where a model that is given by name comes from, and how it is loaded (`ModelSource`)."""
    source = ModelSource(None if model is None else str(model), **loading)
    if source.dtype not in DTYPES:
        raise InputError(f"unknown dtype {source.dtype!r}; use one of {', '.join(DTYPES)}")
    revision = source.revision
    if revision is not None and (not isinstance(model, str) or Path(model).exists()):
        raise InputError(
            f"{parameter('revision', revision)} is for models of a hub; leave it out for {model or 'the sample'}"
        )
    return source


def resolve_model(model: str | Path | nn.Module | Model | None, **loading: Any) -> Model:
    """Return a `Model` unchanged and load anything else; loading options without effect are refused."""
    if not isinstance(model, Model):
        return load_model(model, **loading)
    refuse_options(f"the Model {model.name}", **loading)
    return model


def refuse_options(what: str, **loading: Any) -> None:
    """Raise if an option of `load_model` is set for a model that is already loaded."""
    defaults = inspect.signature(load_model).parameters
    given = [name for name, value in loading.items() if name in defaults and value != defaults[name].default]
    if given:
        raise InputError(
            f"{what} is already loaded, so {', '.join(given)} would be ignored: leave it out and call to() of "
            "the model, or give the name of the model instead"
        )


def _given(model: nn.Module, tokenizer: Any) -> Model:
    if not isinstance(model, transformers.PreTrainedModel):
        raise InputError(
            f"cannot scan a {type(model).__name__} on a text; give a transformers model, a path or a hub id, or "
            "run it on tensors of your own: scan(module, inputs=...)"
        )
    refuse_empty(model, type(model).__name__)
    _refuse_family(model.config)
    if tokenizer is None:
        raise InputError(f"a loaded {type(model).__name__} needs its tokenizer: pass tokenizer=...")
    name = model.config.name_or_path or type(model).__name__
    return Model(model, tokenizer, name, getattr(model.config, "_commit_hash", None))


def _load(checkpoint: Checkpoint, source: ModelSource) -> tuple[PreTrainedModel, Any, tuple[str, ...]]:
    """The module of a checkpoint with its saved swap, its tokenizer, and the weights that do not matter."""
    gguf = "gguf_file" in checkpoint.options
    where = checkpoint.options | {"trust_remote_code": source.trust_remote_code}  # else transformers asks for it
    with quiet(), foreign_errors(f"load {checkpoint.name!r}"):
        config = transformers.AutoConfig.from_pretrained(checkpoint.source, **where)
        loader = transformers.AutoModelForCausalLM if _is_causal(config) else transformers.AutoModel
    _refuse_family(config)
    options: dict[str, Any] = {"dtype": source.dtype if source.dtype == "auto" else getattr(torch, source.dtype)}
    if source.device_map is not None:
        options["device_map"] = source.device_map
    if not (gguf or source.allow_pickle):
        options["use_safetensors"] = True
    trust = {"trust_remote_code": source.trust_remote_code}
    module, unused = load_weights(loader, checkpoint, **trust, **options)
    if gguf:
        _forget_quantization(module)
    if hasattr(module.config, SWAP_CONFIG_KEY):
        hook("restore a swapped model")(module, checkpoint.source, revision=where.get("revision"))
    with quiet(), foreign_errors(f"load {checkpoint.name!r}"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint.source, **where)
    return module, tokenizer, unused


def _refuse_family(config: Any) -> None:
    reason = UNREADABLE.get(str(config.model_type))
    if reason is not None:
        raise ModelError(
            f"the family {config.model_type} has no softmax attention over the tokens of a text that attnscope can "
            f"read: {reason}"
        )


def _forget_quantization(module: Any) -> None:
    """Remove the record of how a GGUF file was packed: its weights are unpacked now, and the record prevents saving."""
    module.hf_quantizer = None
    for owner, name in ((module, "quantization_method"), (module.config, "quantization_config")):
        if hasattr(owner, name):
            delattr(owner, name)


def _predicts_next(config: Any) -> bool:
    """Whether there is a causal language model class for the configuration, in transformers or with the model."""
    with_model = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    return with_model or type(config) in transformers.AutoModelForCausalLM._model_mapping


def _is_causal(config: Any) -> bool:
    names = config.architectures or []
    return _predicts_next(config) and (not names or any(n.endswith(("ForCausalLM", "LMHeadModel")) for n in names))


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
        raise InputError(f"device {device!r} cannot be used ({reason}); try {parameter('device', 'cpu')}") from None
    if parsed.type == "meta":
        raise InputError(f"device 'meta' holds no numbers to measure; try {parameter('device', 'cpu')}")
    return parsed
