"""The weights of a layer's heads under the normalizer given by a user, and attention with them in blocks of rows.

Decisions:

- a block has so few rows that its logits stay in the processor's cache, and no keys x keys matrix
  exists unless the weights are requested;
- a block computes only the keys from the first to the last that one of its rows sees: in causal attention those up to
  its last row, in a sliding window those of the window, in a static cache those that are filled;
- a hidden key is a logit of -inf, which every normalizer treats as a masked key and leaves out of the length, so
  that no mask travels with the logits;
- when gradients are needed each block is recomputed in the backward pass, so that training needs no more
  memory for the weights than inference;
- logits come from `capture/attention.py`, as in a scan.

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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from attnscope.capture.attention import additive_mask, mask_block, rebuild_logits, visible_keys
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
from attnscope.normalizers._arguments import lengths, prepare
from attnscope.normalizers._autograd import apply_map

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from jaxtyping import Bool, Float
    from torch import Tensor

    from attnscope.capture.attention import AttentionCall

# Logits of a block: 2 MiB of float32, the size of a core's own cache.
BLOCK_LOGITS = 1 << 19
FEWEST_ROWS, MOST_ROWS = 8, 128


@dataclass(frozen=True)
class WeightFunction:
    """How the rows of some heads get their weights.

    `weights(logits, visible, sinks)` returns weights of the shape of the logits, (batch, heads, rows, keys). A hidden
    key has a logit of -inf. `sinks` (heads,) are logits that take weight and have no key, or None. `visible` is None,
    and keys before the first that a row of the block sees are left out, unless `needs_mask`.
    """

    weights: Callable[[Tensor, Tensor | None, Tensor | None], Tensor]
    needs_mask: bool = False


@dataclass(frozen=True)
class _Block:
    """Some items of the batch, some rows, and the range of keys that they see."""

    items: slice
    rows: slice
    keys: slice
    mask: Tensor | None  # added to the logits: 0 or a bias where visible, -inf elsewhere
    later: Tensor | None  # causal without a mask: True where a key from the block's first row on is after its query


def attend(
    call: AttentionCall, heads: Sequence[int] | None, function: WeightFunction, *, with_weights: bool
) -> tuple[Float[Tensor, "batch queries heads dims"], Float[Tensor, "batch heads queries keys"] | None]:
    """The output of these heads (None: all), and their weights if requested."""
    attention = _BlockwiseAttention(call, heads, function)
    recompute = torch.is_grad_enabled() and not with_weights
    outputs: list[list[Tensor]] = []  # of each slice of the batch, its blocks of rows
    weights: list[list[Tensor]] = []
    for block in attention.blocks():
        if block.rows.start == 0:
            outputs.append([])
            weights.append([])
        if recompute:
            output = checkpoint(attention.output, block, use_reentrant=False, preserve_rng_state=attention.dropout > 0)
        else:
            block_weights = attention.weights(block)
            output = attention.context(block_weights, block)
            if with_weights:
                left_out = (block.keys.start, call.keys - block.keys.stop)
                weights[-1].append(functional.pad(block_weights, left_out))
        outputs[-1].append(output)
    result = torch.cat([torch.cat(rows, 1) for rows in outputs])
    return result, torch.cat([torch.cat(rows, 2) for rows in weights]) if with_weights else None


class _BlockwiseAttention:
    """One attention call for some of its heads."""

    def __init__(self, call: AttentionCall, heads: Sequence[int] | None, function: WeightFunction) -> None:
        self.call, self.function = call, function
        self.query, self.key, self.value = call.query, call.key, call.value
        self.heads = None if heads is None else torch.tensor(list(heads), device=call.query.device)
        if self.heads is not None:
            groups = self.heads * call.key.shape[1] // call.heads
            self.query, self.key, self.value = self.query[:, self.heads], self.key[:, groups], self.value[:, groups]
        self.dropout = float(call.options.get("dropout") or 0.0) if call.module.training else 0.0
        sinks = call.options.get("s_aux")
        sinks = None if sinks is None else sinks.reshape(-1)
        self.sinks = sinks if sinks is None or self.heads is None else sinks[self.heads]

    def blocks(self) -> Iterator[_Block]:
        """The blocks of the call, all rows of some items of the batch before the next items."""
        batch, heads, queries, _ = self.query.shape
        keys = self.call.keys
        rows = max(FEWEST_ROWS, min(MOST_ROWS, BLOCK_LOGITS // max(1, heads * keys)))
        items = max(1, BLOCK_LOGITS // max(1, heads * keys * min(rows, queries)))
        for first in range(0, batch, items):
            for start in range(0, queries, rows):
                yield self._block(slice(first, min(first + items, batch)), slice(start, min(start + rows, queries)))

    def _block(self, items: slice, rows: slice) -> _Block:
        call = self.call
        if call.mask is None:
            if not call.causal:
                return _Block(items, rows, slice(0, call.keys), None, None)
            stop = min(rows.stop, call.keys)
            positions = torch.arange(rows.start, rows.stop, device=self.query.device)
            later = positions[: stop - rows.start] > positions[:, None] if rows.start < stop else None
            return _Block(items, rows, slice(0, stop), None, later)
        mask = mask_block(call.mask, call.keys, items=items, heads=self.heads, rows=rows)
        keys = self._visible_range(visible_keys(mask))
        return _Block(items, rows, keys, additive_mask(mask[..., keys], self.query.dtype, hidden=-torch.inf), None)

    def _visible_range(self, visible: Bool[Tensor, "batch heads rows keys"]) -> slice:
        """The keys from the first to the last that any row sees; one key if no row sees any."""
        positions = visible.flatten(0, -2).any(0).nonzero()
        first, last = (int(positions[0]), int(positions[-1])) if len(positions) else (0, 0)
        return slice(0 if self.function.needs_mask else first, last + 1)

    def output(self, block: _Block) -> Float[Tensor, "items rows heads dims"]:
        return self.context(self.weights(block), block)

    def weights(self, block: _Block) -> Float[Tensor, "items heads rows keys"]:
        """The weights of a block, with dropout while training."""
        logits = self._logits(block)
        visible = logits != -torch.inf if self.function.needs_mask else None
        weights = self.function.weights(logits, visible, self.sinks).to(self.value.dtype)
        return functional.dropout(weights, self.dropout) if self.dropout else weights

    def _logits(self, block: _Block) -> Float[Tensor, "items heads rows keys"]:
        bias = self.call.options.get("position_bias")
        if bias is not None:
            bias = mask_block(bias, self.call.keys, items=block.items, heads=self.heads, rows=block.rows)
            bias = bias[..., block.keys]
        logits = rebuild_logits(
            self.query[block.items, :, block.rows],
            self.key[block.items, :, block.keys],
            scale=self.call.scale,
            softcap=self.call.options.get("softcap"),
            position_bias=bias,
            mask=block.mask,
        )
        if block.later is not None:
            logits[..., block.rows.start :].masked_fill_(block.later, -torch.inf)
        return logits

    def context(
        self, weights: Float[Tensor, "items heads rows keys"], block: _Block
    ) -> Float[Tensor, "items rows heads dims"]:
        value = self.value[block.items, :, block.keys]
        grouped = weights.reshape(*value.shape[:2], -1, weights.shape[-1])  # heads that share values together
        return (grouped @ value).reshape(*weights.shape[:3], -1).transpose(1, 2)


if TYPE_CHECKING:
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
    """The function that `attend` calls for a rule."""
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
