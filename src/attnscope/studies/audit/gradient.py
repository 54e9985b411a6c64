"""Section 2.3, Lemma 2, Corollary 3 and the dashed curve of Figure 4."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from attnscope.studies.audit.contract import Claim, Condition, Form, about, at_least, at_most, between
from attnscope.studies.audit.logits import EXPONENTIAL, SEPARABLE_LOGITS, SOFTMAX_LOGITS, STEPS, TWO_LOGITS
from attnscope.theory import gradient
from attnscope.theory.configuration import Interval

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from attnscope.studies.audit.logits import SeparableRow, SoftmaxRow, TwoLogits

SHIFT = 10.0


def _exponential(s: SeparableRow) -> Tensor:
    return torch.isin(s.family, torch.tensor(EXPONENTIAL, dtype=s.family.dtype)).unsqueeze(-1)


def _rounding(s: SeparableRow) -> Tensor:
    return 1e-13 * s.log_slopes.abs().amax(-1)


def _steep(s: SoftmaxRow) -> Tensor:
    return 1e-13 / s.temperature


def _range_bracket(s: SoftmaxRow) -> Interval:
    logit_range = s.logits.amax(-1) - s.logits.amin(-1)
    return gradient.softmax_bound_of_range(logit_range, s.temperature, s.length)


def _tied_pair(s: SoftmaxRow) -> Tensor:
    """|J|_2 at two tied logits, with the others lower by the row's range."""
    logit_range = s.logits.amax(-1, keepdim=True) - s.logits.amin(-1, keepdim=True)
    low = torch.where(torch.arange(s.logits.shape[-1]) < 2, torch.zeros_like(logit_range), -logit_range)
    return replace(s, logits=low).norm


def _entry_below(statement: str, bound: Callable[[SeparableRow], Tensor]) -> Form[SeparableRow]:
    return Form(statement, at_most(lambda s: s.largest_entry, bound, _rounding))


def _norm_below(statement: str, bound: Callable[[SeparableRow], Tensor]) -> Form[SeparableRow]:
    return Form(statement, at_most(lambda s: s.norm, bound, _rounding))


def _responds(statement: str, value: Callable[[TwoLogits], Tensor], tolerance: float) -> Form[TwoLogits]:
    return Form(statement, about(lambda s: s.response, value, tolerance), equality=True)


