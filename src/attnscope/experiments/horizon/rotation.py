"""The rotation that a layer applies to its keys, found from the keys themselves at several positions.

Rotary positions turn the vector of a token at position p by the angle p theta in each of several planes. Families
differ in how the planes lie in the vector, in how much of it they turn, and in how the angles follow from the
configuration (plain, linear, llama3, YaRN, ...). None of that is assumed: `fit_rotation` compares the keys of the same
tokens at several positions, tries every usual arrangement of planes, and measures the angles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


class Planes(NamedTuple):
    """The two dimensions of each plane, as slices of a vector."""

    first: slice
    second: slice


@dataclass(frozen=True, eq=False)
class Rotation:
    """Turns each plane of a vector by its angle for every position that the vector moves.

    >>> quarter = Rotation(Planes(slice(0, 1), slice(1, 2)), torch.tensor([math.pi / 2], dtype=torch.float64))
    >>> quarter.moved(torch.tensor([[1.0, 0.0, 5.0]]), torch.tensor([1])).round()
    tensor([[0., 1., 5.]])
    """

    planes: Planes
    angles: Float[Tensor, " planes"]  # radians for one position, float64

    def moved(self, vectors: Float[Tensor, "*some dims"], by: Int[Tensor, "*some"]) -> Float[Tensor, "*some dims"]:
        """The vectors as they would be `by` positions later, or earlier where it is negative."""
        angle = by[..., None].double() * self.angles.to(by.device)
        cos, sin = angle.cos().to(vectors.dtype), angle.sin().to(vectors.dtype)
        a, b = vectors[..., self.planes.first], vectors[..., self.planes.second]
        result = vectors.clone()
        result[..., self.planes.first] = a * cos - b * sin
        result[..., self.planes.second] = a * sin + b * cos
        return result


def fit_rotation(vectors: Mapping[int, Float[Tensor, "some dims"]]) -> Rotation:
    """The rotation that comes nearest to giving `vectors[p]` from `vectors[0]` for every position p.

    The positions include 0 and 1, and each is at most eight times the one before. How good the rotation is, is for
    `misfit` to say.
    """
    start = vectors[0].double()
    last = vectors[max(vectors)].double()
    planes = min(_arrangements(start.shape[-1]), key=lambda each: _residual(each, start, last))
    angles = torch.zeros(len(start[0, planes.first]), dtype=torch.float64)
    for position in sorted(vectors)[1:]:
        measured = _turned_by(planes, start, vectors[position].double()).angle()
        turns = torch.round((position * angles - measured) / (2 * math.pi)) if position > 1 else 0
        angles = (measured + 2 * math.pi * turns) / position
    return Rotation(planes, angles)


def misfit(rotation: Rotation, vectors: Mapping[int, Float[Tensor, "some dims"]]) -> float:
    """The largest relative error of `vectors[p]` as `vectors[0]` moved by p, over all positions."""
    start = vectors[0].double()
    by = torch.ones(len(start), dtype=torch.long)
    return max(relative_change(rotation.moved(start, by * position), at) for position, at in vectors.items())


def relative_change(before: Tensor, after: Tensor) -> float:
    """|after - before| / |before|, over all numbers."""
    before, after = before.double(), after.double()
    return float((after - before).norm() / before.norm().clamp_min(1e-30))


def _arrangements(dims: int) -> Iterator[Planes]:
    """Neighboring dimensions, and two halves of the whole vector, of its first or of its last dimensions."""
    even = dims // 2 * 2
    yield Planes(slice(0, even, 2), slice(1, even, 2))
    for half in range(1, dims // 2 + 1):
        for first in {0, dims - 2 * half}:
            yield Planes(slice(first, first + half), slice(first + half, first + 2 * half))


def _complex(planes: Planes, vectors: Tensor) -> Tensor:
    return torch.complex(vectors[:, planes.first], vectors[:, planes.second])


def _turned_by(planes: Planes, start: Tensor, end: Tensor) -> Tensor:
    """The complex factor of each plane that takes `start` nearest to `end`."""
    a, b = _complex(planes, start), _complex(planes, end)
    return (a.conj() * b).sum(0) / a.abs().square().sum(0).clamp_min(1e-30)


def _residual(planes: Planes, start: Tensor, end: Tensor) -> float:
    """The squared error of `start` turned as well as possible in these planes and unchanged elsewhere."""
    factor = _turned_by(planes, start, end)
    inside = (_complex(planes, end) - factor * _complex(planes, start)).abs().square().sum()
    change = (end - start).square().sum(0)
    outside = change.sum() - change[planes.first].sum() - change[planes.second].sum()
    return float(inside + outside)
