"""Search for violations near configurations that almost violate a form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.theory.audit.contract import Case, Space

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
