"""Which modules of a model compute attention, the layer number and kind of each, and context managers for trial runs.

Whether attention goes through transformers' interface or is written out in the model file can be read from the code of
transformers' classes before a model runs; other code may compute attention anywhere. Layer numbers are unique within a
run: the block's own number if no two attention modules share it (plain decoders), otherwise the order of first use
(encoder-decoders). A module that is used repeatedly, as in ALBERT, takes the next free number each time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from torch import nn

from attnscope.capture.attention import kind_of

if TYPE_CHECKING:
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
