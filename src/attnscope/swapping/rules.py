"""Turn the normalizer given by a user into the function that computes the weights of a layer's heads.

A normalizer is given as

- a name with settings, `"ssmax"` or `"entmax:alpha=1.3"`;
- a `Normalizer`;
- a module with parameters, copied for each layer: `LearnedSSMax(heads)`;
- a function that makes one from a number of heads: `LearnedSSMax` itself;
- any function of (logits, visible) to weights, both (batch, heads, rows, keys); sinks are not passed to it.
"""

from __future__ import annotations

import copy
import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from attnscope.errors import InputError
from attnscope.normalizers import (
    LearnedASEntmax,
    LearnedEntmax,
    LearnedLipmax,
    LearnedLipmix,
    LearnedPowerSoftmax,
    LearnedSink,
    LearnedSSMax,
    MappedNormalizer,
    Normalizer,
    Tempered,
    parse,
)
from attnscope.normalizers._autograd import apply_map
from attnscope.normalizers._rows import lengths, prepare
from attnscope.swapping.blocks import WeightFunction

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    Rule = Normalizer | nn.Module | Callable[[Tensor, Tensor | None], Tensor]

LEARNED = (
    LearnedSSMax,
    LearnedPowerSoftmax,
    LearnedSink,
    LearnedEntmax,
    LearnedASEntmax,
    LearnedLipmax,
    LearnedLipmix,
)


def rule_for(given: Any, heads: int) -> Rule:
    """The rule for a layer with this many heads; a given module is copied, and a class instantiated, for the layer."""
    if isinstance(given, str):
        return parse(given)
    if isinstance(given, type) and issubclass(given, Normalizer):
        return given()
    rule = given
    if isinstance(given, nn.Module):
        rule = copy.deepcopy(given)
    elif not isinstance(given, Normalizer) and callable(given) and _makes_modules(given):
        try:
            rule = given(heads)
        except Exception as error:
            raise InputError(
                f"{given!r} takes one argument, so it was called with the number of heads, {heads}, to make a module; "
                f"that failed: {error}. A function of weights takes (logits, visible)"
            ) from error
    if not isinstance(rule, Normalizer) and not callable(rule):
        raise InputError(
            f"a normalizer is a name, a Normalizer, a module or a function of (logits, visible); received {given!r}"
        )
    if isinstance(rule, LearnedASEntmax) and rule.projection is not None:
        raise InputError(
            "LearnedASEntmax with `width` needs the layer's input, which no attention kernel sees; leave it out"
        )
    return rule


def _makes_modules(given: Callable[..., Any]) -> bool:
    """Whether to call it with a number of heads: a module class, or a function of one required argument."""
    if isinstance(given, type):
        return issubclass(given, nn.Module)
    try:
        parameters = inspect.signature(given).parameters.values()
    except (TypeError, ValueError):
        return False
    return sum(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters) == 1


def weight_function(rule: Rule) -> WeightFunction:
    """The function that `swapping.blocks` calls for a rule."""
    if isinstance(rule, Normalizer):
        return WeightFunction(lambda logits, _, sinks: normalized(rule, logits, sinks))
    if isinstance(rule, LEARNED):
        return WeightFunction(lambda logits, _, sinks: normalized(rule.normalizer, logits, sinks))
    return WeightFunction(lambda logits, visible, _: rule(logits, visible), needs_mask=True)


def normalized(normalizer: Normalizer, logits: Tensor, sinks: Tensor | None) -> Tensor:
    """The normalizer's weights on the keys; a sink is an extra key without a value, not counted in the length."""
    if sinks is None:
        return normalizer.weights(logits)
    if isinstance(normalizer, Tempered):
        return normalized(normalizer.inner, logits / normalizer.temperature, sinks / normalizer.temperature)
    extended = torch.cat([logits, sinks[:, None, None].to(logits.dtype).expand(*logits.shape[:-1], 1)], -1)
    if isinstance(normalizer, MappedNormalizer):
        z, _ = prepare(extended, None)
        m = normalizer.row_map(lengths(z[..., :-1], None)).fit(z)
        return apply_map(m.kind, z, None, m.scale, m.alpha, m.sink, m.k)[..., :-1].to(logits.dtype)
    return normalizer.weights(extended)[..., :-1]


def check(rule: Rule, heads: int, device: torch.device) -> None:
    """Try a rule on a few rows of this many heads; raises if it fails or returns the wrong shape."""
    logits = torch.linspace(-1, 1, 15 * heads, device=device).view(1, heads, 3, 5)
    logits = logits.masked_fill(torch.ones(3, 5, dtype=torch.bool, device=device).triu(1), -torch.inf)
    function = weight_function(rule)
    name = rule.__name__ if inspect.isfunction(rule) else type(rule).__name__
    try:
        with torch.no_grad():
            weights = function.weights(logits, logits != -torch.inf if function.needs_mask else None, None)
    except (InputError, RuntimeError, TypeError, AttributeError) as error:
        raise InputError(f"{name} does not fit logits of {heads} heads: {error}") from error
    if not isinstance(weights, torch.Tensor) or weights.shape != logits.shape:
        received = tuple(weights.shape) if isinstance(weights, torch.Tensor) else type(weights).__name__
        raise InputError(f"{name} gave {received} for logits of shape {tuple(logits.shape)}; it must keep their shape")
    if not weights.isfinite().all():
        raise InputError(f"{name} gives weights that are not finite for logits between -1 and 1; check its settings")
    if (weights[logits == -torch.inf] != 0).any():
        raise InputError(f"{name} gives weight to keys that are not visible")
