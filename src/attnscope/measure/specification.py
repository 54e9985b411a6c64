"""The columns of both tables in plain torch, for many rows at once: the specification of the compiled loops.

Most layers of a model have the same masks, so what is computed here for one layer is reused for the others.

Everything here works on vectors scaled to the unit sphere (M = 1), as the paper does. A zero vector cannot
be scaled and stays zero.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from attnscope._secular import ROUNDING, largest_and_rest
from attnscope.columns import PAPER_BOUNDS
from attnscope.normalizers import sink_softmax, softmax
from attnscope.theory import distance, expectation
from attnscope.theory.configuration import Configuration, top_sets
from attnscope.theory.geometry import ball, separability_certain, separability_printed, xi as xi_of
from attnscope.theory.gradient import jacobian_bound, jacobian_norm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Bool, Float
    from numpy.typing import NDArray
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Visibility:
    """The masks of a block of rows."""

    visible: Bool[Tensor, "heads rows keys"]

    @property
    def shared(self) -> bool:
        """Whether all heads share one mask in memory."""
        return _shared(self.visible)

    def of_all_heads(self, visible: Bool[Tensor, "heads rows keys"]) -> bool:
        """Whether two masks, each shared by all heads, are the same."""
        alike = visible.shape == self.visible.shape and visible.device == self.visible.device
        return alike and self.shared and _shared(visible) and torch.equal(visible[0], self.visible[0])

    @cached_property
    def masks(self) -> NDArray[np.bool_]:
        """The masks of all rows, (masks, keys); only those of one head if all heads have the same."""
        masks = self.visible[0] if self.shared else self.visible.flatten(0, 1)
        return masks.cpu().contiguous().numpy()

    @cached_property
    def mask_of(self) -> NDArray[np.int64]:
        """Index of the mask of every row of every head."""
        heads, rows, _ = self.visible.shape
        return np.tile(np.arange(rows), heads) if self.shared else np.arange(heads * rows)

    @cached_property
    def spans(self) -> NDArray[np.int64]:
        """For each mask, the first visible key, the end of the visible keys, and their number; zeros if none."""
        masks = self.masks
        lengths = masks.sum(-1)
        ends = masks.shape[-1] - masks[:, ::-1].argmax(-1)
        return np.stack([masks.argmax(-1), np.where(lengths > 0, ends, 0), lengths], -1)

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """The end of the visible keys, (heads or 1, rows)."""
        return self.spans[:, 1].reshape(-1, self.visible.shape[1])

    @cached_property
    def length(self) -> NDArray[np.int64]:
        """How many keys each row sees, (heads, rows)."""
        heads, rows, _ = self.visible.shape
        return np.broadcast_to(self.spans[:, 2].reshape(-1, rows), (heads, rows))


def _shared(visible: Bool[Tensor, "heads rows keys"]) -> bool:
    return len(visible) == 1 or visible.stride(0) == 0


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


def distance_columns(
    c: Configuration, scaled: Configuration, scale: Float[Tensor, "*batch rows 1"], *, paper_bounds: bool
) -> dict[str, Tensor]:
    """Distance, its bounds and its expectation over random sets; shape (..., rows, sets).

    scaled: the same configuration with weights multiplied by `scale`, for quantities proportional to the weights.
    """
    d1 = farthest(c) if paper_bounds else torch.full_like(c.top_mass, torch.nan)
    return {
        "top_mass": c.top_mass,
        "distance": distance.distance(scaled) / scale,
        "distance_bound_printed": distance.fixed_set_upper_printed(c, d1),
        "distance_lower": distance.fixed_set_lower(scaled) / scale,
        "distance_upper": distance.fixed_set_upper(scaled) / scale,
        "expected_printed": expectation.random_set_main_printed(c),
        "expected_lower": expectation.random_set_lower(scaled) / scale,
        "expected_upper": expectation.random_set_upper(scaled) / scale,
        "epsilon_printed": expectation.random_set_epsilon_printed(scaled) / scale,
    }


def farthest(c: Configuration) -> Float[Tensor, "groups rows sets"]:
    """d1 of Theorem 1(1): the largest |x_i - x_j| with j selected and i not; NaN if there is no such pair."""
    d1 = torch.full_like(c.top_mass, torch.nan)
    for group, row, s in (c.selected.any(-1) & c.others.any(-1)).nonzero().tolist():
        members, others = c.vectors[group, c.selected[group, row, s]], c.vectors[group, c.others[group, row, s]]
        d1[group, row, s] = torch.cdist(members, others, compute_mode="donot_use_mm_for_euclid_dist").amax()
    return d1


def unit(vectors: Float[Tensor, "*batch keys dims"]) -> Float[Tensor, "*batch keys dims"]:
    """Scale vectors to the unit sphere; zero stays zero."""
    largest = vectors.abs().amax(-1, keepdim=True)
    scaled = vectors / torch.where(largest > 0, largest, 1)  # squares neither overflow nor underflow
    norm = scaled.norm(dim=-1, keepdim=True)
    return scaled / torch.where(norm > 0, norm, 1)


def separability_columns(
    c: Configuration, scale: Float[Tensor, "*batch rows 1"], delta: Float[Tensor, "*batch rows"]
) -> dict[str, Tensor]:
    """Separability, radius and the bounds on it, for unit vectors; shape (..., rows, sets).

    c: a configuration whose weights were multiplied by `scale`.
    """
    measured = ball(c)
    chosen = torch.where(c.selected, c.weights.unsqueeze(-2), -torch.inf)
    most = int(c.count.max())
    weights, places = chosen.topk(most, dim=-1)
    members = weights > -torch.inf
    weights = weights.clamp_min(0)
    norms = c.squared_norms.unsqueeze(-2).sqrt().expand(chosen.shape).gather(-1, places)
    gap = delta.unsqueeze(-1)
    xi = xi_of(weights, gap)
    radius = measured.radius / scale
    printed = separability_printed(xi / scale.unsqueeze(-1), members, radius)
    certain = separability_certain(weights * norms, xi, members, measured.radius)
    return {
        "separability": measured.separability,
        "radius": radius,
        "delta": gap.expand_as(radius),
        "separability_lower_printed": printed.lower,
        "separability_upper_printed": printed.upper,
        "separability_lower": certain.lower,
        "separability_upper": certain.upper,
    }


def smallest_gap(
    units: Float[Tensor, "groups keys dims"], visible: Bool[Tensor, "groups rows keys"]
) -> Float[Tensor, "groups rows"]:
    """delta of Assumption 2: the smallest distance between two visible vectors, for each row; infinity for one key.

    Rows that see a prefix of the keys (causal attention) share a single pass.
    """
    length = visible.sum(-1)
    keys = torch.arange(visible.shape[-1], device=visible.device)
    prefix = (visible == (keys < length.unsqueeze(-1))).all(-1)
    gaps = prefix_gaps(units).gather(-1, (length - 1).clamp_min(0))
    for group, row in (~prefix).nonzero().tolist():
        vectors = units[group, visible[group, row]]
        gaps[group, row] = prefix_gaps(vectors)[-1] if len(vectors) else torch.inf
    return gaps


def prefix_gaps(units: Float[Tensor, "*batch keys dims"]) -> Float[Tensor, "*batch keys"]:
    """The smallest distance among the first 1, 2, ... keys, comparing one key with all keys before it at a time."""
    gaps = torch.full(units.shape[:-1], torch.inf, dtype=units.dtype, device=units.device)
    for key in range(1, units.shape[-2]):
        gaps[..., key] = (units[..., :key, :] - units[..., key : key + 1, :]).norm(dim=-1).amin(-1)
    return gaps.cummin(-1).values


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
