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
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from attnscope import normalizers as nz
from attnscope.errors import InputError
from attnscope.normalizers._arguments import column
from attnscope.normalizers._base import SUPREMUM
from attnscope.normalizers.specs import load_normalizer
from attnscope.studies.recall.tasks import Batch, Position, Task
from attnscope.theory.selectivity import top_weight_cap

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


BATCH = 64
VALIDATED = 1024  # examples at the training length, for the choice of the learning rate
_WARM_UP = 0.1  # of the steps
_BETAS, _EPSILON, _CLIP = (0.9, 0.99), 1e-8, 1.0
_LOGITS_AT_ONCE = 1 << 20  # of a member's head, in tests
_TOKENS_AT_ONCE = 1 << 16  # of a member, in tests: larger arrays leave the cache, and take gigabytes
_MEASURED = 32  # examples whose Jacobian and limit of Theorem S are computed
# Streams of random numbers of a seed: no example of one is in another.
_TRAINING, _VALIDATION, _TEST = 1, 2, 3


class Setting(NamedTuple):
    """What is trained: a task, a rule, the position encoding and whether queries and keys are normalized."""

    task: Task
    rule: Rule
    position: Position
    qk_norm: bool


def stream(seed: int, purpose: int, length: int = 0) -> torch.Generator:
    """Random numbers of a seed for one purpose."""
    return torch.Generator().manual_seed((seed * 8 + purpose) * 1_000_003 + length)


def train(setting: Setting, seeds: Sequence[int], rates: Sequence[float], steps: int) -> Ensemble:
    """Train a member for each seed and learning rate, in this order; members of a seed see the same examples."""
    task = setting.task
    model = Ensemble(*setting, [seed for seed in seeds for _ in rates])
    data = [stream(seed, _TRAINING) for seed in seeds]
    lengths = torch.Generator().manual_seed(0)
    rate = torch.tensor(list(rates) * len(seeds))[:, None]
    optimizer = _Adam(list(model.parameters.values()), model.members)
    for step in range(steps):
        length = int(torch.randint(task.shortest, task.length + 1, (1,), generator=lengths))
        batch = _stacked([task.draw(one, BATCH, length) for one in data], len(rates))
        output, _ = model.forward(batch.tokens)
        losses = task.loss(output, batch.target).mean((1, 2))
        gradients = torch.autograd.grad(losses.sum(), optimizer.parameters, allow_unused=True)
        done = step / steps
        decay = min(1.0, (step + 1) / (_WARM_UP * steps)) * 0.5 * (1 + math.cos(math.pi * done))
        optimizer.step(gradients, rate * decay)
    return model


class _Adam:
    """Adam with a learning rate and a gradient norm of its own for each member."""

    def __init__(self, parameters: Sequence[Tensor], members: int) -> None:
        self.parameters, self.members = list(parameters), members
        self._means = [torch.zeros_like(one).view(members, -1) for one in parameters]
        self._squares = [torch.zeros_like(one).view(members, -1) for one in parameters]
        self._steps = 0

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor | None], rate: Tensor) -> None:
        """One step; rate is (members, 1)."""
        self._steps += 1
        flat = [None if one is None else one.reshape(self.members, -1) for one in gradients]
        norm = torch.stack([one.square().sum(-1) for one in flat if one is not None]).sum(0).sqrt()[:, None]
        clip = (_CLIP / norm.clamp(min=_CLIP)).nan_to_num(nan=0.0)
        first, second = (1 - beta**self._steps for beta in _BETAS)
        for parameter, gradient, mean, square in zip(self.parameters, flat, self._means, self._squares, strict=True):
            if gradient is None:
                continue
            gradient = gradient * clip
            mean.lerp_(gradient, 1 - _BETAS[0])
            square.lerp_(gradient.square(), 1 - _BETAS[1])
            update = (mean / first) / ((square / second).sqrt() + _EPSILON)
            parameter.view(self.members, -1).sub_(rate * update)


def _stacked(batches: Sequence[Batch], copies: int) -> Batch:
    """The batches of the seeds as those of the members."""
    tokens = torch.stack([one.tokens for one in batches]).repeat_interleave(copies, 0)
    return Batch(tokens, torch.stack([one.target for one in batches]).repeat_interleave(copies, 0), None)


@torch.no_grad()
def validation_losses(model: Ensemble, task: Task, seeds: Sequence[int], copies: int) -> Tensor:
    """The loss of each member at the training length, on examples of a stream of their own; infinite instead of NaN."""
    drawn = [task.draw(stream(seed, _VALIDATION), VALIDATED, task.length) for seed in seeds]
    batch = _stacked(drawn, copies)
    losses = task.loss(model.forward(batch.tokens)[0], batch.target).mean((1, 2))
    return losses.nan_to_num(nan=math.inf)


@torch.no_grad()
def test(model: Ensemble, task: Task, seeds: Sequence[int], length: int, examples: int) -> list[dict[str, Any]]:
    """Test one member for each seed: the columns of the table that are measured."""
    examples = max(1, examples // task.examples_over)
    streams = [stream(seed, _TEST, length) for seed in seeds]
    rows = length if task.layers > 1 else 1
    chunk = max(1, min(examples, _LOGITS_AT_ONCE // (length * rows), _TOKENS_AT_ONCE // length))
    right, best, measured = torch.zeros(len(seeds)), torch.zeros(len(seeds)), None
    for start in range(0, examples, chunk):
        drawn = [task.draw(one, min(chunk, examples - start), length) for one in streams]
        batch = _stacked(drawn, 1)
        output, attended = model.forward(batch.tokens)
        right += task.right(task.answer(output), batch.target).float().mean(2).sum(1)
        best += torch.stack([task.right(task.best_guess(one), one.target).float().mean(1).sum() for one in drawn])
        if measured is None:
            measured = _measured(model, attended, drawn)
    assert measured is not None
    accuracy, ceiling = (right / examples).tolist(), (best / examples).tolist()
    return [
        {"accuracy": accuracy[i], "ceiling": ceiling[i]} | {name: values[i] for name, values in measured.items()}
        for i in range(len(seeds))
    ]


def _measured(model: Ensemble, attended: Attended, drawn: Sequence[Batch]) -> dict[str, list[Any]]:
    """The largest Jacobian norm of each member's rows, and the weight of the answer with its limit by Theorem S."""
    few = slice(0, _MEASURED)
    normalizer = model.rule.normalizer(model.modules[-1])
    norms = normalizer.jacobian_norm(attended.scaled[few], attended.visible) * attended.scale[..., 0]
    members = (model.members, -1)
    columns: dict[str, list[Any]] = {"jacobian_norm": norms.amax((0, 2)).view(members).amax(1).tolist()}
    columns |= {name: [None] * model.members for name in ("answer_weight", "answer_weight_limit")}
    if all(one.answer_keys is not None for one in drawn):
        answers = torch.stack([one.answer_keys[few] for one in drawn if one.answer_keys is not None], 1)
        columns["answer_weight"] = (attended.weights[few, :, 0] * answers).sum(-1).mean(0).tolist()
        if normalizer.facts.in_theorem_s and bool((answers.sum(-1) == 1).all()):
            n = torch.tensor([[float(answers.shape[-1])]])
            budget = model.rule.budget
            constant = (attended.scale * lipschitz(normalizer, n))[..., 0]
            constant = constant if budget == math.inf else torch.full_like(constant, budget)
            limit = top_weight_cap(attended.logits[few], constant.expand(attended.logits[few].shape[:-1]))
            columns["answer_weight_limit"] = limit[:, :, 0].mean(0).tolist()
    return columns
