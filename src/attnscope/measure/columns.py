"""Dispatch to compiled or torch columns."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch

from attnscope.measure import fast, topn
from attnscope.measure import rows as by_row
from attnscope.normalizers import _loops

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float
    from torch import Tensor

    from attnscope.measure.rows import Rows

ALL_ROWS = sys.maxsize


def columns(
    rows: Rows,
    weights: Float[Tensor, "heads rows keys"],
    top_n: Sequence[int],
    delta_max_length: int = ALL_ROWS,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The columns of `rows.parquet`, (heads, rows), and of `topn.parquet` for ascending N, (heads, rows, sets).

    The paper's bounds (`attnscope.columns.PAPER_BOUNDS`) need all pairs of keys: they are measured in rows of at most
    `delta_max_length` keys, and NaN elsewhere. Entries where N is not below the row's length mean nothing and are
    for the caller to leave out.
    """
    if _loops.usable(weights, rows.logits, rows.vectors) and weights.dtype == torch.float64:
        return fast.columns(rows, weights, top_n, delta_max_length)
    return by_row.row_columns(rows, weights), topn.topn_columns(rows, weights, top_n, delta_max_length)
