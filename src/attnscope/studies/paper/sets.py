"""Algorithms 1, 2 and 4: distance, expectation and separability of the top sets of some sizes, summed over rows.

The columns of a row are those of a scan (`attnscope.measure`). In the literal reading all L keys are visible, and those
after the row have weight zero; each length is a pass over its leading block of rows and keys. In the visible reading
one pass serves all lengths, except for the bounds of Theorem 2, whose delta is that of the window's L unit vectors.

Two columns are not a scan's: `scaled_sum` is the sum of |alpha_i x_i| (Corollary 2), `top_mass_ratio` the weight of the
top set over its share N/L of uniform weights.

What the algorithms leave out is measured in a single row, the last one of a prefix:

- `sharpness`: separability and Jacobian norm of every head at other temperatures (section 3.3), at the longest length;
- `coverage`: how many of a head's top tokens several heads of its layer tell apart together (section 4), there too;
- `circle`: the tokens of one row on the circle (Figure 1), at the shortest length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import comb
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
import torch

from attnscope._numerics import exp, loop
from attnscope.measure import Rows, Visibility, columns, softmax_weights
from attnscope.measure.specification import unit
from attnscope.studies.paper.settings import FIXED_N, SATURATION_N, SHARPNESS_TEMPERATURES
from attnscope.theory.configuration import Configuration, top_sets
from attnscope.theory.geometry import Ball, ball
from attnscope.theory.gradient import jacobian_norm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jaxtyping import Bool, Float
    from numpy.typing import NDArray
    from torch import Tensor

    from attnscope.capture.attention import Call
    from attnscope.columns import VectorKind

COLUMNS = {  # by their names in a scan
    "distance": "distance",
    "bound_printed": "distance_bound_printed",
    "expected_printed": "expected_printed",
    "expected_lower": "expected_lower",
    "expected_upper": "expected_upper",
    "epsilon_printed": "epsilon_printed",
    "scaled_sum": "scaled_sum",
    "top_mass_ratio": "top_mass_ratio",
    "separability": "separability",
    "separability_closed": "separability_closed",
    "lower_printed": "separability_lower_printed",
    "upper_printed": "separability_upper_printed",
}
ROW_COLUMNS = ("entropy_ratio", "max_weight")


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
    row_sums: NDArray[np.float64]  # (literal and visible, lengths, row columns)
    row_counts: NDArray[np.int64]  # (literal and visible, lengths)


def sum_sets(rows: HeadRows, vectors: Tensor, lengths: Sequence[int], sizes: Sequence[Sequence[int]]) -> SetSums:
    """The sums of a block of rows; `sizes` has the ascending N of each length, the last entry all N that occur."""
    every = list(sizes[-1])
    shape = 2, len(lengths)
    out = SetSums(
        np.zeros((*shape, len(COLUMNS), len(every))), np.zeros((*shape, len(every)), int),
        np.zeros((*shape, len(ROW_COLUMNS))), np.zeros(shape, int),
    )  # fmt: skip
    seen = Rows(0, tuple(rows.positions), rows.logits, rows.visibility.visible, vectors, None, rows.visibility)
    per_row, visible = _of_sets(seen, rows.weights, every)
    visible |= {"separability_closed": np.full((1, len(every)), np.nan)}
    lengths_of_rows = rows.visibility.length[0]
    falling = -np.sort(-rows.weights[0].numpy(), axis=-1)[:, : every[-1]]
    for place, length in enumerate(lengths):
        count = int(np.searchsorted(rows.positions, length))
        if not count or not sizes[place]:
            continue
        _add_rows(out, place, per_row, count, length)
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
    _, literal = _of_sets(rows, weights, sizes)
    # The radius of the ball is at most |s|, the distance of all keys of weight zero: selected ones lie on its edge if
    # no other key has weight. Other ties, between identical tokens, count in neither ball.
    zeros = np.maximum(np.array(sizes) - (weights[0] > 0).sum(-1, keepdim=True).numpy(), 0)
    return literal | {"separability_closed": literal["separability"] + zeros / np.array(sizes)}


def _of_sets(
    rows: Rows, weights: Tensor, sizes: Sequence[int]
) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """The columns of one head's rows, (rows,), and of its top sets, (rows, sizes)."""
    per_row, per_set = (
        {name: values[0].numpy() for name, values in each.items()} for each in columns(rows, weights, sizes)
    )
    norms = rows.vectors[0, : weights.shape[-1]].norm(dim=-1)
    per_set["scaled_sum"] = (weights[0] @ norms).numpy()[:, None].repeat(len(sizes), 1)
    per_set["top_mass_ratio"] = per_set["top_mass"] * per_row["length"][:, None] / np.array(sizes)
    return per_row, per_set


def _add_rows(out: SetSums, place: int, per_row: dict[str, NDArray[Any]], count: int, length: int) -> None:
    """Add the first rows to those of a length: all of them, and those of at least two keys."""
    for reading, row_lengths in enumerate((np.full(count, length), per_row["length"][:count])):
        several = row_lengths > 1
        ratio = per_row["entropy"][:count][several] / np.log(row_lengths[several])
        out.row_sums[reading, place] += ratio.sum(), per_row["max_weight"][:count][several].sum()
        out.row_counts[reading, place] += several.sum()


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


MOST_HEADS = 8  # of a layer, taken together for coverage
PLANE = 0.8  # the separability that Figure 1 should have in its plane


def last_row(
    call: Call, number: int, position: int, first: int, kinds: Mapping[VectorKind, Tensor]
) -> dict[VectorKind, Rows]:
    """One row of every head of a layer with the keys that it sees, from the key `first` on; by kind of vectors."""
    logits, visible = call.logits([position]).cpu(), call.visible([position]).cpu()
    keys = visible[0, 0].nonzero().flatten()
    keys = keys[keys >= first]
    shown = logits[:, :, keys]
    sinks = None if call.sinks is None else call.sinks.cpu()
    everything = torch.ones_like(shown, dtype=torch.bool)
    return {
        kind: Rows(number, (position,), shown, everything, vectors[:, keys - first], sinks)
        for kind, vectors in kinds.items()
    }


