"""Which modules of a model compute attention, the layer number of each, and the vectors that its weights average.

Whether attention goes through transformers' interface or is written out in the model file can be read from the code of
transformers' classes before a model runs; other code may compute attention anywhere. Layer numbers are unique within a
run: the block's own number if no two attention modules share it (plain decoders), otherwise the order of first use
(encoder-decoders). A module that is used repeatedly, as in ALBERT, takes the next free number each time.

- `value`: the head's value vectors, shared by the query heads of a group;
- `output`: each value times the head's slice of the output projection, i.e. what the head adds to the residual stream;
- `hidden`: the input of the layer, shared by all heads;
- `hidden_unit`: the same, each scaled to length one;
- `embedding`: the token's input embedding without its position, the same in all layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from attnscope.capture.attention import kind_of
from attnscope.capture.watching import WatchedForward
from attnscope.columns import VectorKind
from attnscope.errors import ModelError, parameter

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from attnscope.capture.attention import Call

INTERFACE = "ALL_ATTENTION_FUNCTIONS"
# What the code of an attention written out in a model file mentions.
WRITTEN_OUT = {"softmax", "Softmax", "scaled_dot_product_attention", "eager_attention_forward"}
_cached_names: dict[type, frozenset[str]] = {}


def _names(cls: type) -> frozenset[str]:
    """All names used in the methods of a class and its base classes."""
    if cls not in _cached_names:
        _cached_names[cls] = _collect_names(cls)
    return _cached_names[cls]


def _collect_names(cls: type) -> frozenset[str]:
    codes = [
        function.__code__
        for base in cls.__mro__
        if base is not nn.Module and base is not object
        for function in map(_undecorated, vars(base).values())
        if isinstance(function, FunctionType)
    ]
    names: set[str] = set()
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        codes.extend(const for const in code.co_consts if isinstance(const, CodeType))
    return frozenset(names)


def _undecorated(function: Any) -> Any:
    """A method without the decorators added by transformers."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def uses_interface(module: nn.Module) -> bool:
    """Whether the module hands its attention to transformers' interface."""
    return INTERFACE in _names(type(module)) and "get_interface" in _names(type(module))


def writes_attention_out(model: nn.Module) -> bool:
    """Whether any module of the model may compute attention itself (or route experts by a softmax)."""
    return any(
        _runs_other_code(module) or (_names(type(module)) & WRITTEN_OUT and not uses_interface(module))
        for module in model.modules()
    )


def _runs_other_code(module: nn.Module) -> bool:
    """Whether its forward is custom code, neither torch's nor transformers', that may compute attention anywhere."""
    forward = _undecorated(type(module).forward)
    package = str(getattr(forward, "__module__", "")).partition(".")[0]
    return "forward" in vars(module) or package not in ("torch", "transformers")


def text_part(model: nn.Module) -> nn.Module:
    """The part of a model that reads text: the decoder of a model with a vision or audio tower, otherwise the model."""
    config = getattr(model, "config", None)
    if config is None or getattr(config, "is_encoder_decoder", False) or config.get_text_config() is config:
        return model
    part: nn.Module = model.get_decoder()  # type: ignore[operator]
    return part


def causal_flags(model: nn.Module) -> list[bool]:
    """The `is_causal` attributes of the attention modules in a model's text part that use the interface."""
    flags = (getattr(module, "is_causal", None) for module in text_part(model).modules() if uses_interface(module))
    return [flag for flag in flags if isinstance(flag, bool)]


def block_number(name: str) -> int | None:
    """The number of the block in a module's dotted name: the last number in it."""
    numbers = [part for part in name.split(".") if part.isdigit()]
    return int(numbers[-1]) if numbers else None


