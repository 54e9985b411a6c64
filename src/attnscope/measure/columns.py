"""All columns of a block of rows: where the compiled way and the torch way part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from attnscope.measure import _blocks, topn
from attnscope.measure import rows as by_row
from attnscope.measure.layer import LayerVectors
from attnscope.normalizers import _loops

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float
    from numpy.typing import NDArray
    from torch import Tensor

    from attnscope.measure.rows import Rows

# Columns that are made of delta, and missing with it.
FROM_DELTA = ("delta", "separability_lower_printed", "separability_upper_printed", "separability_lower")


def columns(
    rows: Rows,
    weights: Float[Tensor, "heads rows keys"],
    top_n: Sequence[int],
    delta_max_length: int | None = None,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The same as `arrays`, as tensors on the device of the weights."""
    per_row, per_set = (
        {name: torch.as_tensor(values, device=weights.device) for name, values in found.items()}
        for found in arrays(rows, weights, top_n, delta_max_length)
    )
    return per_row, per_set


def arrays(
    rows: Rows,
    weights: Float[Tensor, "heads rows keys"],
    top_n: Sequence[int],
    delta_max_length: int | None = None,
) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """The columns of `rows.parquet`, (heads, rows), and of `topn.parquet` for ascending N, (heads, rows, sets).

    In rows of more than `delta_max_length` keys delta, which looks at all pairs, and the columns made of it are NaN.
    Entries where N is not below the row's length mean nothing and are for the caller to leave out.
    """
    layer = rows.shared or LayerVectors(rows.vectors)
    if _loops.usable(weights, rows.logits, layer.vectors) and weights.dtype == torch.float64:
        return _blocks.columns(rows, weights, top_n, layer, delta_max_length)
    per_set = topn.topn_columns(rows, weights, top_n)
    if delta_max_length is not None:
        long = rows.visible.sum(-1, keepdim=True) > delta_max_length
        per_set |= {name: per_set[name].masked_fill(long, torch.nan) for name in FROM_DELTA}
    per_row = by_row.row_columns(rows, weights)
    return {name: to_array(per_row[name]) for name in per_row}, {name: to_array(per_set[name]) for name in per_set}


def to_array(values: Tensor) -> NDArray[Any]:
    """A tensor that no longer needs its device."""
    array: NDArray[Any] = values.detach().cpu().numpy()
    return array
