"""Theorem 1 and Corollary 2: the distance, its collapse, and its expectation computed by enumerating every set."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from attnscope.studies.audit.contract import Claim, Condition, Form, about, at_least, at_most, between
from attnscope.studies.audit.rows import ANY_SETS, FEW_OF_MANY, GROWING_ROWS, RANDOM_SETS, RandomSet
from attnscope.theory import distance, expectation
from attnscope.theory.configuration import Configuration, Interval
from attnscope.theory.expectation import every_distance

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def _rounding(c: Configuration) -> Tensor:
    return 1e-12 * c.length * (c.scaled_norms.sum(-1, keepdim=True) + c.squared_norms.amax(-1, keepdim=True).sqrt())


def _outweighs_others(c: Configuration) -> Tensor:
    """abar >= alpha_i for every token left out."""
    heaviest = torch.where(c.others, c.weights.unsqueeze(-2), 0).amax(-1)
    return c.top_mass >= heaviest


def _with_total(total: float, c: Configuration) -> Configuration:
    return replace(c, weights=total * c.weights)


def _below(statement: str, bound: Callable[[Configuration], Tensor]) -> Form[Configuration]:
    return Form(statement, at_most(distance.distance, bound, _rounding))


DISTANCE_CLAIMS = (
    Claim(
        "theorem-1-fixed", "Theorem 1(1)", ANY_SETS,
        printed=_below(
            "d~ <= (1-abar) d1 + max|x_j| [abar(L-N) - (1-abar)]",
            lambda c: distance.fixed_set_upper_printed(c, distance.farthest(c)),
        ),
        condition=Condition("abar >= alpha_i for every token left out, as for the top-N set", _outweighs_others),
        corrected=(
            _below(
                "d~ <= (A-abar) d1 + max|x_j| sum |abar - alpha_i|",
                lambda c: distance.fixed_set_upper_any(c, distance.farthest(c)),
            ),
            Form(
                "the same with weights that sum to 3",
                at_most(
                    lambda c: distance.distance(_with_total(3, c)),
                    lambda c: distance.fixed_set_upper_any(_with_total(3, c), distance.farthest(c)),
                    _rounding,
                ),
            ),
        ),
    ),
    Claim(
        "theorem-1-sharper", "not in the paper", ANY_SETS,
        corrected=(
            _below("B1: d~ <= sum alpha_i|x_i - xhat| + |abar - alpha_i||xhat|", distance.fixed_set_upper_split),
            _below("B2: d~ <= sum |y_i| + (L-N)|s|", distance.fixed_set_upper_triangle),
            _below("B3: d~ <= sqrt((L-N) sum |y_i - s|^2)", distance.fixed_set_upper),
            Form("B4: d~ >= |(L-N+1)s - xbar|", at_least(distance.distance, distance.fixed_set_lower, _rounding)),
            Form(
                "B3^2 - B4^2 <= (L-N) sum |y_i|^2",
                at_most(
                    lambda c: distance.fixed_set_upper(c).square() - distance.fixed_set_lower(c).square(),
                    distance.fixed_set_gap,
                    lambda c: _rounding(c) * distance.fixed_set_upper(c),
                ),
            ),
        ),
    ),
    Claim(
        "distance-collapses", "Introduction; section 4", GROWING_ROWS,
        printed=Form(
            "with N = L/2, d~ on a row is at most d~ on its first eighth",
            at_most(lambda s: distance.distance(s.long), lambda s: distance.distance(s.short)),
        ),
        corrected=(
            Form(
                "d~ >= (L-N+1)|s| - |xbar|",
                at_least(
                    lambda s: distance.distance(s.long),
                    lambda s: distance.growth_lower(s.long),
                    lambda s: _rounding(s.long),
                ),
            ),
            Form(
                "d~ <= (1 + N C2) max|x| if every weight is at most C2/L",
                at_most(
                    lambda s: distance.distance(s.long),
                    lambda s: distance.vanishing_upper(s.long, s.long.weights.amax(-1) * s.long.length.squeeze(-1)),
                    lambda s: _rounding(s.long),
                ),
            ),
        ),
        note="A distance that must collapse as L grows cannot be larger on a row eight times as long.",
    ),
)  # fmt: skip


PEELED = 2


def _mean(s: RandomSet) -> Tensor:
    return s.expectation


def _expectation_rounding(s: RandomSet) -> Tensor:
    return s.rounding


def _excess(s: RandomSet) -> Tensor:
    """epsilon of the corrected main term: the Jensen gap."""
    return s.expectation - expectation.random_set_lower(s.c)


def _width(s: RandomSet) -> Tensor:
    """Width of the interval of E1."""
    return expectation.random_set_upper(s.c) - expectation.random_set_lower(s.c)


def _last(s: RandomSet) -> Configuration:
    """The same row with all tokens but one in the set."""
    chosen = torch.arange(s.c.weights.shape[-1]) > 0
    return replace(s.c, selected=chosen.expand(s.c.selected.shape))


def _full(s: RandomSet) -> Tensor:
    """E at N = L."""
    return every_distance(s.c.weights, s.c.vectors, s.c.weights.shape[-1]).mean(-1, keepdim=True)


def _at_most(statement: str, bound: Callable[[Configuration], Tensor]) -> Form[RandomSet]:
    return Form(statement, at_most(_mean, lambda s: bound(s.c), _expectation_rounding))


def _at_least(statement: str, bound: Callable[[Configuration], Tensor]) -> Form[RandomSet]:
    return Form(statement, at_least(_mean, lambda s: bound(s.c), _expectation_rounding))


def _excess_below_width(statement: str) -> Form[RandomSet]:
    return Form(statement, at_most(_excess, _width, _expectation_rounding))


EXPECTATION_CLAIMS = (
    Claim(
        "theorem-1-random", "Theorem 1(2)", RANDOM_SETS,
        printed=_at_most(
            "E <= (1-N/L) sum |(alpha_i + p) x_i - xbar| + printed bound on eps",
            lambda c: expectation.random_set_main_printed(c) + expectation.random_set_epsilon_printed(c),
        ),
        corrected=(
            _at_most(
                "E1: E <= (1-N/L) sum min{ sqrt(|mu_i|^2 + V_i), |y_i| + p sum |y_j| }",
                lambda c: expectation.random_set_upper(c),
            ),
            _at_most(
                "E <= (1-N/L) sum |mu_i| + printed bound on eps, mu_i = (1+p) y_i - p xbar",
                lambda c: expectation.random_set_lower(c) + expectation.random_set_epsilon_printed(c),
            ),
        ),
        note="The main term is misprinted: N/(L-1) multiplies x_i instead of xbar - y_i.",
    ),
    Claim(
        "theorem-1-random-gap", "Theorem 1(2), eps a Jensen gap", RANDOM_SETS,
        printed=_at_least(
            "eps >= 0: E >= (1-N/L) sum |(alpha_i + p) x_i - xbar|", lambda c: expectation.random_set_main_printed(c)
        ),
        corrected=(
            _at_least("E1: E >= (1-N/L) sum |mu_i|", lambda c: expectation.random_set_lower(c)),
            _at_least(
                "E3: E >= (1-N/L) sum max{ |mu_i|, m2^(3/2)/m4^(1/2) }",
                lambda c: expectation.random_set_lower_moments(c),
            ),
        ),
    ),
    Claim(
        "theorem-1-random-epsilon", "Theorem 1(2), bound on eps", RANDOM_SETS,
        printed=Form(
            "eps = E - (1-N/L) sum |mu_i| <= (1/2)(1-N/L) sum p sum |y_j|^2 / |mu_i|",
            at_most(_excess, lambda s: expectation.random_set_epsilon_printed(s.c), _expectation_rounding),
            empty=lambda s: expectation.random_set_epsilon_printed(s.c).isinf(),
        ),
        corrected=(_excess_below_width("eps <= (1-N/L) sum [ sqrt(|mu_i|^2 + V_i) - |mu_i| ]"),),
        note="Read with the corrected main term; infinite where some mu_i = 0.",
    ),
    Claim(
        "epsilon-small", "after Theorem 1", space=replace(
            RANDOM_SETS,
            name="uniform weights, vectors, and a random set of N tokens (every set enumerated)",
            subject=lambda case: RANDOM_SETS.subject({**case, "masses": torch.ones_like(case["masses"])}),
        ),
        printed=Form(
            "with uniform weights eps is at most a tenth of the main term",
            at_most(_excess, lambda s: 0.1 * expectation.random_set_lower(s.c), _expectation_rounding),
        ),
        corrected=(_excess_below_width("eps <= E1 upper - E1 lower"),),
        note="'small whenever the weights are not too concentrated': uniform weights are the least concentrated.",
    ),
    Claim(
        "corollary-2-few", "Corollary 2(i)", FEW_OF_MANY,
        printed=Form(
            "E is within 25% of sum |y_i| for N <= L/10",
            about(_mean, lambda s: expectation.corollary_2_small_printed(s.c), 0.25),
            equality=True,
        ),
        corrected=(
            _at_most("E2: E <= (1-N/L)(N+1) sum |y_i|", lambda c: expectation.random_set_upper_global(c)),
            Form(
                "E1, both sides",
                between(
                    _mean,
                    lambda s: Interval(expectation.random_set_lower(s.c), expectation.random_set_upper(s.c)),
                    _expectation_rounding,
                ),
            ),
        ),
    ),
    Claim(
        "expectation-grows-linearly", "section 3.1, from Corollary 2(i)", FEW_OF_MANY,
        printed=Form(
            "E on a row is at least 1.5 times E on its first half, same N",
            at_least(_mean, lambda s: 1.5 * s.half.expectation),
        ),
        corrected=(
            _at_most(
                "E2: E <= (N+1) max|x|, at every length",
                lambda c: (c.count + 1) * c.squared_norms.amax(-1, keepdim=True).sqrt(),
            ),
        ),
    ),
    Claim(
        "corollary-2-full", "Corollary 2(ii)", RANDOM_SETS,
        printed=Form(
            "E = 0 at N = L",
            at_most(_full, lambda s: torch.zeros_like(s.c.count)),
            empty=lambda s: s.c.length == s.c.weights.shape[-1],
        ),
        corrected=(
            Form(
                "E at N = L-1 is the mean of |2 y_i - xbar|",
                between(
                    lambda s: RandomSet(_last(s)).expectation,
                    lambda s: Interval(*2 * (expectation.last_token_expectation(s.c).unsqueeze(-1),)),
                    _expectation_rounding,
                ),
                equality=True,
            ),
        ),
        note="At N = L no token is left out: the sum is empty whatever the weights and vectors are.",
    ),
    Claim(
        "expectation-peeled", "not in the paper", RANDOM_SETS,
        corrected=(
            Form(
                f"E within E1 conditioned on the {PEELED} largest |y|",
                between(_mean, lambda s: expectation.random_set_peeled(s.c, PEELED), _expectation_rounding),
            ),
        ),
    ),
    Claim(
        "distance-variance", "not in the paper", RANDOM_SETS,
        corrected=(
            Form(
                "E4: Var d~ <= (L-N+1)^2 N(L-N)/(L(L-1)) (sum |y_i|^2 - |xbar|^2/L)",
                at_most(
                    lambda s: s.variance,
                    lambda s: expectation.random_set_variance_upper(s.c),
                    lambda s: s.rounding * s.expectation,
                ),
            ),
            Form(
                "E d~^2 <= (L-N)^2/L sum (|mu_i|^2 + V_i)",
                at_most(
                    lambda s: s.variance + s.expectation.square(),
                    lambda s: expectation.random_set_second_moment_upper(s.c),
                    lambda s: s.rounding * s.expectation,
                ),
            ),
        ),
    ),
)  # fmt: skip
