"""The module that runs an attention module's calls while heads are replaced, and what they use now.

The run also checks, layer by layer, that attention in blocks with softmax gives the output of the model's own kernel.
A family that computes anything else is refused by name before its attention is replaced.

A `Replacement` is a child of the attention module, so that the parameters of learnable normalizers are the
model's own: they are trained, moved, saved and copied with it.
"""

from __future__ import annotations

import itertools
import math
import weakref
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn
from transformers.utils.output_capturing import _active_collector

from attnscope.capture.huggingface import REPLACEMENT, observed, unwrap_registry, wrap_registry
from attnscope.capture.modules import VectorSource, evaluating, without_hooks
from attnscope.errors import InputError, ModelError
from attnscope.normalizers import Facts, Normalizer, SinkSoftmax, Softmax, Tempered
from attnscope.swapping.weights import LEARNED, attend, normalized, weight_function

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from attnscope.capture.attention import AttentionCall, Call

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
            model(**probe_inputs(model))
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


def probe_inputs(model: Any) -> dict[str, torch.Tensor]:
    """A few tokens, or an empty picture, to run a model on."""
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


@dataclass(frozen=True)
class Entry:
    """One change to some heads: a rule for their weights, or the vector that they output in every row."""

    heads: tuple[int, ...]
    rule: Any = None
    output: Tensor | None = None
    lasting: bool = False  # whether it is saved with the model


class Replacement(nn.Module):
    """The changes to one attention module; if two concern the same head, the later one applies."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.entries: dict[str, Entry] = {}
        self.rules = nn.ModuleDict()
        self._wrap()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.entries = {
            key: replace(entry, rule=self.rules[key]) if key in self.rules else entry
            for key, entry in self.entries.items()
        }
        self._wrap()

    def _wrap(self) -> None:
        wrap_registry()
        weakref.finalize(self, unwrap_registry)

    def add(self, entry: Entry, key: str | None = None) -> str:
        """Add a change on top of the others and return its key."""
        if key is None:
            key = next(str(n) for n in itertools.count() if str(n) not in self.entries)
        self.entries[key] = entry
        if isinstance(entry.rule, nn.Module):
            self.rules[key] = entry.rule
        return key

    def remove(self, key: str) -> None:
        del self.entries[key]
        if key in self.rules:
            del self.rules[key]

    def plan(self) -> list[tuple[list[int], Entry]]:
        """Each change with the heads that no later change overrides; changes without such heads are left out."""
        latest = {head: key for key, entry in self.entries.items() for head in entry.heads}
        plans = [([head for head in entry.heads if latest[head] == key], entry) for key, entry in self.entries.items()]
        return [(heads, entry) for heads, entry in plans if heads]

    def forward(self, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        """What the module's kernel would return: output (batch, queries, heads, dims), and weights if requested."""
        if call.kernel not in IMPLEMENTATIONS:
            raise ModelError(
                f"{type(call.module).__name__} runs with {call.kernel} attention, for which no normalizer can "
                "be swapped; use set_attn_implementation('sdpa') or 'eager'"
            )
        with_weights = call.kernel == "eager" and _weights_requested(call)
        parts = [(heads, *_part(call, heads, entry, with_weights, self.heads)) for heads, entry in self.plan()]
        if len(parts) == 1 and len(parts[0][0]) == self.heads and (parts[0][2] is not None or not with_weights):
            return parts[0][1], parts[0][2]
        output, weights = call.kernel_output()
        for heads, part_output, part_weights in parts:
            index = torch.tensor(heads, device=output.device)
            output = output.index_copy(2, index, part_output.to(output.dtype))
            if with_weights and part_weights is not None:
                weights = weights.index_copy(1, index, part_weights.to(weights.dtype))
        return output, weights if with_weights else None


def _part(
    call: AttentionCall, heads: list[int], entry: Entry, with_weights: bool, all_heads: int
) -> tuple[Tensor, Tensor | None]:
    """The output of these heads, and their weights if requested and available."""
    if entry.output is not None:
        vectors = entry.output.to(call.value).expand(len(entry.heads), -1)
        rows = vectors[[entry.heads.index(head) for head in heads]]
        return rows.expand(call.query.shape[0], call.query.shape[2], -1, -1), None
    function = weight_function(entry.rule)
    if heads == list(range(all_heads)):
        return attend(call, None, function, with_weights=with_weights)
    # All heads of the change are run, even those that a later one replaced: its rule may have a setting per head.
    output, weights = attend(call, entry.heads, function, with_weights=with_weights)
    index = [entry.heads.index(head) for head in heads]
    if len(index) == len(entry.heads):
        return output, weights
    return output[:, :, index], None if weights is None else weights[:, index]


def _weights_requested(call: AttentionCall) -> bool:
    """Whether the caller of the model asked for its weights."""
    if call.options.get("output_attentions") or getattr(call.module.config, "output_attentions", False):
        return True
    return any("attentions" in key for key in _active_collector.get() or ())