def sharpness_and_coverage(rows: Rows, keys: Mapping[str, Any], heads: Sequence[int]) -> dict[str, pl.DataFrame]:
    """Lines of `sharpness` and `coverage`; none if the row is too short. `keys` are columns that all lines have."""
    if rows.logits.shape[-1] <= SATURATION_N:
        return {}
    units, visible = unit(rows.vectors), rows.grouped(rows.visible)
    weights = softmax_weights(rows)
    selected = top_sets(rows.grouped(weights), visible, [SATURATION_N])
    lines = []
    inside = np.empty(0)
    for temperature in SHARPNESS_TEMPERATURES:
        sinks = None if rows.sinks is None else rows.sinks / temperature
        tempered = softmax_weights(replace(rows, logits=rows.logits / temperature, sinks=sinks))
        nearest = ball(Configuration(rows.grouped(tempered), units, visible, selected))
        measured = {
            "separability": rows.ungrouped(nearest.separability)[heads, 0, 0].numpy(),
            "jacobian_norm": jacobian_norm(tempered)[heads, 0].numpy() / temperature,
        }
        lines.append(pl.DataFrame({**keys, "head": heads, "temperature": temperature, **measured}))
        if temperature == 1.0:
            inside = rows.ungrouped(nearest.inside)[heads, 0, 0].numpy()
    most = min(MOST_HEADS, len(heads))
    covered = layer_coverage(rows.ungrouped(selected)[heads, 0, 0].numpy(), inside, most)
    count = np.arange(1, most + 1)
    independent = 1 - (1 - inside.sum(1).mean() / SATURATION_N) ** count
    table = pl.DataFrame({**keys, "heads": count, "coverage": covered, "independent": independent})
    return {"sharpness": pl.concat(lines).sort("head", "temperature"), "coverage": table}


def layer_coverage(
    selected: Bool[np.ndarray, "heads keys"], inside: Bool[np.ndarray, "heads keys"], most: int
) -> Float[np.ndarray, " most"]:
    """Mean share of a head's top set that it or H - 1 other heads of the layer tell apart, for H = 1 ... most.

    The paper assumes independent heads, 1 - (1 - p)^H. The mean over all heads and all choices of the others is exact:
    a token that m of the other n - 1 heads cover is missed by H - 1 of them in C(n-1-m, H-1) / C(n-1, H-1) of the
    choices.
    """
    heads = len(selected)
    cover = inside.sum(0)
    shares = np.zeros(most)
    for head in range(heads):
        covered = inside[head, selected[head]]
        others = (cover - inside[head])[selected[head]]  # how many other heads cover each token
        for count in range(1, most + 1):
            choices = comb(heads - 1, count - 1)
            missed = np.array([comb(heads - 1 - int(m), count - 1) / choices for m in others])
            shares[count - 1] += np.where(covered, 1.0, 1 - missed).mean()
    return shares / heads


class Circle(NamedTuple):
    """Tokens on the unit circle, their weights, and the ball around the context in the same plane."""

    points: Float[Tensor, "keys 2"]
    selected: Bool[Tensor, " keys"]
    context: Float[Tensor, " 2"]
    ball: Ball


def circle(weights: Float[Tensor, " keys"], vectors: Float[Tensor, "keys dims"], n: int) -> Circle:
    """The top set of size `n` after projecting the vectors onto the plane in which they spread most, at unit length.

    The weights do not change. The separability is that of the projected vectors and differs from the original's.
    """
    scaled = unit(vectors)
    _, _, directions = torch.linalg.svd(scaled, full_matrices=False)
    points = unit(scaled @ directions[:2].T)
    visible = torch.ones_like(weights, dtype=torch.bool)[None]
    selected = top_sets(weights[None], visible, [n])
    configuration = Configuration(weights[None], points, visible, selected)
    return Circle(points, selected[0, 0], configuration.context[0, 0], ball(configuration))


def best_circle(rows: Rows, kind: str, heads: Sequence[int]) -> tuple[tuple[float, ...], pl.DataFrame] | None:
    """The head of a layer that suits Figure 1 most, with its score (smaller is better); None without heads.

    Its separability in the plane should be near 0.8 and near that in all dimensions; among such heads, the one whose
    weights are spread most is chosen.
    """
    weights = softmax_weights(rows)
    vectors = rows.vectors.repeat_interleave(rows.heads // len(rows.vectors), 0)
    true = columns(rows, weights, [FIXED_N])[1]["separability"][:, 0, 0]
    best: tuple[tuple[float, ...], pl.DataFrame] | None = None
    for head in heads:
        flat = circle(weights[head, 0], vectors[head], FIXED_N)
        there = float(flat.ball.separability)
        score = abs(there - PLANE), abs(there - float(true[head])), -float(1 / weights[head, 0].square().sum())
        if best is None or score < best[0]:
            tokens = {
                "layer": rows.layer, "head": head, "token": np.arange(len(flat.points)),
                "x": flat.points[:, 0].numpy(), "y": flat.points[:, 1].numpy(), "weight": weights[head, 0].numpy(),
                "selected": flat.selected.numpy(), "inside": flat.ball.inside[0, 0].numpy(),
                "context_x": float(flat.context[0]), "context_y": float(flat.context[1]),
                "radius": float(flat.ball.radius), "separability": float(true[head]), "vectors": kind,
            }  # fmt: skip
            best = score, pl.DataFrame(tokens)
    return best