class Layers:
    """Assigns layer numbers to a model's attention calls; a call has the same number in every forward pass."""

    def __init__(self, model: nn.Module) -> None:
        self.names = {module: name for name, module in model.named_modules(remove_duplicate=True)}
        block_numbers = dict(self._find_block_numbers(model))
        self._block_numbers = block_numbers if len(set(block_numbers.values())) == len(block_numbers) else {}
        self._numbers: dict[tuple[nn.Module, int], int] = {}
        self._uses: dict[nn.Module, int] = {}

    def _find_block_numbers(self, model: nn.Module) -> Iterator[tuple[nn.Module, int]]:
        for module in text_part(model).modules():
            if uses_interface(module) or (_names(type(module)) & WRITTEN_OUT and "ttention" in type(module).__name__):
                number = block_number(self.names.get(module, ""))
                if number is not None:
                    yield module, number

    def start(self) -> None:
        self._uses.clear()

    def number(self, module: nn.Module) -> int:
        """The number of the layer whose attention was just called."""
        use = self._uses.get(module, 0)
        self._uses[module] = use + 1
        key = (module, use)
        if key not in self._numbers:
            taken = {*self._block_numbers.values(), *self._numbers.values()}
            free = next(number for number in range(len(taken) + 1) if number not in taken)
            self._numbers[key] = self._block_numbers.get(module, free) if use == 0 else free
        return self._numbers[key]

    def entry(self, call: Call, number: int) -> dict[str, Any]:
        """The entry of a layer in run.json."""
        name = self.names.get(call.module, "")
        return {"layer": number, "heads": call.heads, "module": name, "kind": kind_of(call, name)}


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Temporarily switch to eval mode; afterwards each submodule is back in its previous mode."""
    training = [part for part in module.modules() if part.training]
    if not training:
        yield
        return
    module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


@contextmanager
def without_hooks(module: nn.Module) -> Iterator[None]:
    """Temporarily remove the forward hooks of a module and its submodules.

    Hooks added or removed in the meantime stay added or removed. Observations in other threads keep theirs.
    """
    hooks = [hooks for part in module.modules() for hooks in (part._forward_pre_hooks, part._forward_hooks) if hooks]
    before = [dict(each) for each in hooks]
    taken = [{key for key, hook in each.items() if not _observes(hook)} for each in before]
    for each, keys in zip(hooks, taken, strict=True):
        for key in keys:
            del each[key]
    try:
        yield
    finally:
        for each, original, keys in zip(hooks, before, taken, strict=True):
            remaining = dict(each)
            each.clear()
            each.update({key: hook for key, hook in (original | remaining).items() if key in keys or key in remaining})


def _observes(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("attnscope.capture.")


# Names of the output projection in model files.
OUTPUT_PROJECTIONS = (
    "o_proj",
    "c_proj",
    "out_proj",
    "dense",
    "wo",
    "Wo",
    "o",
    "out_lin",
    "attention_output",
    "output",
)


class VectorSource:
    """Finds the vectors of an attention call in one model, and numbers its layers."""

    def __init__(self, model: nn.Module, kind: VectorKind) -> None:
        self.kind = kind
        self.layers = Layers(model)
        self._names = self.layers.names
        self._modules = dict(model.named_modules())
        self._inputs: dict[nn.Module, Tensor] = {}
        self._embedding: Tensor | None = None
        self._hooks = ExitStack()
        if kind in ("hidden", "hidden_unit", "embedding"):
            self._watched = WatchedForward(model)
            self._hooks.enter_context(self._watched.followed())
        if kind == "embedding":
            hook = _input_embedding(model).register_forward_hook(self._remember_embedding)
            self._hooks.callback(hook.remove)
        if kind in ("hidden", "hidden_unit"):
            for block in [m for name, m in self._modules.items() if name.rpartition(".")[2].isdigit()]:
                hook = block.register_forward_pre_hook(self._remember_input, with_kwargs=True)
                self._hooks.callback(hook.remove)

    def close(self) -> None:
        self._hooks.close()
        self._inputs.clear()
        self._embedding = None

    def layer(self, module: nn.Module, order: int) -> int:
        """The number of the layer whose attention was just called, as the `order`-th of its forward pass."""
        if order == 0:
            self.layers.start()
        return self.layers.number(module)

    def entry(self, call: Call, layer: int) -> dict[str, Any]:
        return self.layers.entry(call, layer)

    def vectors(self, call: Call, item: int = 0) -> Float[Tensor, "groups keys dims"]:
        """The vectors of a call, one group per set of heads that share them; values and inputs in the model's dtype."""
        if self.kind == "value":
            return call.values(item)
        if self.kind == "output":
            return self._output(call, item)
        if self.kind == "embedding":
            return self._tokens(call, self._embedding, item, "embedding")
        hidden = self._hidden(call, item)
        return hidden if self.kind == "hidden" else nn.functional.normalize(hidden.double(), dim=-1, eps=1e-300)

    def _output(self, call: Call, item: int) -> Float[Tensor, "heads keys dims"]:
        value = call.values(item).double()
        heads, dims = call.heads, value.shape[-1]
        matrix = self._projection(call.module, heads * dims).double().to(value.device)
        slices = matrix.unflatten(0, (heads, dims))
        # Only lengths and angles matter: with W^T = Q R, |v W| = |R v|, in `dims` numbers instead of the model's width.
        factor = torch.linalg.qr(slices.mT, mode="r").R if slices.shape[-1] > dims else slices.mT
        return value.repeat_interleave(heads // value.shape[0], 0) @ factor.mT

    def _projection(self, module: nn.Module, size: int) -> Float[Tensor, "heads_times_dims width"]:
        """The matrix of the output projection, from the heads to the residual stream."""
        found = output_projection(self._names, self._modules, module, size)
        if found is None:
            raise ModelError(
                f"no output projection found for {type(module).__name__} ({self._names.get(module, '')}); "
                "use value or hidden"
            )
        return found[1]

    def _remember_input(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden = args[0] if args else kwargs.get("hidden_states")
        if isinstance(hidden, torch.Tensor) and self._watched.active():
            stack = self._names[block].rpartition(".")[0]
            for other in [m for m in self._inputs if self._names[m].rpartition(".")[0] == stack]:
                del self._inputs[other]  # one block of the stack at a time, to free the inputs of the others
            self._inputs[block] = hidden

    def _hidden(self, call: Call, item: int) -> Float[Tensor, "1 keys dims"]:
        name = self._names.get(call.module, "")
        while name and self._modules[name] not in self._inputs:
            name = name.rpartition(".")[0]
        if not name:
            raise ModelError(
                f"the input of the layer around {type(call.module).__name__} was not seen; use "
                f"{parameter('vectors', 'value')}"
            )
        return self._tokens(call, self._inputs[self._modules[name]], item, "its layer's input")

    def _remember_embedding(self, module: nn.Module, args: tuple[Any, ...], embedding: Tensor) -> None:
        if self._watched.active():
            self._embedding = embedding

    def _tokens(self, call: Call, vectors: Tensor | None, item: int, source: str) -> Float[Tensor, "1 keys dims"]:
        """The vectors of one item, if they are those of the call's keys."""
        count = 0 if vectors is None else vectors.shape[1]
        if vectors is None or self.entry(call, 0)["kind"] == "cross" or count != call.keys:
            raise ModelError(
                f"{type(call.module).__name__} attends to {call.keys} keys that are not the {count} tokens "
                f"of {source}; use {parameter('vectors', 'value')}"
            )
        return vectors[call.batch_index + item, None]


def output_projection(
    names: dict[nn.Module, str], modules: dict[str, nn.Module], module: nn.Module, size: int
) -> tuple[nn.Module, Float[Tensor, "size width"]] | None:
    """The output projection of an attention module whose heads have `size` numbers in all, and its matrix."""
    name = names.get(module, "")
    while True:
        for child_name, child in modules[name].named_modules():
            if child_name.rpartition(".")[2] in OUTPUT_PROJECTIONS:
                matrix = _matrix(child, size)
                if matrix is not None:
                    return child, matrix
        if not name or name.rpartition(".")[2].isdigit():
            return None
        name = name.rpartition(".")[0]


def _input_embedding(model: nn.Module) -> nn.Module:
    """The module that turns tokens into vectors."""
    find = getattr(model, "get_input_embeddings", None)
    embedding = find() if find is not None else None
    if not isinstance(embedding, nn.Module):
        raise ModelError(
            f"{type(model).__name__} does not say which module embeds its tokens; use {parameter('vectors', 'value')}"
        )
    return embedding


def _matrix(projection: nn.Module, size: int) -> Tensor | None:
    """A projection's matrix if it has `size` input features, including what a wrapper (LoRA, int8, offloading) adds."""
    from transformers.pytorch_utils import Conv1D

    weight = getattr(projection, "weight", None)
    plain = type(projection).forward in (nn.Linear.forward, Conv1D.forward)
    if plain and weight is not None and not _altered(projection, weight):
        matrix = weight.detach() if isinstance(projection, Conv1D) else weight.detach().mT
        return matrix if matrix.shape[0] == size else None
    if getattr(projection, "in_features", size if isinstance(projection, Conv1D) else None) != size:
        return None
    dtype = weight.dtype if isinstance(weight, torch.Tensor) and weight.is_floating_point() else torch.float32
    device = "cpu" if not isinstance(weight, torch.Tensor) or weight.is_meta else weight.device
    unit = torch.eye(size, dtype=dtype, device=device)
    with torch.no_grad():
        result = projection(torch.cat([unit, torch.zeros_like(unit[:1])]))
    if not isinstance(result, torch.Tensor):  # I-BERT's returns its scale too
        return None
    return result[:-1] - result[-1]


def _altered(projection: nn.Module, weight: Any) -> bool:
    """Whether the module multiplies with something else than this weight: offloaded, packed, or changed by a hook."""
    return (
        not isinstance(weight, torch.Tensor)
        or weight.is_meta
        or not weight.is_floating_point()
        or ("forward" in vars(projection))
    )
