"""Search for violations near configurations that almost violate a form, and shrink a violation to the smallest one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.studies.audit.contract import Case, Space

NEIGHBORS = 48


def take(case: Case, index: Tensor | Sequence[int]) -> Case:
    """The configurations of a batch at an index or under a mask."""
    chosen = torch.as_tensor(index)
    return {name: value[chosen] for name, value in case.items()}


def attack(
    space: Space[Any],
    excess: Callable[[Case], Tensor],
    start: tuple[float, Case],
    generator: torch.Generator,
    rounds: int,
) -> tuple[tuple[float, Case], int]:
    """Climb the excess by random variations; the worst configuration reached, and how many were evaluated."""
    best, case = start
    tried = 0
    for _ in range(rounds):
        near = neighbors(space, case, generator)
        near = take(near, space.valid(near))
        count = len(next(iter(near.values())))
        tried += count
        if count:
            over = excess(near)
            index = int(over.argmax())
            if float(over[index]) > best:
                best, case = float(over[index]), take(near, [index])
    return (best, case), tried


def neighbors(space: Space[Any], case: Case, generator: torch.Generator) -> Case:
    """Random variations of one configuration: rescaled, shifted, zeroed or equalized entries."""
    near: Case = {}
    for name, value in case.items():
        copies = value.expand(NEIGHBORS, *value.shape[1:]).clone()
        if not copies.numel():
            near[name] = copies
            continue
        if name in space.integers:
            step = torch.randint(-1, 2, copies.shape, generator=generator).to(copies.dtype)
            near[name] = (copies + step).clamp_min(0)
            continue
        touched = torch.rand(copies.shape, generator=generator) < 0.5
        size = torch.exp(
            2 * torch.randn(NEIGHBORS, *[1] * (copies.dim() - 1), generator=generator, dtype=copies.dtype) - 2
        )
        noise = size * torch.randn(copies.shape, generator=generator, dtype=copies.dtype)
        moved = torch.where(touched, copies * (1 + noise), copies)
        shifted = torch.where(touched, copies + noise, copies)
        zeroed = torch.where(touched, torch.zeros_like(copies), copies)
        equal = torch.where(touched, copies.reshape(NEIGHBORS, -1)[:, 0].reshape(-1, *[1] * (copies.dim() - 1)), copies)
        kinds = torch.stack([moved, shifted, zeroed, equal, copies])
        choice = torch.randint(len(kinds), (NEIGHBORS,), generator=generator)
        near[name] = kinds[choice, torch.arange(NEIGHBORS)]
    return near


MOST_PASSES = 6
# A counterexample should be violated by a relative excess that a reader can see, where one exists.
NOTICEABLE = 0.02
SIMPLE = (0.0, 1.0, -1.0, 2.0, -2.0, 3.0, 4.0, 5.0, 10.0, 100.0, 0.5, 0.1)


def shrink(space: Space[Any], excess: Callable[[Case], Tensor], case: Case) -> tuple[tuple[int, float], Case]:
    """The smallest configuration reached by greedy steps, with its size and the cost of its numbers.

    A step deletes one index of an axis or replaces numbers by simpler ones, and is taken if the inequality is still
    violated. The candidates of one step are evaluated as one batch; passes are repeated until none succeeds.
    """
    enough = min(NOTICEABLE, float(excess(case)[0]) / 2)

    def first(candidates: Case) -> Case | None:
        """The first candidate that is valid and still violates."""
        valid = space.valid(candidates).nonzero().flatten()
        if not len(valid):
            return None
        over = excess({name: value[valid] for name, value in candidates.items()}) > enough
        if not over.any():
            return None
        index = valid[int(over.to(torch.uint8).argmax())]
        return {name: value[index : index + 1] for name, value in candidates.items()}

    reached = [case]  # the last is the smallest so far
    for _ in range(MOST_PASSES):
        steps = len(reached)
        for candidates in _steps(space, reached):
            smaller = first(candidates)
            if smaller is not None:
                reached.append(smaller)
        if len(reached) == steps:
            break
    case = reached[-1]
    size = sum(value.numel() for value in case.values())
    return (size, float(sum(_cost(value).sum() for value in case.values()))), case


def _steps(space: Space[Any], reached: list[Case]) -> Iterator[Case]:
    """Batches of candidates of one pass, each made from the smallest configuration reached so far."""
    for axis in dict.fromkeys(name for names in space.axes.values() for name in names):
        least = space.least.get(axis, 1)
        while (size := _size(space, reached[-1], axis)) >= 2 * max(least, 1):
            yield _restricted(space, reached[-1], axis, [torch.arange(size // 2)])
            if _size(space, reached[-1], axis) == size:
                break
        while (size := _size(space, reached[-1], axis)) > least:
            indices = torch.arange(size)
            yield _restricted(space, reached[-1], axis, [indices[indices != k] for k in reversed(range(size))])
            if _size(space, reached[-1], axis) == size:
                break
    for name, value in reached[-1].items():
        yield from _replaced(reached[-1], name, _simpler(value))
        for index in range(reached[-1][name].numel()):
            flat = reached[-1][name].flatten()
            options = _options(float(flat[index]), name in space.integers)
            changed = [torch.where(torch.arange(len(flat)) == index, option, flat) for option in options]
            yield from _replaced(reached[-1], name, [new.reshape(reached[-1][name].shape) for new in changed])


def _size(space: Space[Any], case: Case, axis: str) -> int:
    return next(case[name].shape[1 + names.index(axis)] for name, names in space.axes.items() if axis in names)


def _restricted(space: Space[Any], case: Case, axis: str, choices: list[Tensor]) -> Case:
    """One configuration per choice of indices, with only those indices of the axis."""
    candidates: Case = {}
    for name, value in case.items():
        names = space.axes[name]
        if axis in names:
            candidates[name] = torch.cat([value.index_select(1 + names.index(axis), indices) for indices in choices])
        else:
            candidates[name] = value.expand(len(choices), *value.shape[1:])
    return candidates


def _replaced(case: Case, name: str, values: list[Tensor]) -> Iterator[Case]:
    """The configurations with another value of one parameter, for the values simpler than the present one."""
    present = _cost(case[name]).sum()
    simpler = [value for value in values if _cost(value).sum() < present]
    if simpler:
        candidates = {other: value.expand(len(simpler), *value.shape[1:]) for other, value in case.items()}
        yield {**candidates, name: torch.cat(simpler)}


def _simpler(value: Tensor) -> list[Tensor]:
    """All numbers of a parameter simplified at once."""
    rounded = [value.round(decimals=digits) for digits in (0, 1, 2)]
    alike = [value[:, :1].expand_as(value)] if value.dim() > 1 and value.shape[1] else []
    return [torch.ones_like(value), torch.zeros_like(value), *alike, *rounded]


def _options(number: float, integer: bool) -> list[float]:
    if integer:
        return [0.0, 1.0, 2.0, number - 1]
    return [*SIMPLE, float(round(number)), round(number, 1), round(number, 2)]


def _cost(values: Tensor) -> Tensor:
    """How hard numbers are to compute with by hand: least for 0 and 1, then small integers, one decimal, two."""
    cost = torch.full_like(values, 50.0)
    cost = torch.where(values == values.round(decimals=2), 8.0, cost)
    cost = torch.where(values == values.round(decimals=1), 6.0, cost)
    cost = torch.where(values == values.round(), 3.0 + values.abs().clamp_max(50) / 25, cost)
    cost = torch.where(values == -1, 2.0, cost)
    return torch.where((values == 1) | (values == 0), 1.0, cost)