GRADIENT_CLAIMS = (
    Claim(
        "two-logit-distance", "section 2.3", TWO_LOGITS,
        printed=Form(
            "|l1 - l2| = sqrt 5 eps", about(lambda s: s.distance, lambda s: math.sqrt(5) * s.step, 1e-6), equality=True
        ),
    ),
    Claim(
        "two-logit-response", "section 2.3", TWO_LOGITS,
        printed=_responds(
            "|alpha1 - alpha2| is within 10% of sqrt 2 eps/T",
            lambda s: gradient.two_logit_response_printed(s.step, s.first.temperature),
            0.1,
        ),
        corrected=(
            _responds(
                "|alpha1 - alpha2| = sqrt 2 [sigma(eps/T) - sigma(-2eps/T)]",
                lambda s: gradient.two_logit_response(s.step, s.first.temperature),
                1e-6,
            ),
            _responds(
                "|alpha1 - alpha2| is within 5% of (3 sqrt 2/4) eps/T",
                lambda s: 0.75 * math.sqrt(2) * s.step / s.first.temperature,
                0.05,
            ),
            Form(
                "|alpha1 - alpha2| <= (sqrt 5/2) eps/T",
                at_most(lambda s: s.response, lambda s: gradient.softmax_bound(s.first.temperature) * s.distance),
            ),
        ),
    ),
    Claim(
        "lemma-2-entry", "Lemma 2, first term, entries", SEPARABLE_LOGITS,
        printed=_entry_below(
            "max|J_ij| <= max|F'| [1/(L min F) + max F/(L^2 min F^2)]",
            lambda s: gradient.lemma_2_printed(s.values, s.slopes),
        ),
        corrected=(_entry_below("J4: max|J_ij| <= max|g|/4", lambda s: gradient.separable_bound_entry(s.log_slopes)),),
    ),
    Claim(
        "lemma-2-spectral", "Lemma 2, first term, norm", SEPARABLE_LOGITS,
        printed=_norm_below(
            "|J|_2 <= max|F'| [1/(L min F) + max F/(L^2 min F^2)]",
            lambda s: gradient.lemma_2_printed(s.values, s.slopes),
        ),
        condition=Condition("F' proportional to F, as for softmax", _exponential),
        corrected=(
            _norm_below(
                "J1: |J|_2 <= max|g| h(alpha_max)", lambda s: gradient.separable_bound(s.weights, s.log_slopes)
            ),
            _norm_below(
                "J2: |J|_2 <= sqrt(L) |alpha| max|F'|/S",
                lambda s: gradient.separable_bound_projector(s.values, s.slopes),
            ),
            _norm_below(
                "J3: |J|_2 <= max|g| sqrt(q(1-q)), q = sum alpha^2",
                lambda s: gradient.separable_bound_frobenius(s.weights, s.log_slopes),
            ),
        ),
    ),
    Claim(
        "lemma-2-cap", "Lemma 2, sqrt 2 cap", SEPARABLE_LOGITS,
        printed=Form(
            "max|J_ij| <= sqrt 2, the weaker reading",
            at_most(lambda s: s.largest_entry, lambda s: torch.full_like(s.norm, gradient.PRINTED_CAP)),
        ),
        corrected=(_norm_below("|J|_2 <= max|g|/2", lambda s: 2 * gradient.separable_bound_entry(s.log_slopes)),),
    ),
    Claim(
        "vanishing-minimum", "section 4, gradient bound", space=replace(
            SEPARABLE_LOGITS,
            name="F = sigmoid, logits lowered by 10",
            subject=lambda case: SEPARABLE_LOGITS.subject({**case, "family": torch.full_like(case["family"], 2)}),
            valid=lambda case: SEPARABLE_LOGITS.valid(case) & (case["logits"].abs().amax(-1) <= 5),
        ),
        printed=Form(
            "|J|_2 grows tenfold when min F falls by more than a hundred",
            at_least(lambda s: replace(s, logits=s.logits - SHIFT).norm, lambda s: 10 * s.norm, _rounding),
        ),
        corrected=(
            Form(
                "|J|_2 <= max|g|/2 <= 1/2 however small F becomes",
                at_most(lambda s: replace(s, logits=s.logits - SHIFT).norm, lambda s: torch.full_like(s.norm, 0.5)),
            ),
        ),
        note="'any normaliser with a vanishing minimum value will inherit the same instability'.",
    ),
    Claim(
        "corollary-3-entry", "Corollary 3, 1/(4T), entries", SOFTMAX_LOGITS,
        printed=Form(
            "max|J_ij| <= 1/(4T)", at_most(lambda s: s.largest_entry, lambda s: 1 / (4 * s.temperature), _steep)
        ),
    ),
    Claim(
        "corollary-3", "Corollary 3, norm", SOFTMAX_LOGITS,
        printed=Form(
            "|J|_2 <= min{ 1/(4T), sqrt 2 }",
            at_most(lambda s: s.norm, lambda s: gradient.softmax_bound_printed(s.temperature), _steep),
        ),
        corrected=(
            Form("|J|_2 <= 1/(2T)", at_most(lambda s: s.norm, lambda s: gradient.softmax_bound(s.temperature), _steep)),
            Form(
                "max{ alpha_(2), alpha_(1)(1-alpha_(1)) } <= T |J|_2 <= h(alpha_max)",
                between(
                    lambda s: s.temperature * s.norm,
                    lambda s: Interval(gradient.jacobian_lower(s.weights), gradient.jacobian_bound(s.weights)),
                    lambda s: torch.full_like(s.norm, 1e-13),
                ),
            ),
            Form(
                "the root of the secular equation is |J|_2",
                between(lambda s: s.norm, lambda s: Interval(s.secular_norm, s.secular_norm), _steep),
                equality=True,
            ),
            Form(
                "1/(2+(L-2)e^(-R/T)) <= T sup|J|_2 over range R",
                at_least(_tied_pair, lambda s: _range_bracket(s).lower, _steep),
            ),
            Form(
                "T|J|_2 <= 1/(1+(L-1)e^(-R/T)) over range R",
                at_most(lambda s: s.norm, lambda s: _range_bracket(s).upper, _steep),
            ),
        ),
    ),
    Claim(
        "figure-4-bound", "Figure 4, dashed curve", STEPS,
        printed=Form(
            "g(T, eps) <= min{ 1/(4T), sqrt 2 }",
            at_most(
                lambda s: s.quotient,
                lambda s: gradient.softmax_bound_printed(s.before.temperature),
                lambda s: s.rounding,
            ),
        ),
        corrected=(
            Form(
                "g(T, eps) <= (sqrt 2/eps) tanh(eps/(2 sqrt 2 T))",
                at_most(
                    lambda s: s.quotient,
                    lambda s: gradient.finite_difference_bound(s.before.temperature, s.step),
                    lambda s: s.rounding,
                ),
            ),
        ),
    ),
)  # fmt: skip
