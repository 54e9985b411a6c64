"""The vectors of one layer, prepared group by group for the compiled loops."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from attnscope.measure._kernels_vectors import Groups, prepare
from attnscope.measure._scratch import scratch

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from numpy.typing import NDArray
    from torch import Tensor


class LayerVectors:
    """The vectors of one layer, (groups, keys, dims), for all blocks of its rows; heads of a group share theirs."""

    def __init__(self, vectors: Float[Tensor, "groups keys dims"], rows_of_group: int = 0) -> None:
        """`rows_of_group`: how many rows of a group are measured in all, where they come in several blocks."""
        self.vectors, self.rows_of_group = vectors.detach(), rows_of_group

    @cached_property
    def arrays(self) -> NDArray[np.floating]:
        """The vectors as an array; copying all in order is faster than group by group where they are strided."""
        plain = self.vectors if self.vectors.dtype in (torch.float32, torch.float64) else self.vectors.float()
        return plain.contiguous().numpy()

    @cached_property
    def finite(self) -> NDArray[np.bool_]:
        """Whether all vectors of a group are finite, (groups,)."""
        return all_finite(self.vectors).cpu().numpy()


def all_finite(values: Float[Tensor, "some ..."]) -> Bool[Tensor, " some"]:
    """Whether all values are finite, for each index of the first axis: one pass, as sums carry what is not."""
    sums = values.flatten(1).sum(-1)
    return sums.isfinite() if sums.isfinite().all() else values.flatten(1).isfinite().all(-1)


def prepare_groups(source: NDArray[np.floating]) -> tuple[Groups, NDArray[np.float32]]:
    """The vectors (groups, keys, dims) and their float32 unit vectors, in scratch memory."""
    count, keys, _ = source.shape
    norms, inverses = scratch("norms", (2, count, keys))
    sizes = np.maximum(source.max((1, 2)), -source.min((1, 2))).astype(np.float64)
    exponents = np.where((sizes > 0) & (sizes < np.inf), np.frexp(sizes)[1], 0)
    groups = Groups(scratch("vectors", source.shape), norms, inverses, np.ldexp(1.0, exponents))
    units = scratch("units", source.shape, np.float32)
    prepare(source, groups, units)
    return groups, units


def double_units(vectors: NDArray[np.float64], inverses: NDArray[np.float64]) -> NDArray[np.float64]:
    """Unit vectors in float64, in scratch memory; zero stays zero."""
    return np.multiply(vectors, inverses[:, None], out=scratch("double units", vectors.shape))
