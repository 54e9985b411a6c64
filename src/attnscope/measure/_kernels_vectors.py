"""Vectors of groups of heads, prepared for measuring, and compiled loops for the distances between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnscope._compiling import helper, loop, rounded

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Group(NamedTuple):
    """The vectors shared by a group of heads, scaled by a power of two to sizes near 1."""

    vectors: Any  # (keys, dims)
    units: Any  # (keys, dims) x / |x|, 0 for a zero vector
    norms: Any  # (keys,) |x|
    inverses: Any  # (keys,) 1 / |x|, 0 for a zero vector
    scale: Any  # results are multiplied by it in the end


class Groups(NamedTuple):
    """Several groups: the fields of `Group` with a first axis."""

    vectors: Any
    units: Any
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
    return Group(groups.vectors[g], groups.units[g], groups.norms[g], groups.inverses[g], groups.scales[g])


def prepare_groups(source: NDArray[np.floating]) -> Groups:
    """The vectors (groups, keys, dims) as `Groups`."""
    sizes = np.maximum(source.max((1, 2)), -source.min((1, 2))).astype(np.float64)
    exponents = np.where((sizes > 0) & (sizes < np.inf), np.frexp(sizes)[1], 0)
    vectors, units = np.empty((2, *source.shape))
    norms, inverses = np.empty((2, *source.shape[:2]))
    groups = Groups(vectors, units, norms, inverses, np.ldexp(1.0, exponents))
    _prepare(source, groups)
    return groups


@loop
def _prepare(source: Any, groups: Groups) -> None:
    """Fill all but the scales; source: (groups, keys, dims)."""
    for g in range(source.shape[0]):
        factor = 1 / groups.scales[g]
        for j in range(source.shape[1]):
            x, unit = groups.vectors[g, j], groups.units[g, j]
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
    longest = square = 0.0  # squares have underflowed, or nearly so
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
