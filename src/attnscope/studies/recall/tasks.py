"""The tasks of `attnscope recall`: what a model reads, what it is asked, and what the right answer is.

| task | the items | the answer | layers |
|---|---|---|---|
| max | a priority in [0, 1], one in each n-th part of it, and a class | the class of the largest priority | 1 |
| needle | a direction and a class; one direction is the query's, with noise | the class of that item | 1 |
| needles | the same with 4 such items, and numbers for classes | the mean of their numbers | 1 |
| mean | a direction and a number | the mean of all numbers, whatever is asked | 1 |
| lookback | a class | the class 3 positions before the query | 1 |
| mqar | pairs of a key and a value among filler, then keys | the value of each key (Arora et al. 2023) | 2 |

A model of one layer sees n items and one query, which attends to all items and not to itself. In `mqar` (multi-query
associative recall) all n tokens are one causal sequence. A number is right if it is within 0.1 of the answer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn import functional

from attnscope.errors import InputError, shown

Position = Literal["none", "rope", "alibi"]

CLASSES = 10
DIRECTIONS = 16  # size of the vectors by which items are found
NOISE = {1: 0.12, 4: 0.04}  # of the directions of needles, in each coordinate: several must also look alike
TOLERANCE = 0.1


class Batch(NamedTuple):
    """Examples of a task. The last `asked` tokens are queries."""

    tokens: Tensor  # (batch, tokens, features)
    target: Tensor  # (batch, asked): a class, or a number
    answer_keys: Tensor | None  # (batch, keys): the items that hold the answer, where one query asks for some of them


class Task(ABC):
    """A task: how examples are drawn, and the architecture that it needs."""

    name: ClassVar[str]
    features: ClassVar[int]
    outputs: ClassVar[int] = CLASSES  # 1 for a number
    layers: ClassVar[int] = 1
    heads: ClassVar[int] = 1
    width: ClassVar[int] = 32
    asked: ClassVar[int] = 1
    length: ClassVar[int] = 32  # the longest length of training
    steps: ClassVar[int] = 600
    examples_over: ClassVar[int] = 1  # tests have so many times fewer examples than asked for
    position: ClassVar[Position] = "none"

    @property
    def shortest(self) -> int:
        """The shortest length of training."""
        return max(self.length // 4, 4 * self.asked)

    @abstractmethod
    def draw(self, generator: Generator, batch: int, length: int) -> Batch:
        """Examples of `length` items."""

    def best_guess(self, batch: Batch) -> Tensor:
        """What a reader who knows the task answers, (batch, asked): the target, unless noise can hide it."""
        return batch.target

    def right(self, guess: Tensor, target: Tensor) -> Tensor:
        """Which answers (..., asked) are right."""
        return (guess - target).abs() <= TOLERANCE if self.outputs == 1 else guess == target

    def answer(self, output: Tensor) -> Tensor:
        """The answers (..., asked) in outputs (..., asked, outputs)."""
        return output.squeeze(-1) if self.outputs == 1 else output.argmax(-1)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Cross-entropy or squared error of each output."""
        if self.outputs == 1:
            return (output.squeeze(-1) - target).square()
        flat = functional.cross_entropy(output.reshape(-1, self.outputs), target.reshape(-1), reduction="none")
        return flat.view(target.shape)


class Max(Task):
    """The class of the item with the largest priority (Velickovic et al. 2024)."""

    name = "max"
    features = CLASSES + 2  # priority, class, whether it is the query
    length = 16
    steps = 800

    def draw(self, generator: Generator, batch: int, length: int) -> Batch:
        """One priority in each n-th part of [0, 1]: near-ties at the top, which no model resolves, are rare."""
        parts = torch.rand(batch, length, generator=generator).argsort(-1)
        priority = (parts + torch.rand(batch, length, generator=generator)) / length
        classes = torch.randint(CLASSES, (batch, length), generator=generator)
        spread = (priority - 0.5) * 12**0.5  # of variance 1, as a network expects its inputs
        items = torch.cat([spread[..., None], functional.one_hot(classes, CLASSES)], -1)
        best = priority.argmax(-1, keepdim=True)
        return Batch(_with_query(items), classes.gather(1, best), functional.one_hot(best[:, 0], length).bool())


class Needle(Task):
    """The class of the item whose direction is, up to noise, that of the query."""

    name = "needle"
    features = DIRECTIONS + CLASSES + 1

    def draw(self, generator: Generator, batch: int, length: int) -> Batch:
        """The other directions are uniform on the sphere."""
        directions, query, needles = _hidden_needles(generator, batch, length, 1)
        classes = torch.randint(CLASSES, (batch, length), generator=generator)
        items = torch.cat([directions, functional.one_hot(classes, CLASSES)], -1)
        return Batch(_with_query(items, query), classes[needles][:, None], needles)

    def best_guess(self, batch: Batch) -> Tensor:
        """The class of the item nearest to the query."""
        nearest = _nearest(batch.tokens, 1)
        return batch.tokens[:, :-1, DIRECTIONS:-1].argmax(-1).gather(1, nearest)


