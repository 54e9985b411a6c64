"""The columns of `topn.parquet`: one value for each head, row and N."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch

from attnscope.columns import PAPER_BOUNDS
from attnscope.measure.distance import distance_columns
from attnscope.measure.separability import separability_columns, smallest_gap, unit
from attnscope.theory.configuration import Configuration, top_sets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float
    from torch import Tensor

    from attnscope.measure.rows import Rows

# Rows are measured in slices whose largest temporary (groups x rows x sets or members x keys) stays below this.
SLICE_ELEMENTS = 4_000_000
_LARGEST_EXPONENT = 1000  # of a row's scale, so that its inverse is a normal number too


def topn_columns(
    rows: Rows, weights: Float[Tensor, "heads rows keys"], n: Sequence[int], delta_max_length: int = sys.maxsize
) -> dict[str, Tensor]:
    """Distance and separability for ascending N; every value has shape (heads, rows, sets).

    The paper's bounds are NaN in rows of more than `delta_max_length` keys. All columns are NaN in rows with a negative
    weight, where the mass of a set, and everything bounded by it, is undefined. Entries where N is not below the row's
    length are meaningless; the caller must drop them.
    """
    vectors = rows.vectors[:, : weights.shape[-1]].double()
    units = unit(vectors)
    grouped, visible = rows.grouped(weights), rows.grouped(rows.visible)
    near = visible.sum(-1) <= delta_max_length
    delta = smallest_gap(units, visible & near.unsqueeze(-1))
    widest = max(len(n), *(b - a for a, b in zip([0, *n], n, strict=False)))
    step = max(1, SLICE_ELEMENTS // (grouped.shape[0] * widest * grouped.shape[-1]))
    slices = []
    for start in range(0, grouped.shape[1], step):
        part = slice(start, start + step)
        w, visible_part = grouped[:, part], visible[:, part]
        selected = top_sets(w, visible_part, n)
        scale = _row_scale(w)
        plain, scaled, on_sphere = (
            Configuration(weights_of, x, visible_part, selected)
            for weights_of, x in ((w, vectors), (w * scale, vectors), (w * scale, units))
        )
        slices.append(
            distance_columns(plain, scaled, scale, paper_bounds=delta_max_length > 0)
            | separability_columns(on_sphere, scale, delta[:, part])
        )
    undefined = (weights < 0).any(-1)[..., None]
    without_bounds = undefined | ~rows.ungrouped(near).unsqueeze(-1)
    measured = {name: rows.ungrouped(torch.cat([piece[name] for piece in slices], 1)) for name in slices[0]}
    return {
        name: values.masked_fill(without_bounds if name in PAPER_BOUNDS else undefined, torch.nan)
        for name, values in measured.items()
    }


def _row_scale(weights: Float[Tensor, "*batch rows keys"]) -> Float[Tensor, "*batch rows 1"]:
    """A power of two for each row that brings its largest weight near 1, so that its square does not underflow."""
    exponent = torch.frexp(weights.amax(-1, keepdim=True)).exponent
    return (-exponent).clamp_max(_LARGEST_EXPONENT).to(weights.dtype).exp2()
