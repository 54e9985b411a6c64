"""Eq. (8): the distance over random sets, by enumerating every set or by sampling.

The expectation E of Theorem 1(2) is the mean of these distances; their variance is what E4 bounds.
"""

from __future__ import annotations

import math
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import torch

from attnscope.errors import InputError
from attnscope.theory.configuration import Configuration
from attnscope.theory.distance import distance

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

MOST_SETS = 20_000


class Estimate(NamedTuple):
    """A mean and its standard error.

    >>> Estimate(torch.tensor(0.5), torch.tensor(0.1)).mean
    tensor(0.5000)
    """

    mean: Tensor
    error: Tensor


def every_distance(
    weights: Float[Tensor, "*batch rows keys"], vectors: Float[Tensor, "*batch keys dims"], n: int
) -> Float[Tensor, "*batch rows sets"]:
    """d~ of each of the C(L, n) sets of n tokens, in lexicographic order; all keys are visible.

    >>> weights, vectors = torch.full((1, 4), 0.25), torch.ones(4, 1)
    >>> every_distance(weights, vectors, 3).mean()
    tensor(0.5000)

    Parameters
    ----------
    weights : (..., rows, keys)
        Weights of each row, nonnegative.
    vectors : (..., keys, dims)
        The vectors that the weights average.
    n
        N, the size of the sets.

    Returns
    -------
    (..., rows, sets)
        A distance for each set, in the unit of the vectors.
    """
    keys = weights.shape[-1]
    if not 0 <= n <= keys or math.comb(keys, n) > MOST_SETS:
        raise InputError(
            f"cannot enumerate the sets of {n} among {keys} tokens (limit {MOST_SETS} sets): draw sets instead"
        )
    sets = torch.tensor(list(combinations(range(keys), n)), dtype=torch.long, device=weights.device).reshape(-1, n)
    chosen = torch.zeros(len(sets), keys, dtype=torch.bool, device=weights.device).scatter_(-1, sets, True)
    return distance(_with_sets(weights, vectors, chosen.expand(*weights.shape[:-1], *chosen.shape)))


def expectation_exhaustive(
    weights: Float[Tensor, "*batch rows keys"], vectors: Float[Tensor, "*batch keys dims"], n: int
) -> Float[Tensor, "*batch rows"]:
    """E of eq. (8), exact, by enumerating every set.

    >>> weights, vectors = torch.full((1, 4), 0.25), torch.ones(4, 1)
    >>> expectation_exhaustive(weights, vectors, 3)
    tensor([0.5000])

    Parameters
    ----------
    weights : (..., rows, keys)
        Weights of each row, nonnegative.
    vectors : (..., keys, dims)
        The vectors that the weights average.
    n
        N, the size of the sets.

    Returns
    -------
    (..., rows)
        E, in the unit of the vectors.
    """
    return every_distance(weights, vectors, n).mean(-1)


def expectation_drawn(
    weights: Float[Tensor, "*batch rows keys"],
    vectors: Float[Tensor, "*batch keys dims"],
    n: int,
    draws: int,
    generator: torch.Generator,
) -> Estimate:
    """Estimate of E of eq. (8) from `draws` random sets per row, with its standard error.

    >>> weights, vectors = torch.full((1, 4), 0.25), torch.ones(4, 1)
    >>> estimate = expectation_drawn(weights, vectors, 3, draws=100, generator=torch.Generator().manual_seed(0))
    >>> estimate.mean
    tensor([0.5000])

    Parameters
    ----------
    weights : (..., rows, keys)
        Weights of each row, nonnegative.
    vectors : (..., keys, dims)
        The vectors that the weights average.
    n
        N, the size of the sets.
    draws
        How many sets are drawn for each row.
    generator
        Draws the sets.

    Returns
    -------
    Estimate
        Mean and standard error, (..., rows), in the unit of the vectors.
    """
    scores = torch.rand(*weights.shape[:-1], draws, weights.shape[-1], generator=generator)
    chosen = scores.argsort(-1).argsort(-1) < n
    distances = distance(_with_sets(weights, vectors, chosen.to(weights.device)))
    return Estimate(distances.mean(-1), distances.std(-1) / math.sqrt(draws))


def _with_sets(weights: Tensor, vectors: Tensor, selected: Tensor) -> Configuration:
    return Configuration(weights, vectors, torch.ones_like(weights, dtype=torch.bool), selected)
