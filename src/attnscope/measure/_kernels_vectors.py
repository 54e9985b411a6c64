"""Compiled loops: the vectors of a group in the forms that measuring needs, and distances between them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from attnscope._compiling import helper, loop, rounded


class Group(NamedTuple):
    """The vectors that some heads share, brought near size 1 by a power of two."""

    vectors: Any  # (keys, dims) float64
    norms: Any  # (keys,) |x|
    inverses: Any  # (keys,) 1 / |x|, 0 for a zero vector
    scale: float  # lengths are multiplied by it in the end


@loop
def prepare(source: Any, exponent: int, vectors: Any, norms: Any, inverses: Any, units: Any) -> None:
    """Fill the last four from `source`, the vectors multiplied by 2^-exponent; units: x / |x|, 0 for zero."""
    factor = math.ldexp(1.0, -exponent)
    for j in range(source.shape[0]):
        x = vectors[j]
        largest = 0.0
        for k in range(x.size):
            x[k] = source[j, k] * factor
            largest = max(largest, abs(x[k]))
        magnified = 1 / largest if 0 < largest < 1e-100 else 1.0  # squares must not vanish
        square = 0.0
        for k in range(x.size):
            square += (x[k] * magnified) * (x[k] * magnified)
        norms[j] = np.sqrt(square) / magnified
        inverses[j] = 1 / norms[j] if norms[j] > 1e-300 else 0.0
        for k in range(x.size):
            units[j, k] = x[k] * inverses[j]


@helper
def dot(x: Any, y: Any) -> float:
    total = 0.0
    for k in range(x.size):
        total += x[k] * y[k]
    return total


@helper
def squared_distance(x: Any, y: Any) -> float:
    total = 0.0
    for k in range(x.size):
        total += (x[k] - y[k]) * (x[k] - y[k])
    return total


@rounded
def squared_distance_of_units(group: Group, i: int, j: int) -> float:
    """|x_i/|x_i| - x_j/|x_j||^2, exactly zero if the two unit vectors are the same."""
    x, y, by_x, by_y = group.vectors[i], group.vectors[j], group.inverses[i], group.inverses[j]
    total = 0.0
    for k in range(x.size):
        difference = by_x * x[k] - by_y * y[k]
        total += difference * difference
    return total
