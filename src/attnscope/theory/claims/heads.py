"""Section 4: coverage by several heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from attnscope.theory import heads
from attnscope.theory.audit import Claim, Condition, Form, about, at_most, between
from attnscope.theory.configuration import Interval
from attnscope.theory.spaces import COVERED_TOKENS, TOKEN_CHANCES

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.theory.spaces.heads import Chances, Covered


def _range(s: Covered) -> Interval:
    return Interval(*(side.unsqueeze(-1) for side in heads.coverage_range(s.separability)))


def _same(s: Chances) -> Tensor:
    return (s.separability.amax(-1) - s.separability.amin(-1) <= 1e-9).unsqueeze(-1)


CLAIMS = (
    Claim(
        id="coverage-up-to",
        place="section 4",
        space=COVERED_TOKENS,
        printed=Form(
            "H heads of separability p cover at most 1 - (1-p)^H",
            at_most(
                lambda s: s.coverage,
                lambda s: heads.coverage_independent(s.separability.mean(-1, keepdim=True), s.heads),
            ),
        ),
        corrected=(Form("max p_h <= coverage <= min(1, sum p_h)", between(lambda s: s.coverage, _range)),),
    ),
    Claim(
        id="coverage-independent",
        place="section 4",
        space=TOKEN_CHANCES,
        printed=Form(
            "independent heads cover 1 - (1-p)^H in expectation, p the mean separability",
            about(
                lambda s: s.coverage,
                lambda s: heads.coverage_independent(s.separability.mean(-1), s.heads),
                1e-6,
            ),
            equality=True,
        ),
        condition=Condition("every token has the same p", _same),
        corrected=(
            Form(
                "coverage <= 1 - (1-pbar)^H (Jensen)",
                at_most(
                    lambda s: s.coverage,
                    lambda s: heads.coverage_independent(s.separability.mean(-1), s.heads),
                    lambda s: torch.full_like(s.heads, 1e-14),
                ),
            ),
            Form(
                "coverage = mean of 1 - (1-p_i)^H",
                about(lambda s: s.coverage, lambda s: heads.coverage_of_tokens(s.separability, s.heads), 1e-9),
                equality=True,
            ),
        ),
    ),
)