class Needles(Task):
    """The mean of the numbers of the 4 items whose directions are, up to noise, that of the query."""

    name = "needles"
    features = DIRECTIONS + 2
    outputs = 1
    count: ClassVar[int] = 4

    def draw(self, generator: Generator, batch: int, length: int) -> Batch:
        """Numbers are uniform in [-1, 1]."""
        directions, query, needles = _hidden_needles(generator, batch, length, self.count)
        values = 2 * torch.rand(batch, length, generator=generator) - 1
        target = values[needles].view(batch, self.count).mean(-1, keepdim=True)
        return Batch(_with_query(torch.cat([directions, values[..., None]], -1), query), target, needles)

    def best_guess(self, batch: Batch) -> Tensor:
        """The mean over the 4 items nearest to the query."""
        nearest = _nearest(batch.tokens, self.count)
        return batch.tokens[:, :-1, DIRECTIONS].gather(1, nearest).mean(-1, keepdim=True)


class Mean(Task):
    """The mean of the numbers of all items; the directions of items and query say nothing."""

    name = "mean"
    features = DIRECTIONS + 2
    outputs = 1
    steps = 400

    def draw(self, generator: Generator, batch: int, length: int) -> Batch:
        """Numbers have a mean of their own in each example, else the mean of a long one could be guessed."""
        directions, query, _ = _hidden_needles(generator, batch, length, 0)
        center = 2 * torch.rand(batch, 1, generator=generator) - 1
        values = center + 0.5 * torch.randn(batch, length, generator=generator)
        items = torch.cat([directions, values[..., None]], -1)
        return Batch(_with_query(items, query), values.mean(-1, keepdim=True), torch.ones(batch, length).bool())


class Lookback(Task):
    """The class of the item 3 positions before the query: a task of position alone."""

    name = "lookback"
    features = CLASSES + 1
    position = "rope"
    steps = 400
    back: ClassVar[int] = 3

    def draw(self, generator: Generator, batch: int, length: int) -> Batch:
        """Classes are uniform."""
        classes = torch.randint(CLASSES, (batch, length), generator=generator)
        items = functional.one_hot(classes, CLASSES).float()
        answer = torch.zeros(batch, length, dtype=torch.bool)
        answer[:, -self.back] = True
        return Batch(_with_query(items), classes[:, -self.back :][:, :1], answer)


class MQAR(Task):
    """Multi-query associative recall: 4 pairs of a key and a value at random places, then the keys in random order."""

    name = "mqar"
    pairs: ClassVar[int] = 4
    keys: ClassVar[int] = 16
    filler: ClassVar[int] = 16
    features = keys + CLASSES + filler
    layers, heads, width, asked = 2, 2, 64, pairs
    examples_over = 2 * pairs  # each asks several questions, and costs the square of its length
    steps = 1000
    position = "rope"

    def draw(self, generator: Generator, batch: int, length: int) -> Batch:
        """Pairs take two neighboring places; what is left is filler."""
        tokens = self.keys + CLASSES + torch.randint(self.filler, (batch, length), generator=generator)
        keys = torch.rand(batch, self.keys, generator=generator).argsort(-1)[:, : self.pairs]
        values = torch.randint(CLASSES, (batch, self.pairs), generator=generator)
        slots = torch.rand(batch, (length - self.pairs) // 2, generator=generator).argsort(-1)[:, : self.pairs]
        tokens.scatter_(1, 2 * slots, keys)
        tokens.scatter_(1, 2 * slots + 1, self.keys + values)
        order = torch.rand(batch, self.pairs, generator=generator).argsort(-1)
        tokens[:, -self.pairs :] = keys.gather(1, order)
        return Batch(functional.one_hot(tokens, self.features).float(), values.gather(1, order), None)


TASKS: dict[str, Task] = {task.name: task for task in (Max(), Needle(), Needles(), Mean(), Lookback(), MQAR())}


def find_task(name: str) -> Task:
    """The task of this name."""
    if name not in TASKS:
        raise InputError(f"no task is named {shown(name)}: choose from {', '.join(TASKS)}")
    return TASKS[name]


def _hidden_needles(generator: Generator, batch: int, length: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Unit vectors of the items, that of the query, and which items are near it (`count` at random places)."""
    directions = functional.normalize(torch.randn(batch, length, DIRECTIONS, generator=generator), dim=-1)
    query = functional.normalize(torch.randn(batch, 1, DIRECTIONS, generator=generator), dim=-1)
    ranks = torch.rand(batch, length, generator=generator).argsort(-1).argsort(-1)
    needles = ranks < count
    near = query + NOISE.get(count, 0.0) * torch.randn(directions.shape, generator=generator)
    return torch.where(needles[..., None], functional.normalize(near, dim=-1), directions), query, needles


def _nearest(tokens: Tensor, count: int) -> Tensor:
    """The items whose directions are nearest to that of the query, (batch, count)."""
    directions = tokens[..., :DIRECTIONS]
    return (directions[:, :-1] @ directions[:, -1:].mT).squeeze(-1).topk(count, -1).indices


def _with_query(items: Tensor, query: Tensor | None = None) -> Tensor:
    """The items and the query as tokens; the last feature marks the query."""
    batch, length, features = items.shape
    tokens = torch.zeros(batch, length + 1, features + 1)
    tokens[:, :-1, :-1] = items
    if query is not None:
        tokens[:, -1:, : query.shape[-1]] = query
    tokens[:, -1, -1] = 1
    return tokens
