"""What the algorithms of the paper's appendix leave out, measured in a single row: the last one of a prefix.

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

from attnscope.measure import Rows, columns, softmax_weights
from attnscope.measure.specification import unit
from attnscope.studies.paper.settings import FIXED_N, SATURATION_N, SHARPNESS_TEMPERATURES
from attnscope.theory.configuration import Configuration, top_sets
from attnscope.theory.geometry import Ball, ball
from attnscope.theory.gradient import jacobian_norm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jaxtyping import Bool, Float
    from torch import Tensor

    from attnscope.capture.attention import Call
    from attnscope.columns import VectorKind

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
