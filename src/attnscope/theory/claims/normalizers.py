"""The paper's statements for each normalizer of the library: its own Lemma 1, its own Jacobian bound, and Theorem S.

The formulas live with the normalizers; here they are tried on the audit's rows, with the torch
reference of each normalizer: nothing is compiled for an audit. One form for each normalizer.
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

# Weights are sums and quotients of a row's numbers; thresholds are found by iteration.
ROUNDING = 1e-9
ROWS = replace(
    SOFTMAX_LOGITS,
    name="rows of logits, each normalizer at its default settings",
    # The normalizers carry their own temperature.
    valid=lambda case: SOFTMAX_LOGITS.valid(case) & (case["logits"].abs().amax(-1) <= 30),
    trials=700,
)


def _weights(normalizer: Normalizer) -> Callable[[SoftmaxRow], Tensor]:
    return reference_only()(lambda s: normalizer.weights(s.logits))


def _bounds(normalizer: Normalizer) -> Callable[[SoftmaxRow], Interval]:
    """The normalizer's own Lemma 1 for each row's range."""

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
    """Theorem S asks for nonnegative equivariant weights of total at most one and a finite Lipschitz constant."""
    facts = normalizer.facts
    shape = facts.non_negative and facts.at_most_one and facts.permutation_equivariant
    return shape and normalizer.lipschitz(2) < float("inf")


_ALL = {name: get(name) for name in names()}

CLAIMS = (
    Claim(
        id="normalizer-weights",
        place="Lemma 1 for each normalizer",
        # Each row has a range of its own, and each range two rows to normalize.
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
