"""Small attention models trained together, with any normalizer inside and a budget on its Jacobian.

A normalizer that is named without settings is learned if attnscope has a module for it, as `ssmax` has; with settings,
or without a module, it is used as it is, and only the scale of its logits is learned.

Members are independent: none of their numbers depends on another member. A member is a seed and a learning rate.
Layers are attention and an MLP with residual connections, without layer norm. With QK-norm a logit is the cosine of
query and key, times a learned positive scale for each head; without it, their product over the root of their size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from attnscope import normalizers as nz
from attnscope.errors import InputError
from attnscope.normalizers._base import SUPREMUM
from attnscope.normalizers._rows import column
from attnscope.normalizers.from_file import load_normalizer
from attnscope.studies.recall.tasks import Position, Task

_LEARNED = {
    "ssmax": nz.LearnedSSMax,
    "power_softmax": nz.LearnedPowerSoftmax,
    "entmax": nz.LearnedEntmax,
    "asentmax": nz.LearnedASEntmax,
    "lipmax": nz.LearnedLipmax,
    "lipmix": nz.LearnedLipmix,
}
_SMOOTH_MIN_ORDER = 4


@dataclass(frozen=True)
class Rule:
    """A normalizer to train with, and the largest Jacobian norm that it may have (infinite for none)."""

    fixed: nz.Normalizer
    learned: bool
    budget: float

    def module(self, heads: int) -> nn.Module | None:
        """The learned form for this many heads, if there is one."""
        return _LEARNED[self.fixed.name](heads) if self.learned else None

    def normalizer(self, module: nn.Module | None) -> nz.Normalizer:
        """The normalizer with the module's present parameters."""
        if module is None:
            return self.fixed
        normalizer: nz.Normalizer = module.normalizer  # type: ignore[assignment]  # every learned module has one
        return normalizer

    def within_budget(self, normalizer: nz.Normalizer, scale: Tensor, n: Tensor) -> Tensor:
        """The scale of the logits, at which the Jacobian norm is at most the budget for rows of n keys.

        scale is (heads, 1, 1) and n is (rows, 1). A smooth minimum of the scale and budget / Lipschitz constant, as a
        hard one would leave the scale without a gradient.
        """
        if self.budget == math.inf:
            return scale
        share = scale * lipschitz(normalizer, n) / self.budget
        return scale / (1 + share**_SMOOTH_MIN_ORDER) ** (1 / _SMOOTH_MIN_ORDER)


def make_rule(spec: str, budget: float) -> Rule:
    """The rule for a normalizer as written on the command line: a name with settings, or a class in a file."""
    normalizer = load_normalizer(spec)
    if budget != math.inf and normalizer.lipschitz(2) == math.inf:
        raise InputError(f"{spec} has no Lipschitz constant, so no budget can hold for it: leave out one of the two")
    return Rule(normalizer, spec in _LEARNED, budget)


def lipschitz(normalizer: nz.Normalizer, n: Tensor) -> Tensor:
    """A bound on the Jacobian norm for rows of n keys, for each head where parameters are per head."""
    if isinstance(normalizer, nz.Lipmix):
        return (1 - column(normalizer.gate, n)) * lipschitz(normalizer.sparse_part, n)
    if isinstance(normalizer, nz.MappedNormalizer):
        mapped = normalizer.row_map(n)
        bound = torch.ones_like(n) if mapped.scale is None else mapped.scale.abs()
        return SUPREMUM[mapped.kind] * bound
    return torch.tensor([[_constant(normalizer, int(one))] for one in n[:, 0]], dtype=n.dtype)


@cache
def _constant(normalizer: nz.Normalizer, n: int) -> float:
    return normalizer.lipschitz(n)


SCALE = 5.0  # of the cosines, before training
_ROPE_BASE = 10_000.0


@dataclass(frozen=True)
class Attended:
    """The attention of the asked rows in the last layer, (batch, members x heads, asked, keys)."""

    logits: Tensor  # that the budget is on: before the learned scale
    scaled: Tensor  # that the normalizer gets
    scale: Tensor  # (members x heads, rows, 1): scaled / logits
    weights: Tensor
    visible: Tensor | None


