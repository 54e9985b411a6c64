"""The appendix: its significance levels, a step of its proof of Theorem 2, random directions, and literal rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from attnscope.studies.audit import Claim, Form, about, at_least, at_most, between
from attnscope.studies.audit.spaces import BOUNDED_VARIABLES, CAUSAL_ROWS, P_VALUES, RANDOM_DIRECTIONS
from attnscope.theory import appendix, gradient
from attnscope.theory.appendix import ALGORITHM_LEVEL, CAPTION_LEVEL
from attnscope.theory.configuration import Interval
from attnscope.theory.distance import distance
from attnscope.theory.geometry import ball

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.studies.audit.spaces_appendix import BoundedVariable, CausalRow, RandomDirections


def _few_ulps(s: BoundedVariable) -> Tensor:
    return torch.full_like(s.mean, 1e-14)


def _error(s: RandomDirections) -> Tensor:
    return s.lengths[1] + 1e-13


def _rounding(s: CausalRow) -> Tensor:
    return 1e-12 * (s.visible.length + s.hidden)


def _literal_distance(s: CausalRow) -> Interval:
    value = appendix.literal_distance(s.visible, s.hidden)
    return Interval(value, value)


def _literal_radius(s: CausalRow) -> Interval:
    value = appendix.literal_radius(s.visible, s.hidden)
    return Interval(value, value)


CLAIMS = (
    Claim(
        id="appendix-significance",
        place="Algorithm 3 and caption of Fig. 2c",
        space=P_VALUES,
        printed=Form(
            "the first N accepted at 0.05 (algorithm) is that accepted at 0.01 (section 3.1, caption)",
            about(
                lambda s: appendix.first_accepted(s.p, ALGORITHM_LEVEL),
                lambda s: appendix.first_accepted(s.p, CAPTION_LEVEL),
                0.0,
            ),
            equality=True,
        ),
        corrected=(
            Form(
                "first N at 0.01 <= first N at 0.05",
                at_most(
                    lambda s: appendix.first_accepted(s.p, CAPTION_LEVEL),
                    lambda s: appendix.first_accepted(s.p, ALGORITHM_LEVEL),
                ),
            ),
            Form(
                "the same for the N from which on every one is accepted",
                at_most(
                    lambda s: appendix.persistently_accepted(s.p, CAPTION_LEVEL),
                    lambda s: appendix.persistently_accepted(s.p, ALGORITHM_LEVEL),
                ),
            ),
        ),
        note="Stated twice, differently. A KS test of 6 against 6 heads with D = 5/6 has p = 0.026: between the two.",
    ),
    Claim(
        id="appendix-hoeffding",
        place="Appendix, proof of Theorem 2",
        space=BOUNDED_VARIABLES,
        printed=Form(
            "P(Z <= r) <= exp(-(r - xi)^2/16) for one Z in [0, 2], E Z <= xi",
            at_most(lambda s: s.below, lambda s: appendix.lower_tail_printed(s.radius, s.xi)),
        ),
        corrected=(
            Form(
                "Hoeffding: P(Z <= r) <= exp(-(E Z - r)_+^2/2)",
                at_most(lambda s: s.below, lambda s: appendix.lower_tail_hoeffding(s.radius, s.mean), _few_ulps),
            ),
            Form(
                "Markov: P(Z <= r) <= (2 - E Z)/(2 - r) for r < E Z",
                at_most(lambda s: s.below, lambda s: appendix.lower_tail_markov(s.radius, s.mean), _few_ulps),
            ),
        ),
        note="Z = |W_i|. One variable does not concentrate, and xi is not its expectation but an upper bound on it.",
    ),
    Claim(
        id="appendix-random-direction",
        place="Algorithm 5; section 3.3",
        space=RANDOM_DIRECTIONS,
        printed=Form(
            "the mean of |J v| over random unit v approximates |J|_2: it is at least half of it",
            at_least(lambda s: s.lengths[0], lambda s: s.row.temperature * s.row.norm / 2, _error),
        ),
        corrected=(
            Form(
                "c_L |J|_F <= mean of |J v| <= |J|_F/sqrt L, c_L = Gamma(L/2)/(sqrt(pi) Gamma((L+1)/2))",
                between(lambda s: s.lengths[0], lambda s: gradient.random_direction_bounds(s.row.weights), _error),
            ),
        ),
        note="c_L > sqrt(2/(pi L)), and |J|_2 <= |J|_F: for two live logits the mean is sqrt(2/(pi L)) of the norm.",
    ),
    Claim(
        id="appendix-literal-distance",
        place="Algorithms 1 to 3, I = {1..L}",
        space=CAUSAL_ROWS,
        printed=Form(
            "keys that a causal row cannot see do not change d~",
            at_most(lambda s: distance(s.literal), lambda s: distance(s.visible), _rounding),
        ),
        corrected=(
            Form(
                "they add exactly (L-t)|s|",
                between(lambda s: distance(s.literal), _literal_distance, _rounding),
                equality=True,
            ),
        ),
        note="With N >= t the top set is the whole row and zeros: d~ = (L-N)|xbar|.",
    ),
    Claim(
        id="appendix-literal-radius",
        place="Algorithm 4, I = {1..L}",
        space=CAUSAL_ROWS,
        printed=Form(
            "keys that a causal row cannot see do not change r",
            at_least(lambda s: ball(s.literal).radius, lambda s: ball(s.visible).radius, _rounding),
        ),
        corrected=(
            Form(
                "r becomes min(r, |s|)",
                between(lambda s: ball(s.literal).radius, _literal_radius, _rounding),
                equality=True,
            ),
            Form(
                "Ns/N does not grow",
                at_most(lambda s: ball(s.literal).separability, lambda s: ball(s.visible).separability),
            ),
        ),
    ),
)
