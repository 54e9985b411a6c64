"""Random sets of tokens: a sampled estimate of the expectation E of eq. (8), and the rank of the top set among them.

In a row with a sink, one token dominates the distance, and plain sampling includes it in only a share N/L of the draws.
So the draws are stratified on the token with the largest |y|: each draw permutes the other tokens and gives the
distance with that token inside and outside the set, and the mean weights the two by N/L and 1 - N/L. One of the two,
chosen with these probabilities, is a uniform random set; the ranks use it. For N = 1 all L sets are enumerated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from attnscope._numerics import loop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float, Int
    from torch import Tensor


TIE = 1e-5  # relative difference below which two distances tie: products are float32


class DrawStatistics(NamedTuple):
    """The expected distance, its standard error, and p-values of the top set among random sets.

    `p_high` is (1 + number of draws with at least the distance of the top set) / (1 + number of draws), `p_low` the
    same with at most its distance.
    """

    mean: Float[np.ndarray, "groups rows sets"]
    error: Float[np.ndarray, "groups rows sets"]
    p_high: Float[np.ndarray, "groups rows sets"]
    p_low: Float[np.ndarray, "groups rows sets"]


class _Orders(NamedTuple):
    """Random permutations of all tokens but the largest, and indicators of the sets they give."""

    ranks: Int[np.ndarray, "draws others"]
    uniforms: Float[np.ndarray, " draws"]
    outside: Float[Tensor, "draws_times_sizes others"]  # the first N of each permutation
    inside: Float[Tensor, "draws_times_sizes others"]  # the first N - 1, which join the largest


def draw_sets(
    weights: Float[Tensor, "groups rows keys"],
    vectors: Float[Tensor, "groups keys dims"],
    gram: Float[np.ndarray, "groups keys keys"],
    distance: Float[np.ndarray, "groups rows sets"],
    n: Sequence[int],
    draws: int,
    seed: int,
) -> DrawStatistics:
    """Statistics of random sets of each size `n` for each row; every key is visible.

    `gram` is the result of `profiles.products`, `distance` the distance of the top sets. The rows of one call share
    their permutations. Products are float32: their relative error, below 1e-5, is far below the sampling error.
    """
    groups, rows, keys = weights.shape
    statistics = DrawStatistics(*(np.empty((groups, rows, len(n))) for _ in range(4)))
    sizes = np.array([count for count in n if count > 1])
    sampled_columns = [column for column, count in enumerate(n) if count > 1]
    orders = _orders(keys, sizes, draws, seed) if len(sizes) else None
    norms = weights.square() * vectors.square().sum(-1).unsqueeze(1)
    for group, row in np.ndindex(groups, rows):
        for column in set(range(len(n))) - set(sampled_columns):
            top = float(distance[group, row, column])
            single = _enumerate_single_tokens(weights[group, row].numpy(), gram[group], top)
            for field, value in zip(statistics, single, strict=True):
                field[group, row, column] = value
        if orders is None:
            continue
        scaled = weights[group, row, :, None] * vectors[group]
        largest = int(norms[group, row].argmax())
        sampled = _sample(scaled.float(), norms[group, row].float(), largest, sizes, orders)
        tops = distance[group, row, sampled_columns]
        for field, values in zip(statistics, _summarize(sampled, orders.uniforms, sizes / keys, tops), strict=True):
            field[group, row, sampled_columns] = values
    return statistics


def _orders(keys: int, sizes: Int[np.ndarray, " sizes"], draws: int, seed: int) -> _Orders:
    random = np.random.default_rng(seed)
    ranks = random.permuted(np.tile(np.arange(keys - 1, dtype=np.int32), (draws, 1)), axis=1)
    uniforms = random.random(draws)
    outside, inside = (
        torch.from_numpy((ranks[:, None, :] < (sizes - less)[:, None]).astype(np.float32)).flatten(0, 1)
        for less in (0, 1)
    )
    return _Orders(ranks, uniforms, outside, inside)


def _sample(
    scaled: Float[Tensor, "keys dims"],
    norms: Float[Tensor, " keys"],
    largest: int,
    sizes: Int[np.ndarray, " sizes"],
    orders: _Orders,
) -> Float[np.ndarray, "2 draws sizes"]:
    """Distances of the sets of every permutation, with the largest token outside and inside."""
    draws = len(orders.ranks)
    first = [largest, *range(largest), *range(largest + 1, len(scaled))]  # the largest first, then the others in order
    y, squares = scaled[first], norms[first].numpy()
    contexts = torch.stack([orders.outside @ y[1:], orders.inside @ y[1:] + y[0]])
    products = (contexts @ y.T).unflatten(1, (draws, -1)).numpy()
    lengths = contexts.square().sum(-1).unflatten(1, (draws, -1)).numpy()
    sampled = np.empty((2, draws, len(sizes)))
    _distances(squares, products, lengths, orders.ranks, sizes, sampled)
    return sampled


@loop
def _distances(squares: Any, products: Any, lengths: Any, ranks: Any, sizes: Any, sampled: Any) -> None:
    zero = np.float32(0)
    two = np.float32(2)
    for side in range(2):
        for draw in range(ranks.shape[0]):
            rank = ranks[draw]
            for index in range(sizes.size):
                limit = sizes[index] - side
                row = products[side, draw, index]
                length = lengths[side, draw, index]
                total = zero if side else np.sqrt(max(squares[0] - two * row[0] + length, zero))
                others = row[1:]
                sizes_squared = squares[1:]
                for i in range(rank.size):
                    term = np.sqrt(max(sizes_squared[i] - two * others[i] + length, zero))
                    total += term if rank[i] >= limit else zero
                sampled[side, draw, index] = total


def _enumerate_single_tokens(
    weights: Float[np.ndarray, " keys"], gram: Float[np.ndarray, "keys keys"], top: float
) -> tuple[float, float, float, float]:
    """The fields of `DrawStatistics` for N = 1, from the sum over j of |y_j - y_i| for each i."""
    distances = np.empty(len(weights))
    _pair_sums(weights, weights**2 * gram.diagonal(), gram, distances)
    slack = TIE * top
    # The top set is one of the L sets, so the counts already include it.
    p_high = max(1, int((distances >= top - slack).sum())) / len(distances)
    p_low = max(1, int((distances <= top + slack).sum())) / len(distances)
    return float(distances.mean()), 0.0, p_high, p_low


@loop
def _pair_sums(weights: Any, squares: Any, gram: Any, sums: Any) -> None:
    for i in range(weights.size):
        square = squares[i]
        twice = 2 * weights[i]
        row = gram[i]
        total = 0.0
        for j in range(weights.size):
            total += np.sqrt(max(square + squares[j] - twice * weights[j] * row[j], 0.0))
        sums[i] = total


def _summarize(
    sampled: Float[np.ndarray, "2 draws sizes"],
    uniforms: Float[np.ndarray, " draws"],
    share: Float[np.ndarray, " sizes"],
    top: Float[np.ndarray, " sizes"],
) -> tuple[Float[np.ndarray, " sizes"], ...]:
    """The fields of `DrawStatistics` for every size."""
    outside, inside = sampled
    draws = len(outside)
    weighted = (1 - share) * outside + share * inside
    uniform = np.where(uniforms[:, None] < share, inside, outside)
    slack = TIE * top
    as_far, as_near = ((uniform >= top - slack).sum(0), (uniform <= top + slack).sum(0))
    error = weighted.std(axis=0, ddof=1) / np.sqrt(draws)
    return weighted.mean(0), error, (1 + as_far) / (1 + draws), (1 + as_near) / (1 + draws)
