"""Algorithms 1, 2 and 4: distance, expectation and separability of the top sets of some sizes, summed over rows.

The columns of a row are those of a scan (`attnscope.measure`). In the literal reading all L keys are visible, and those
after the row have weight zero; each length is a pass over its leading block of rows and keys. In the visible reading
one pass serves all lengths, except for the bounds of Theorem 2, whose delta is that of the window's L unit vectors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from attnscope._numerics import exp, loop
from attnscope.measure import Rows, Visibility, columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

COLUMNS = {  # by their names in a scan
    "distance": "distance",
    "bound_printed": "distance_bound_printed",
    "expected_printed": "expected_printed",
    "expected_lower": "expected_lower",
    "expected_upper": "expected_upper",
    "separability": "separability",
    "separability_closed": "separability_closed",
    "lower_printed": "separability_lower_printed",
    "upper_printed": "separability_upper_printed",
}


class HeadRows(NamedTuple):
    """Some consecutive rows of one head."""

    logits: Tensor  # (1, rows, keys)
    weights: Tensor  # (1, rows, keys), zero on keys that are not visible
    visibility: Visibility
    positions: NDArray[np.int64]  # (rows,) ascending; a row belongs to every length above its position


class SetSums(NamedTuple):
    """Sums over rows, and how many rows."""

    sums: NDArray[np.float64]  # (literal and visible, lengths, columns, sizes)
    rows: NDArray[np.int64]  # (literal and visible, lengths, sizes)


def sum_sets(rows: HeadRows, vectors: Tensor, lengths: Sequence[int], sizes: Sequence[Sequence[int]]) -> SetSums:
    """The sums of a block of rows; `sizes` has the ascending N of each length, the last entry all N that occur."""
    every = list(sizes[-1])
    out = SetSums(np.zeros((2, len(lengths), len(COLUMNS), len(every))), np.zeros((2, len(lengths), len(every)), int))
    seen = Rows(0, tuple(rows.positions), rows.logits, rows.visibility.visible, vectors, None, rows.visibility)
    visible = _of_sets(seen, rows.weights, every) | {"separability_closed": np.full((1, len(every)), np.nan)}
    lengths_of_rows = rows.visibility.length[0]
    falling = -np.sort(-rows.weights[0].numpy(), axis=-1)[:, : every[-1]]
    for place, length in enumerate(lengths):
        count = int(np.searchsorted(rows.positions, length))
        if not count or not sizes[place]:
            continue
        at = np.searchsorted(every, sizes[place])
        part = rows.weights[:, :count, :length]
        literal = _literal(rows.logits[:, :count, :length], part, vectors, sizes[place])
        _add(out, (0, place), literal, at, np.ones((count, len(at)), bool))
        lower, upper = np.empty((2, count, len(every)))
        delta = float(literal["delta"][0, 0])
        printed_bounds(falling[:count], visible["radius"], delta, np.array(every), lengths_of_rows, lower, upper)
        bounds = {"separability_lower_printed": lower[:, at], "separability_upper_printed": upper[:, at]}
        of_rows = {name: np.broadcast_to(visible[name], (len(falling), len(every)))[:count, at]
                   for name in COLUMNS.values()}  # fmt: skip
        counted = np.array(sizes[place]) < lengths_of_rows[:count, None]
        _add(out, (1, place), of_rows | bounds, at, counted)
    return out


def _literal(logits: Tensor, weights: Tensor, vectors: Tensor, sizes: Sequence[int]) -> dict[str, Any]:
    """The columns of rows whose keys are all visible, (rows, sizes)."""
    everything = torch.ones(1, 1, 1, dtype=torch.bool).expand(weights.shape)
    rows = Rows(0, tuple(range(weights.shape[1])), logits, everything, vectors)
    literal = _of_sets(rows, weights, sizes)
    # The radius of the ball is at most |s|, the distance of all keys of weight zero: selected ones lie on its edge if
    # no other key has weight. Other ties, between identical tokens, count in neither ball.
    zeros = np.maximum(np.array(sizes) - (weights[0] > 0).sum(-1, keepdim=True).numpy(), 0)
    return literal | {"separability_closed": literal["separability"] + zeros / np.array(sizes)}


def _of_sets(rows: Rows, weights: Tensor, sizes: Sequence[int]) -> dict[str, NDArray[Any]]:
    """The columns of one head's top sets, (rows, sizes)."""
    return {name: values[0].numpy() for name, values in columns(rows, weights, sizes)[1].items()}


def _add(out: SetSums, index: tuple[int, int], values: dict[str, Any], at: NDArray[Any], counted: NDArray[Any]) -> None:
    """Add the rows that count, (rows, sizes), of all columns."""
    for column, name in enumerate(COLUMNS.values()):
        out.sums[(*index, column, at)] += np.where(counted, values[name], 0.0).sum(0)
    out.rows[(*index, at)] += counted.sum(0)


@loop
def printed_bounds(
    weights: Any,  # (rows, keys) each row's by falling size
    radius: Any,  # (rows, sizes)
    delta: float,
    sizes: Any,
    lengths: Any,  # (rows,)
    lower: Any,  # (rows, sizes), as is `upper`
    upper: Any,
) -> None:
    """Theorem 2 as printed (`theory.geometry.separability_printed`) of the top sets of rows, NaN where N has no set."""
    half = delta * delta / 2
    before, before2 = np.empty(weights.shape[1] + 1), np.empty(weights.shape[1] + 1)
    for r in range(weights.shape[0]):
        for s in range(sizes.size):
            count = sizes[s]
            lower[r, s] = upper[r, s] = np.nan
            if count >= lengths[r]:
                continue
            before[0] = before2[0] = 0.0
            for i in range(count):
                before[i + 1] = before[i] + weights[r, i]
                before2[i + 1] = before2[i] + weights[r, i] * weights[r, i]
            after = after2 = total = tails = 0.0
            for i in range(count - 1, -1, -1):
                others, others2 = before[i] + after, before2[i] + after2
                xi = np.sqrt(max(half * others2 + (1 - half) * others * others, 0.0))
                total += xi
                tails += exp(-(radius[r, s] - xi) * (radius[r, s] - xi) / 16)
                after += weights[r, i]
                after2 += weights[r, i] * weights[r, i]
            lower[r, s] = 1 - (total / (radius[r, s] * count) if total > 0 else 0.0)
            upper[r, s] = tails / count
