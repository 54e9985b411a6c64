"""Compiled loops: the vectors of a group in the forms that measuring needs, and distances between them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from attnscope._compiling import helper, loop, rounded


class Group(NamedTuple):
    """The vectors that some heads share, brought near size 1 by a power of two."""

    vectors: Any  # (keys, dims) float64
    norms: Any  # (keys,) |x|
    inverses: Any  # (keys,) 1 / |x|, 0 for a zero vector
    scale: Any  # lengths are multiplied by it in the end


class Groups(NamedTuple):
    """Several groups: the fields of `Group` with a first axis."""

    vectors: Any
    norms: Any
    inverses: Any
    scales: Any


@helper
def dot(x: Any, y: Any) -> float:
    total = 0.0
    for k in range(x.size):
        total += x[k] * y[k]
    return total


@helper
def group_at(groups: Groups, g: int) -> Group:
    return Group(groups.vectors[g], groups.norms[g], groups.inverses[g], groups.scales[g])


@loop
def prepare(source: Any, groups: Groups, units: Any) -> None:
    """Fill vectors, norms, inverses and unit vectors, x / |x| or 0 for zero; source: (groups, keys, dims)."""
    for g in range(source.shape[0]):
        factor = 1 / groups.scales[g]
        for j in range(source.shape[1]):
            x, unit = groups.vectors[g, j], units[g, j]
            for k in range(x.size):
                x[k] = source[g, j, k] * factor
            norm = _norm(x)
            inverse = 1 / norm if norm > 1e-300 else 0.0
            groups.norms[g, j], groups.inverses[g, j] = norm, inverse
            for k in range(x.size):
                unit[k] = x[k] * inverse


@helper
def _norm(x: Any) -> float:
    square = dot(x, x)
    if square > 1e-200 or not square < np.inf:
        return np.sqrt(square)
    longest = square = 0.0  # squares have vanished, or nearly
    for k in range(x.size):
        longest = max(longest, abs(x[k]))
    for k in range(x.size):
        square += (x[k] / longest) * (x[k] / longest)
    return longest * np.sqrt(square) if longest > 0 else 0.0


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
