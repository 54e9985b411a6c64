"""What answers an attention module's calls while some of its heads are replaced.

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

from attnscope.capture.huggingface import REPLACEMENT, hold, release
from attnscope.errors import ModelError
from attnscope.swapping.blocks import attend
from attnscope.swapping.layout import IMPLEMENTATIONS
from attnscope.swapping.rules import weight_function

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.capture.attention import AttentionCall


@dataclass(frozen=True)
class Entry:
    """One change to some heads: a rule for their weights, or the vector that they put out in every row."""

    heads: tuple[int, ...]
    rule: Any = None
    output: Tensor | None = None
    lasting: bool = False  # whether it is saved with the model


class Replacement(nn.Module):
    """The changes to one attention module; where two concern the same head, the later one holds."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.entries: dict[str, Entry] = {}
        self.rules = nn.ModuleDict()
        self._hold()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.entries = {
            key: replace(entry, rule=self.rules[key]) if key in self.rules else entry
            for key, entry in self.entries.items()
        }
        self._hold()

    def _hold(self) -> None:
        hold()
        weakref.finalize(self, release)

    def add(self, entry: Entry, key: str | None = None) -> str:
        """Put a change on top of those that are there, and return the key it goes by."""
        if key is None:
            key = next(str(n) for n in itertools.count() if str(n) not in self.entries)
        self.entries[key] = entry
        if isinstance(entry.rule, nn.Module):
            self.rules[key] = entry.rule
        return key

    def remove(self, key: str) -> None:
        """Take a change back."""
        del self.entries[key]
        if key in self.rules:
            del self.rules[key]

    def plan(self) -> list[tuple[list[int], Entry]]:
        """The heads that each change still decides."""
        holder = {head: key for key, entry in self.entries.items() for head in entry.heads}
        plans = [([head for head in entry.heads if holder[head] == key], entry) for key, entry in self.entries.items()]
        return [(heads, entry) for heads, entry in plans if heads]

    def forward(self, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        """What the module's kernel would answer: (batch, queries, heads, dims), and weights if asked for."""
        if call.kernel not in IMPLEMENTATIONS:
            raise ModelError(
                f"{type(call.module).__name__} runs with {call.kernel} attention, for which no normalizer can "
                "be swapped; use set_attn_implementation('sdpa') or 'eager'"
            )
        wanted = call.kernel == "eager" and _weights_wanted(call)
        parts = [(heads, *_part(call, heads, entry, wanted, self.heads)) for heads, entry in self.plan()]
        if len(parts) == 1 and len(parts[0][0]) == self.heads and (parts[0][2] is not None or not wanted):
            return parts[0][1], parts[0][2]
        output, weights = call.kernel_output()
        for heads, own, shares in parts:
            places = torch.tensor(heads, device=output.device)
            output = output.index_copy(2, places, own.to(output.dtype))
            if wanted and shares is not None:
                weights = weights.index_copy(1, places, shares.to(weights.dtype))
        return output, weights if wanted else None


def _part(
    call: AttentionCall, heads: list[int], entry: Entry, wanted: bool, all_heads: int
) -> tuple[Tensor, Tensor | None]:
    """The output of these heads, and their weights if wanted and there are any."""
    if entry.output is not None:
        vectors = entry.output.to(call.value).expand(len(entry.heads), -1)
        rows = vectors[[entry.heads.index(head) for head in heads]]
        return rows.expand(call.query.shape[0], call.query.shape[2], -1, -1), None
    function = weight_function(entry.rule)
    if heads == list(range(all_heads)):
        return attend(call, None, function, with_weights=wanted)
    # A later change took some of this one's heads: its rule may hold a number for each of its own, so all are run.
    output, weights = attend(call, entry.heads, function, with_weights=wanted)
    kept = [entry.heads.index(head) for head in heads]
    if len(kept) == len(entry.heads):
        return output, weights
    return output[:, :, kept], None if weights is None else weights[:, kept]


def _weights_wanted(call: AttentionCall) -> bool:
    """Whether the caller of the model asked for its weights."""
    if call.options.get("output_attentions") or getattr(call.module.config, "output_attentions", False):
        return True
    return any("attentions" in key for key in _active_collector.get() or ())


def replacement_of(module: nn.Module) -> Replacement | None:
    """The replacement on an attention module, if there is one."""
    found = module._modules.get(REPLACEMENT)
    return found if isinstance(found, Replacement) else None


def change(module: nn.Module, heads: int, entry: Entry, key: str | None = None) -> str:
    """Put a change on an attention module of this many heads, and return the key it goes by."""
    own = replacement_of(module)
    if own is None:
        own = Replacement(heads)
        own.train(module.training)
        module.add_module(REPLACEMENT, own)
    return own.add(entry, key)


def unchange(module: nn.Module, key: str, entry: Entry) -> None:
    """Take a change back if it is still there, and the replacement with the last one."""
    own = replacement_of(module)
    if own is None or own.entries.get(key) is not entry:
        return
    own.remove(key)
    if not own.entries:
        del module._modules[REPLACEMENT]
