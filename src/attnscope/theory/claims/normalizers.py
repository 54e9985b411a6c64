"""The statements for each normalizer of the library: its form of Lemma 1, its Jacobian bound, and Theorem S.

The formulas are methods of the normalizers. Here they are tested on the audit's rows, one form per normalizer, with
the torch reference of each: an audit compiles nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from attnscope.normalizers import Normalizer, get, names, reference_only
from attnscope.theory.audit import Claim, Form, at_most, between
from attnscope.theory.configuration import Interval
from attnscope.theory.selectivity import top_weight_cap
from attnscope.theory.spaces import SOFTMAX_LOGITS

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.theory.spaces.logits import SoftmaxRow

# Thresholds of sparse weights are computed by iteration.
ROUNDING = 1e-9
ROWS = replace(
    SOFTMAX_LOGITS,
    name="rows of logits, each normalizer at its default settings",
    # The temperature of the space is not used: a normalizer has its default scale.
    valid=lambda case: SOFTMAX_LOGITS.valid(case) & (case["logits"].abs().amax(-1) <= 30),
    trials=700,
)


def _weights(normalizer: Normalizer) -> Callable[[SoftmaxRow], Tensor]:
    return reference_only()(lambda s: normalizer.weights(s.logits))


def _bounds(normalizer: Normalizer) -> Callable[[SoftmaxRow], Interval]:
    """The normalizer's weight bounds (Lemma 1) for each row's range."""

    @reference_only()
    def bounds(s: SoftmaxRow) -> Interval:
        ends = [normalizer.weight_bounds(s.logits.shape[-1], float(row.amin()), float(row.amax())) for row in s.logits]
        lower, upper = torch.tensor(ends, dtype=s.logits.dtype).unsqueeze(-1).unbind(1)
        return Interval(lower, upper)

    return bounds


def _rounding(s: SoftmaxRow) -> Tensor:
    return torch.full_like(s.logits, ROUNDING)


def _row_rounding(s: SoftmaxRow) -> Tensor:
    return ROUNDING * (1 + s.logits.abs().amax(-1))


def _top(normalizer: Normalizer) -> Callable[[SoftmaxRow], Tensor]:
    return reference_only()(lambda s: normalizer.weights(s.logits).amax(-1))


def _cap(normalizer: Normalizer) -> Callable[[SoftmaxRow], Tensor]:
    @reference_only()
    def cap(s: SoftmaxRow) -> Tensor:
        budget = torch.full_like(s.temperature, normalizer.lipschitz(s.logits.shape[-1]))
        return top_weight_cap(s.logits, budget)

    return cap


def _norm(normalizer: Normalizer) -> Callable[[SoftmaxRow], Tensor]:
    return reference_only()(lambda s: normalizer.jacobian_norm(s.logits))


def _norm_bound(normalizer: Normalizer) -> Callable[[SoftmaxRow], Tensor]:
    return reference_only()(lambda s: normalizer.jacobian_bound(s.logits))


def _within_theorem_s(normalizer: Normalizer) -> bool:
    """Whether Theorem S applies: nonnegative equivariant weights, total at most one, finite Lipschitz constant."""
    facts = normalizer.facts
    shape = facts.in_theorem_s
    return shape and normalizer.lipschitz(2) < float("inf")


_ALL = {name: get(name) for name in names()}

CLAIMS = (
    Claim(
        id="normalizer-weights",
        place="Lemma 1 for each normalizer",
        # Bounds are computed row by row, from two normalized rows each.
        space=replace(ROWS, trials=100),
        corrected=tuple(
            Form(f"{name}: weights within its bounds", between(_weights(n), _bounds(n), _rounding))
            for name, n in _ALL.items()
        ),
    ),
    Claim(
        id="normalizer-jacobian",
        place="Corollary 3 for each normalizer",
        space=ROWS,
        corrected=tuple(
            Form(f"{name}: |J|_2 <= its bound", at_most(_norm(n), _norm_bound(n), _row_rounding))
            for name, n in _ALL.items()
        ),
    ),
    Claim(
        id="normalizer-theorem-s",
        place="not in the paper",
        space=ROWS,
        corrected=tuple(
            Form(f"{name}: top weight <= max sparsemax(K l)", at_most(_top(n), _cap(n), _row_rounding))
            for name, n in _ALL.items()
            if _within_theorem_s(n)
        ),
    ),
)
