"""The appendix: significance levels, a step of the proof of Theorem 2, random directions, rows with invisible keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle
from typing import TYPE_CHECKING

import torch

from attnscope.studies.audit.contract import (
    BATCH,
    SHAPES,
    Case,
    Claim,
    Form,
    Space,
    about,
    at_least,
    at_most,
    between,
    masses,
    mixed,
    normal,
    normalized,
    on_sphere,
    plain,
    points,
    positive,
    uniform,
    whole,
)
from attnscope.studies.audit.logits import SOFTMAX_LOGITS, SoftmaxRow
from attnscope.studies.audit.rows import counted, directed
from attnscope.theory import appendix, gradient
from attnscope.theory.appendix import ALGORITHM_LEVEL, CAPTION_LEVEL
from attnscope.theory.configuration import Configuration, Interval, ranks
from attnscope.theory.distance import distance
from attnscope.theory.geometry import ball

if TYPE_CHECKING:
    from torch import Generator, Tensor

DIRECTIONS = 400
SIGMAS = 5.0


def _draw_tests(generator: Generator) -> Iterator[Case]:
    for sizes in cycle((1, 2, 3, 7)):
        yield {"p": uniform(generator, BATCH, sizes) ** whole(generator, 1, 5, BATCH, 1)}


P_VALUES = Space(
    name="p-values of tests at N = 1, 2, ...",
    axes={"p": ("sizes",)},
    draw=_draw_tests,
    subject=lambda case: case["p"],
    valid=lambda case: ((case["p"] >= 0) & (case["p"] <= 1)).all(-1),
    show=lambda p: {"p": plain(p[0])},
    trials=1000,
)


@dataclass(frozen=True)
class BoundedVariable:
    """A variable Z in [0, 2] with finitely many values, a radius, and a bound xi on its expectation."""

    values: Tensor  # (batch, values)
    chances: Tensor  # (batch, values)
    radius: Tensor  # (batch,)
    excess: Tensor  # (batch,), xi - E Z

    @cached_property
    def mean(self) -> Tensor:
        """E Z, (batch,)."""
        return (self.chances * self.values).sum(-1)

    @cached_property
    def below(self) -> Tensor:
        """P(Z <= r), (batch,)."""
        return torch.where(self.values <= self.radius.unsqueeze(-1), self.chances, 0).sum(-1)

    @property
    def xi(self) -> Tensor:
        """A number that E Z does not exceed, (batch,)."""
        return self.mean + self.excess


def _draw_variables(generator: Generator) -> Iterator[Case]:
    for values in cycle((1, 2, 3, 5)):
        spread = 2 * uniform(generator, BATCH, values)
        yield {
            "values": mixed(generator, [spread, whole(generator, 0, 3, BATCH, values)]),
            "masses": masses(generator, BATCH, values),
            "radius": 2 * uniform(generator, BATCH),
            "excess": mixed(generator, [uniform(generator, BATCH), torch.zeros(BATCH, dtype=torch.float64)]),
        }


BOUNDED_VARIABLES = Space(
    name="a variable Z in [0, 2], a radius r, and xi >= E Z",
    axes={"values": ("values",), "masses": ("values",), "radius": (), "excess": ()},
    draw=_draw_variables,
    subject=lambda case: BoundedVariable(case["values"], normalized(case["masses"]), case["radius"], case["excess"]),
    valid=lambda case: (
        ((case["values"] >= 0) & (case["values"] <= 2)).all(-1)
        & positive(case)
        & (case["radius"] >= 0)
        & (case["radius"] <= 2)
        & (case["excess"] >= 0)
    ),
    show=lambda s: {
        "Z": plain(s.values[0]),
        "chances": plain(s.chances[0]),
        "r": plain(s.radius[0]),
        "xi": plain(s.xi[0]),
    },
    trials=2000,
)


@dataclass(frozen=True)
class RandomDirections:
    """A softmax row, and the mean of |J v| over random unit vectors v."""

    row: SoftmaxRow

    @cached_property
    def lengths(self) -> tuple[Tensor, Tensor]:
        """Mean of T |J v| over v uniform on the sphere, and a bound on its sampling error; (batch,) each."""
        weights = self.row.weights
        v = on_sphere(normal(torch.Generator().manual_seed(13), DIRECTIONS, weights.shape[-1]))
        products = weights @ v.T  # alpha . v
        lengths = (weights.unsqueeze(1) * (v - products.unsqueeze(-1))).norm(dim=-1)
        return lengths.mean(-1), SIGMAS * lengths.std(-1) / DIRECTIONS**0.5


RANDOM_DIRECTIONS = Space(
    name="a softmax row at temperature T and random unit directions (drawn)",
    axes=SOFTMAX_LOGITS.axes,
    least=SOFTMAX_LOGITS.least,
    draw=SOFTMAX_LOGITS.draw,
    subject=lambda case: RandomDirections(SOFTMAX_LOGITS.subject(case)),
    valid=SOFTMAX_LOGITS.valid,
    show=lambda s: SOFTMAX_LOGITS.show(s.row),
    trials=1000,
)


@dataclass(frozen=True)
class CausalRow:
    """A row that sees t of L keys, with the set of its N < t largest weights, in both readings."""

    visible: Configuration
    hidden: Tensor  # (batch, 1, 1), L - t

    @cached_property
    def literal(self) -> Configuration:
        """The same row with its invisible keys as tokens of weight zero."""
        c = self.visible
        most = int(self.hidden.max())
        batch, keys, dims = c.vectors.shape
        weights = torch.cat([c.weights, torch.zeros(batch, 1, most, dtype=c.weights.dtype)], -1)
        vectors = torch.cat([c.vectors, on_sphere(torch.ones(batch, most, dims, dtype=c.vectors.dtype))], 1)
        tokens = torch.arange(keys + most) < keys + self.hidden
        selected = torch.cat([c.selected, torch.zeros(batch, 1, 1, most, dtype=torch.bool)], -1)
        return Configuration(weights, vectors, tokens, selected)


def _draw_causal(generator: Generator) -> Iterator[Case]:
    for keys, dims in cycle(SHAPES):
        yield {
            "masses": masses(generator, BATCH, keys),
            "vectors": points(generator, BATCH, keys, dims),
            "count": whole(generator, 1, keys, BATCH),
            "hidden": whole(generator, 0, 6, BATCH),
        }


def _causal(case: Case) -> CausalRow:
    seen = torch.ones_like(case["masses"], dtype=torch.bool)
    chosen = ranks(case["masses"], seen) < case["count"].unsqueeze(-1)
    weights = normalized(case["masses"]).unsqueeze(1)
    visible = Configuration(weights, on_sphere(case["vectors"]), seen.unsqueeze(1), chosen[:, None, None, :])
    return CausalRow(visible, case["hidden"][:, None, None])


CAUSAL_ROWS = Space(
    name="a row that sees t of L keys, unit vectors, and the set of its N < t largest weights",
    axes={"masses": ("keys",), "vectors": ("keys", "dims"), "count": (), "hidden": ()},
    least={"keys": 2},
    draw=_draw_causal,
    subject=_causal,
    valid=lambda case: counted(case) & (case["hidden"] >= 0) & directed(case),
    show=lambda s: {
        "weights": plain(s.visible.weights[0, 0]),
        "vectors": plain(s.visible.vectors[0]),
        "N": int(s.visible.count[0]),
        "invisible keys": int(s.hidden[0]),
    },
    integers=frozenset({"count", "hidden"}),
)


def _few_ulps(s: BoundedVariable) -> Tensor:
    return torch.full_like(s.mean, 1e-14)


def _sampling_error(s: RandomDirections) -> Tensor:
    return s.lengths[1] + 1e-13


def _rounding(s: CausalRow) -> Tensor:
    return 1e-12 * (s.visible.length + s.hidden)


def _exactly(
    statement: str, quantity: Callable[[CausalRow], Tensor], value: Callable[[CausalRow], Tensor]
) -> Form[CausalRow]:
    return Form(statement, between(quantity, lambda s: Interval(*2 * (value(s),)), _rounding), equality=True)


APPENDIX_CLAIMS = (
    Claim(
        "appendix-significance", "Algorithm 3 and caption of Fig. 2c", P_VALUES,
        printed=Form(
            "the first N accepted at 0.05 (algorithm) is that accepted at 0.01 (section 3.1, caption)",
            about(
                lambda p: appendix.first_accepted(p, ALGORITHM_LEVEL),
                lambda p: appendix.first_accepted(p, CAPTION_LEVEL),
                0.0,
            ),
            equality=True,
        ),
        corrected=(
            Form(
                "first N at 0.01 <= first N at 0.05",
                at_most(
                    lambda p: appendix.first_accepted(p, CAPTION_LEVEL),
                    lambda p: appendix.first_accepted(p, ALGORITHM_LEVEL),
                ),
            ),
            Form(
                "the same for the N from which on every one is accepted",
                at_most(
                    lambda p: appendix.persistently_accepted(p, CAPTION_LEVEL),
                    lambda p: appendix.persistently_accepted(p, ALGORITHM_LEVEL),
                ),
            ),
        ),
        note="Stated twice, differently. A KS test of 6 against 6 heads with D = 5/6 has p = 0.026: between the two.",
    ),
    Claim(
        "appendix-hoeffding", "Appendix, proof of Theorem 2", BOUNDED_VARIABLES,
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
        "appendix-random-direction", "Algorithm 5; section 3.3", RANDOM_DIRECTIONS,
        printed=Form(
            "the mean of |J v| over random unit v approximates |J|_2: it is at least half of it",
            at_least(lambda s: s.lengths[0], lambda s: s.row.temperature * s.row.norm / 2, _sampling_error),
        ),
        corrected=(
            Form(
                "c_L |J|_F <= mean of |J v| <= |J|_F/sqrt L, c_L = Gamma(L/2)/(sqrt(pi) Gamma((L+1)/2))",
                between(
                    lambda s: s.lengths[0], lambda s: gradient.random_direction_bounds(s.row.weights), _sampling_error
                ),
            ),
        ),
        note="c_L > sqrt(2/(pi L)), and |J|_2 <= |J|_F: for two live logits the mean is sqrt(2/(pi L)) of the norm.",
    ),
    Claim(
        "appendix-literal-distance", "Algorithms 1 to 3, I = {1..L}", CAUSAL_ROWS,
        printed=Form(
            "keys that a causal row cannot see do not change d~",
            at_most(lambda s: distance(s.literal), lambda s: distance(s.visible), _rounding),
        ),
        corrected=(
            _exactly(
                "they add exactly (L-t)|s|",
                lambda s: distance(s.literal),
                lambda s: appendix.literal_distance(s.visible, s.hidden),
            ),
        ),
        note="With N >= t the top set is the whole row and zeros: d~ = (L-N)|xbar|.",
    ),
    Claim(
        "appendix-literal-radius", "Algorithm 4, I = {1..L}", CAUSAL_ROWS,
        printed=Form(
            "keys that a causal row cannot see do not change r",
            at_least(lambda s: ball(s.literal).radius, lambda s: ball(s.visible).radius, _rounding),
        ),
        corrected=(
            _exactly(
                "r becomes min(r, |s|)",
                lambda s: ball(s.literal).radius,
                lambda s: appendix.literal_radius(s.visible, s.hidden),
            ),
            Form(
                "Ns/N does not grow",
                at_most(lambda s: ball(s.literal).separability, lambda s: ball(s.visible).separability),
            ),
        ),
    ),
)  # fmt: skip
