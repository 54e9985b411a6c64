"""The columns of `topn.parquet`: one value for each head, row and N."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

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


def topn_columns(rows: Rows, weights: Float[Tensor, "heads rows keys"], n: Sequence[int]) -> dict[str, Tensor]:
    """Distance and separability for ascending N; every value has shape (heads, rows, sets).

    Rows with a negative weight have no value: the mass of a set, and all that is bounded by it, is not defined there.
    Entries where N is not below the row's length mean nothing and are for the caller to leave out.
    """
    vectors = rows.vectors[:, : weights.shape[-1]].double()
    units = unit(vectors)
    grouped, visible = rows.grouped(weights), rows.grouped(rows.visible)
    delta = smallest_gap(units, visible)
    widest = max(len(n), *(b - a for a, b in zip([0, *n], n, strict=False)))
    step = max(1, SLICE_ELEMENTS // (grouped.shape[0] * widest * grouped.shape[-1]))
    slices = []
    for start in range(0, grouped.shape[1], step):
        part = slice(start, start + step)
        w, seen = grouped[:, part], visible[:, part]
        selected = top_sets(w, seen, n)
        slices.append(
            distance_columns(Configuration(w, vectors, seen, selected))
            | separability_columns(Configuration(w, units, seen, selected), delta[:, part])
        )
    undefined = (weights < 0).any(-1)[..., None]
    found = {name: rows.ungrouped(torch.cat([piece[name] for piece in slices], 1)) for name in slices[0]}
    return {name: values.masked_fill(undefined, torch.nan) for name, values in found.items()}
