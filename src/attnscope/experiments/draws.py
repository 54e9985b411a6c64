"""Random sets of tokens: the expectation E of eq. (8) by drawing, and how the top set ranks among them.

A row with a sink has one token that decides the distance. Plain sampling meets it in a share N/L of the draws only,
and says nothing when it does not. So the draws are stratified on the largest |y|: each orders the other tokens at
random and gives the distance with that token inside the set and outside; the mean weights the two by N/L and 1 - N/L.
One of the two, chosen with those chances, is a uniform random set, and the ranks use it. N = 1 has L sets: all are
visited.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from attnscope._compiling import loop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float, Int
    from torch import Tensor


# Distances nearer than this share tie: products are float32.
TIE = 1e-5


class Drawn(NamedTuple):
    """The expected distance, its standard error, and the rank of the top set among random sets.

    `p_high` is (1 + draws at least as far as the top set) / (1 + draws), `p_low` the same for as near.
    """

    mean: Float[np.ndarray, "groups rows sets"]
    error: Float[np.ndarray, "groups rows sets"]
    p_high: Float[np.ndarray, "groups rows sets"]
    p_low: Float[np.ndarray, "groups rows sets"]


class _Orders(NamedTuple):
    """Random orders of all tokens but one, and the sets they give."""

    ranks: Int[np.ndarray, "draws others"]
    chances: Float[np.ndarray, " draws"]
    outside: Float[Tensor, "draws_times_sizes others"]  # the first N of each order
    inside: Float[Tensor, "draws_times_sizes others"]  # the first N - 1, beside the largest


def draw_sets(
    weights: Float[Tensor, "groups rows keys"],
    vectors: Float[Tensor, "groups keys dims"],
    gram: Float[np.ndarray, "groups keys keys"],
    distance: Float[np.ndarray, "groups rows sets"],
    n: Sequence[int],
    draws: int,
    seed: int,
) -> Drawn:
    """Random sets of each size for each row; `distance` is that of the top sets. Every key is visible.

    `gram` is that of `profiles.products`. The rows of one call share their random orders. Products are float32: their
    error, below 1e-5 of a distance, is far below that of the draws.
    """
    groups, rows, keys = weights.shape
    found = Drawn(*(np.empty((groups, rows, len(n))) for _ in range(4)))
    sizes = np.array([count for count in n if count > 1])
    places = [place for place, count in enumerate(n) if count > 1]
    orders = _orders(keys, sizes, draws, seed) if len(sizes) else None
    norms = weights.square() * vectors.square().sum(-1).unsqueeze(1)
    for group, row in np.ndindex(groups, rows):
        for place in set(range(len(n))) - set(places):
            top = float(distance[group, row, place])
            _visit_every_token(weights[group, row].numpy(), gram[group], top, found, (group, row, place))
        if orders is None:
            continue
        scaled = weights[group, row, :, None] * vectors[group]
        largest = int(norms[group, row].argmax())
        sampled = _sample(scaled.float(), norms[group, row].float(), largest, sizes, orders)
        tops = distance[group, row, places]
        for part, values in zip(found, _summarize(sampled, orders.chances, sizes / keys, tops), strict=True):
            part[group, row, places] = values
    return found


def _orders(keys: int, sizes: Int[np.ndarray, " sizes"], draws: int, seed: int) -> _Orders:
    random = np.random.default_rng(seed)
    ranks = random.permuted(np.tile(np.arange(keys - 1, dtype=np.int32), (draws, 1)), axis=1)
    chances = random.random(draws)
    outside, inside = (
        torch.from_numpy((ranks[:, None, :] < (sizes - less)[:, None]).astype(np.float32)).flatten(0, 1)
        for less in (0, 1)
    )
    return _Orders(ranks, chances, outside, inside)


def _sample(
    scaled: Float[Tensor, "keys dims"],
    norms: Float[Tensor, " keys"],
    largest: int,
    sizes: Int[np.ndarray, " sizes"],
    orders: _Orders,
) -> Float[np.ndarray, "2 draws sizes"]:
    """Distances of the sets of every order, the largest outside and inside."""
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


def _visit_every_token(
    weights: Float[np.ndarray, " keys"],
    gram: Float[np.ndarray, "keys keys"],
    top: float,
    found: Drawn,
    place: tuple[int, ...],
) -> None:
    """N = 1: the sum over j of |y_j - y_i| for each i."""
    distances = np.empty(len(weights))
    _pair_sums(weights, weights**2 * gram.diagonal(), gram, distances)
    slack = TIE * top
    found.mean[place] = distances.mean()
    found.error[place] = 0.0
    # The top set is one of the L sets, so the counts have it already.
    found.p_high[place] = max(1, int((distances >= top - slack).sum())) / len(distances)
    found.p_low[place] = max(1, int((distances <= top + slack).sum())) / len(distances)


@loop
def _pair_sums(weights: Any, squares: Any, gram: Any, sums: Any) -> None:
    for i in range(weights.size):
        own = squares[i]
        twice = 2 * weights[i]
        row = gram[i]
        total = 0.0
        for j in range(weights.size):
            total += np.sqrt(max(own + squares[j] - twice * weights[j] * row[j], 0.0))
        sums[i] = total


def _summarize(
    sampled: Float[np.ndarray, "2 draws sizes"],
    chances: Float[np.ndarray, " draws"],
    share: Float[np.ndarray, " sizes"],
    top: Float[np.ndarray, " sizes"],
) -> tuple[Float[np.ndarray, " sizes"], ...]:
    """The fields of `Drawn` for every size."""
    outside, inside = sampled
    draws = len(outside)
    weighted = (1 - share) * outside + share * inside
    uniform = np.where(chances[:, None] < share, inside, outside)
    slack = TIE * top
    as_far, as_near = ((uniform >= top - slack).sum(0), (uniform <= top + slack).sum(0))
    error = weighted.std(axis=0, ddof=1) / np.sqrt(draws)
    return weighted.mean(0), error, (1 + as_far) / (1 + draws), (1 + as_near) / (1 + draws)