def replacement_of(module: nn.Module) -> Replacement | None:
    """The replacement of an attention module, or None."""
    child = module._modules.get(REPLACEMENT)
    return child if isinstance(child, Replacement) else None


def add_change(module: nn.Module, heads: int, entry: Entry, key: str | None = None) -> str:
    """Add a change to an attention module of this many heads and return its key."""
    replacement = replacement_of(module)
    if replacement is None:
        replacement = Replacement(heads)
        replacement.train(module.training)
        module.add_module(REPLACEMENT, replacement)
    return replacement.add(entry, key)


def remove_change(module: nn.Module, key: str, entry: Entry) -> None:
    """Remove a change if it is still there, and the replacement with the last change."""
    replacement = replacement_of(module)
    if replacement is None or replacement.entries.get(key) is not entry:
        return
    replacement.remove(key)
    if not replacement.entries:
        del module._modules[REPLACEMENT]


def effective_normalizer(call: Call) -> Normalizer:
    """The normalizer of this call's rows: the model's own softmax, except in swapped heads."""
    sinks = call.sinks
    plain = Softmax() if sinks is None else SinkSoftmax(sinks[:, None])
    replacement = replacement_of(call.module)
    if replacement is None:
        return plain
    parts = [_part_now(heads, entry) for heads, entry in replacement.plan() if entry.output is None]
    return _Mixed(plain, sinks, parts) if parts else plain


def with_sinks(normalizer: Normalizer, sinks: Tensor | None) -> Normalizer:
    """The normalizer as a swap would apply it in a model with these sinks, one per head."""
    if sinks is None:
        return normalizer
    heads = list(range(len(sinks)))
    return _Mixed(SinkSoftmax(sinks[:, None]), sinks, [(heads, heads, normalizer)])


def at_temperature(normalizer: Normalizer, sinks: Tensor | None, temperature: float) -> Normalizer:
    """A model's normalizer at a temperature; sinks are logits too and are divided like the others."""
    if sinks is None:
        return Tempered(normalizer, temperature)
    divided = SinkSoftmax(sinks[:, None] / temperature)
    if isinstance(normalizer, _Mixed):
        return Tempered(_Mixed(divided, sinks / temperature, normalizer.parts), temperature)
    return Tempered(divided, temperature)


def _part_now(heads: list[int], entry: Entry) -> tuple[list[int], list[int], Any]:
    """All heads of a change, the indices of those that no later change overrides, and the current rule."""
    rule = entry.rule.normalizer if isinstance(entry.rule, LEARNED) else entry.rule
    return list(entry.heads), [entry.heads.index(head) for head in heads], rule


class _Mixed(Normalizer):
    """The model's own normalizer with others in some heads; logits are (heads, rows, keys)."""

    name: ClassVar[str] = "mixed"
    facts: ClassVar[Facts] = Facts(
        sums_to_one=False, at_most_one=False, non_negative=False, shift_invariant=False, permutation_equivariant=False
    )

    def __init__(self, plain: Normalizer, sinks: Tensor | None, parts: list[tuple[list[int], list[int], Any]]) -> None:
        self.plain, self.sinks, self.parts = plain, sinks, parts

    def weights(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        mask = torch.ones_like(logits, dtype=torch.bool) if visible is None else visible
        result = self.plain.weights(logits, visible)
        for heads, index, rule in self.parts:
            z = logits[heads].masked_fill(~mask[heads], -torch.inf)
            if isinstance(rule, Normalizer):
                weights = normalized(rule, z, None if self.sinks is None else self.sinks[heads])
            else:
                weights = rule(z[None], mask[heads][None])[0]
            result[[heads[i] for i in index]] = weights[index].detach().to(result.dtype)
        return result

    def jacobian_norm(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        """The exact norm; NaN for functions that are not a `Normalizer`, and in models with sinks."""
        return self._of_parts(lambda rule, z, mask: rule.jacobian_norm(z, mask), logits, visible)

    def jacobian_bound(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        """A bound on the norm; NaN where `jacobian_norm` is."""
        return self._of_parts(lambda rule, z, mask: rule.jacobian_bound(z, mask), logits, visible)

    def _of_parts(self, function: Callable[..., Tensor], logits: Tensor, visible: Tensor | None) -> Tensor:
        result = function(self.plain, logits, visible)
        for heads, index, rule in self.parts:
            decided = [heads[i] for i in index]
            if isinstance(rule, Normalizer) and self.sinks is None:
                values = function(rule, logits[heads], None if visible is None else visible[heads])
                result[decided] = values[index].detach().to(result.dtype)
            else:
                result[decided] = math.nan
        return result

    def weight_bounds(self, length: int, low: float, high: float) -> tuple[float, float]:
        """No bound is known for all heads together."""
        return -math.inf, math.inf

    def lipschitz(self, length: int) -> float:
        """No constant is known for all heads together."""
        return math.inf
