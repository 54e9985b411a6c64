"""Training one ensemble, and testing its members at the training length and far beyond."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnscope.studies.recall.models import Attended, Ensemble, Rule, lipschitz
from attnscope.studies.recall.tasks import Batch, Position, Task
from attnscope.theory.selectivity import top_weight_cap

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
