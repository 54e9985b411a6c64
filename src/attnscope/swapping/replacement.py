"""The module that runs an attention module's calls while some of its heads are replaced.

A `Replacement` is a child of the attention module, so that the parameters of learnable normalizers are the
model's own: they are trained, moved, saved and copied with it.
"""

from __future__ import annotations

import itertools
import weakref
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers.utils.output_capturing import _active_collector

from attnscope.capture.huggingface import REPLACEMENT, unwrap_registry, wrap_registry
from attnscope.errors import ModelError
from attnscope.swapping.blocks import attend
from attnscope.swapping.layout import IMPLEMENTATIONS
from attnscope.swapping.rules import weight_function

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.capture.attention import AttentionCall


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
        """Remove a change."""
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
