"""Theorem S and the two impossibilities: statements of this project, tested like those of the paper."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from attnscope.theory import selectivity
from attnscope.theory.audit import Claim, Form, Inequality, at_most
from attnscope.theory.spaces import EQUISPACED_LOGITS, SOFTMAX_LOGITS

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.theory.spaces.logits import Equispaced, SoftmaxRow


def _budget(s: SoftmaxRow) -> Tensor:
    return 1 / (2 * s.temperature)


def _needed(s: Equispaced, weight: Tensor) -> Inequality:
    """K >= w^2 (L-1) / (2R) for the top weight w reached with budget K, where L >= 2/w."""
    least = selectivity.lipschitz_for_range(weight, s.length, s.logit_range)
    return Inequality(torch.where(s.length >= 2 / weight, least, 0).unsqueeze(-1), s.lipschitz.unsqueeze(-1))


def _pairs(s: SoftmaxRow) -> Inequality:
    """K >= Dp / gamma for every pair of tokens with a gap."""
    gaps = (s.logits.unsqueeze(-1) - s.logits.unsqueeze(-2)).abs()
    apart = (s.weights.unsqueeze(-1) - s.weights.unsqueeze(-2)).abs()
    distinct = gaps > 1e-9
    safe = torch.where(distinct, gaps, 1)
    needed = torch.where(distinct, selectivity.lipschitz_for_difference(apart, safe), 0)
    return Inequality(needed, _budget(s)[:, None, None], 1e-15 / safe)


CLAIMS = (
    Claim(
        id="theorem-s",
        place="not in the paper",
        space=SOFTMAX_LOGITS,
        corrected=(
            Form(
                "softmax(l/T), K = 1/(2T): top weight <= max sparsemax(K l)",
                at_most(lambda s: s.weights.amax(-1), lambda s: selectivity.top_weight_cap(s.logits, _budget(s))),
            ),
        ),
    ),
    Claim(
        id="impossibility-1",
        place="not in the paper",
        space=EQUISPACED_LOGITS,
        corrected=(
            Form(
                "sparsemax(K l): top weight w needs K >= w^2 (L-1)/(2R)",
                lambda s: _needed(
                    s, selectivity.sparsemax_top_weight(s.lipschitz.unsqueeze(-1) * s.logits.nan_to_num(neginf=-1e9))
                ),
            ),
            Form(
                "softmax(2K l): the same",
                lambda s: _needed(s, torch.softmax(2 * s.lipschitz.unsqueeze(-1) * s.logits, -1).amax(-1)),
            ),
        ),
    ),
    Claim(
        id="impossibility-2",
        place="not in the paper",
        space=SOFTMAX_LOGITS,
        corrected=(Form("softmax(l/T): a weight difference Dp at a gap needs K >= Dp/gap", _pairs),),
    ),
)
