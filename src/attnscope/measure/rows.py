"""The rows to measure, and the columns of `rows.parquet`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from attnscope._secular import ROUNDING, largest_and_rest
from attnscope.normalizers import sink_softmax, softmax
from attnscope.theory.gradient import jacobian_bound, jacobian_norm

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

    from attnscope.measure.visibility import Visibility


@dataclass(frozen=True)
class Rows:
    """Some rows of every head of one layer, in float64; vectors in any dtype.

    Heads that share their vectors form a group: one group for `hidden`, one per key-value head with grouped queries,
    otherwise one per head. `heads = groups * (heads per group)`, in order.
    """

    layer: int
    positions: tuple[int, ...]
    logits: Float[Tensor, "heads rows keys"]
    visible: Bool[Tensor, "heads rows keys"]
    vectors: Float[Tensor, "groups all_keys dims"]  # may be longer, beyond the last key that a row sees
    sinks: Float[Tensor, " heads"] | None = None  # a logit that takes weight and has no vector
    visibility: Visibility | None = None  # of `visible`, shared by layers with the same masks; it may have more keys

    @property
    def heads(self) -> int:
        """The number of heads."""
        return self.logits.shape[0]

    def grouped(self, values: Tensor) -> Tensor:
        """(heads, rows, ...) -> (groups, heads per group * rows, ...)."""
        groups = self.vectors.shape[0]
        return values.reshape(groups, -1, *values.shape[2:])

    def ungrouped(self, values: Tensor) -> Tensor:
        """(groups, heads per group * rows, ...) -> (heads, rows, ...)."""
        return values.reshape(self.heads, len(self.positions), *values.shape[2:])


def softmax_weights(rows: Rows) -> Float[Tensor, "heads rows keys"]:
    """The model's own normalizer: softmax over the visible keys and the sink, if there is one."""
    if rows.sinks is None:
        return softmax(rows.logits, rows.visible)
    return sink_softmax(rows.logits, rows.visible, sink=rows.sinks[:, None])


def row_entropy(weights: Float[Tensor, "*batch keys"]) -> Float[Tensor, "*batch"]:
    """-sum of alpha ln alpha in nats, exact for saturated rows too, where 1 - alpha_max is below rounding."""
    first, _, others, left_over = largest_and_rest(weights)
    rest = others.sum(-1, keepdim=True) + left_over
    saturated = (first > 0.5) & (first + rest <= 1 + ROUNDING)  # the weights of a sigmoid can have any sum
    log_first = torch.where(saturated, torch.log1p(-rest), first.log())
    top = torch.where(first > 0, first * log_first, 0).squeeze(-1)
    return 0.0 - (torch.special.xlogy(others, others).sum(-1) + top)  # no -0


def row_columns(rows: Rows, weights: Float[Tensor, "heads rows keys"]) -> dict[str, Tensor]:
    """The columns of `rows.parquet` by name, e.g. entropy and Jacobian norm; each has shape (heads, rows)."""
    visible = rows.visible
    length = visible.sum(-1)
    entropy = row_entropy(weights)
    highest = rows.logits.masked_fill(~visible, -torch.inf).amax(-1)
    lowest = rows.logits.masked_fill(~visible, torch.inf).amin(-1)
    first_visible = visible.to(torch.uint8).argmax(-1, keepdim=True)
    return {
        "length": length,
        "entropy": entropy,
        # ln 1 = 0: the ratio is undefined for a row of one key, and missing in the table.
        "entropy_ratio": torch.where(length > 1, entropy / length.to(entropy.dtype).log(), torch.nan),
        "max_weight": weights.amax(-1),
        "sink_weight": weights.gather(-1, first_visible).squeeze(-1),
        "participation": 1 / weights.square().sum(-1),
        "support": (weights > 0).sum(-1),
        "weight_sum": weights.sum(-1),
        "logit_range": highest - lowest,
        "jacobian_norm": jacobian_norm(weights),
        "jacobian_bound": jacobian_bound(weights),
    }