class Ensemble:
    """The members' parameters and their forward pass."""

    def __init__(self, task: Task, rule: Rule, position: Position, qk_norm: bool, seeds: Sequence[int]) -> None:
        self.task, self.rule, self.position, self.qk_norm = task, rule, position, qk_norm
        self.members = len(seeds)
        d = task.width
        shapes = {"embed": (task.features, d), "embed_in": (task.features, d), "embed_out": (d, d)}
        shapes["read"] = (d, task.outputs)
        for layer in range(task.layers):
            shapes |= {f"{name}{layer}": (d, d) for name in ("q", "k", "v", "o")}
            shapes |= {f"up{layer}": (d, 2 * d), f"down{layer}": (2 * d, d)}
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self.parameters: dict[str, Tensor] = {name: _drawn(generators, *shape) for name, shape in shapes.items()}
        for name, width in (("embed_in_bias", d), ("read_bias", task.outputs)):
            self.parameters[name] = torch.zeros(self.members, 1, width)
        for layer in range(task.layers):
            self.parameters[f"scale{layer}"] = torch.full((self.members * task.heads,), math.log(SCALE))
        self.modules = [rule.module(self.members * task.heads) for _ in range(task.layers)]
        for layer, module in enumerate(self.modules):
            if module is not None:
                self.parameters |= {f"{name}{layer}": one for name, one in module.named_parameters()}
        for parameter in self.parameters.values():
            parameter.requires_grad_()

    def forward(self, tokens: Tensor) -> tuple[Tensor, Attended]:
        """Outputs (members, batch, asked, outputs) of tokens (members, batch, tokens, features)."""
        p, asked = self.parameters, self.task.asked
        hidden = functional.gelu(_apply(tokens, p["embed_in"]) + p["embed_in_bias"][:, None])
        x = _apply(tokens, p["embed"]) + _apply(hidden, p["embed_out"])
        for layer in range(self.task.layers):
            last = layer == self.task.layers - 1
            rows = asked if last else x.shape[2]
            out, attended = self._attend(layer, x, rows)
            x = x[:, :, x.shape[2] - rows :] + out
            x = x + _apply(functional.gelu(_apply(x, p[f"up{layer}"])), p[f"down{layer}"])
        return _apply(x, p["read"]) + p["read_bias"][:, None], attended

    def _attend(self, layer: int, x: Tensor, rows: int) -> tuple[Tensor, Attended]:
        """The output of the last `rows` tokens' attention, (members, batch, rows, width)."""
        p, heads, tokens = self.parameters, self.task.heads, x.shape[2]
        keys = tokens if self.task.layers > 1 else tokens - rows  # a single layer's query does not see itself
        q = self._heads(_apply(x[:, :, tokens - rows :], p[f"q{layer}"]))
        k, v = (self._heads(_apply(x[:, :, :keys], p[f"{name}{layer}"])) for name in ("k", "v"))
        if self.position == "rope":
            places = torch.arange(tokens)
            q, k = _rotated(q, places[tokens - rows :]), _rotated(k, places[:keys])
        if self.qk_norm:
            logits = functional.normalize(q, dim=-1) @ functional.normalize(k, dim=-1).mT
        else:
            logits = q @ k.mT / math.sqrt(q.shape[-1])
        distance = torch.arange(tokens - rows, tokens)[:, None] - torch.arange(keys)
        if self.position == "alibi":
            slopes = 2.0 ** (-8 * torch.arange(1, heads + 1) / heads)
            logits = logits - (slopes[:, None, None] * distance).repeat(self.members, 1, 1)
        visible = distance >= 0 if rows > 1 else None
        n = torch.arange(keys - rows + 1, keys + 1)[:, None] if rows > 1 else torch.tensor([[keys]])
        normalizer = self.rule.normalizer(self.modules[layer])
        start = p[f"scale{layer}"].exp()[:, None, None] if self.qk_norm else torch.ones(self.members * heads, 1, 1)
        scale = self.rule.within_budget(normalizer, start, n.to(x.dtype))
        scaled = logits * scale
        weights = normalizer.weights(scaled, visible)
        mixed = (weights @ v).unflatten(1, (self.members, heads))  # (batch, members, heads, rows, size)
        out = _apply(mixed.permute(1, 0, 3, 2, 4).flatten(-2), p[f"o{layer}"])
        return out, Attended(logits, scaled, scale, weights, visible)

    def _heads(self, x: Tensor) -> Tensor:
        """(members, batch, tokens, width) as (batch, members x heads, tokens, size)."""
        return x.unflatten(-1, (self.task.heads, -1)).permute(1, 0, 3, 2, 4).flatten(1, 2)

    def chosen(self, members: Sequence[int]) -> Ensemble:
        """An ensemble of some of the members, with copies of their parameters."""
        part = Ensemble(self.task, self.rule, self.position, self.qk_norm, [0] * len(members))
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                kept = parameter.view(self.members, -1)[list(members)]
                part.parameters[name].copy_(kept.view(part.parameters[name].shape))
        return part


def _drawn(generators: Sequence[Generator], fan_in: int, fan_out: int) -> Tensor:
    """A matrix for each member, (members, in, out), with entries of variance 1 / in."""
    return torch.stack([torch.randn(fan_in, fan_out, generator=one) for one in generators]) / math.sqrt(fan_in)


def _apply(x: Tensor, matrix: Tensor) -> Tensor:
    """x (members, batch, tokens, in) times each member's matrix (members, in, out)."""
    return torch.bmm(x.flatten(1, 2), matrix).unflatten(1, x.shape[1:3])


def _rotated(x: Tensor, places: Tensor) -> Tensor:
    """Rotary position encoding of x (..., tokens, size)."""
    half = x.shape[-1] // 2
    angles = places[:, None] * _ROPE_BASE ** (-torch.arange(half) / half)
    cos, sin = angles.cos(), angles.sin()
    one, other = x[..., :half], x[..., half:]
    return torch.cat([one * cos - other * sin, one * sin + other * cos], -1)
