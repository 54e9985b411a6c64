"""The configurations of the appendix: p-values, bounded variables, random directions, rows with invisible keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle
from typing import TYPE_CHECKING

import torch

from attnscope.studies.audit.contract import Case, Space
from attnscope.studies.audit.spaces_families import (
    BATCH,
    SHAPES,
    masses,
    mixed,
    normal,
    normalized,
    on_sphere,
    plain,
    points,
    uniform,
    whole,
)
from attnscope.studies.audit.spaces_logits import SOFTMAX_LOGITS, SoftmaxRow
from attnscope.theory.configuration import Configuration, ranks

if TYPE_CHECKING:
    from torch import Generator, Tensor

DIRECTIONS = 400
SIGMAS = 5.0


@dataclass(frozen=True)
class Tests:
    """p-values of tests at N = 1, 2, ..., (batch, sizes)."""

    p: Tensor


def _draw_tests(generator: Generator) -> Iterator[Case]:
    for sizes in cycle((1, 2, 3, 7)):
        yield {"p": uniform(generator, BATCH, sizes) ** whole(generator, 1, 5, BATCH, 1)}


P_VALUES = Space(
    name="p-values of tests at N = 1, 2, ...",
    axes={"p": ("sizes",)},
    draw=_draw_tests,
    subject=lambda case: Tests(case["p"]),
    valid=lambda case: ((case["p"] >= 0) & (case["p"] <= 1)).all(-1),
    show=lambda s: {"p": plain(s.p[0])},
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
        & (case["masses"] >= 0).all(-1)
        & (case["masses"].sum(-1) > 0)
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
    valid=lambda case: (
        (case["masses"] >= 0).all(-1)
        & (case["masses"].sum(-1) > 0)
        & (case["count"] >= 1)
        & (case["count"] < case["masses"].shape[-1])
        & (case["hidden"] >= 0)
        & (case["vectors"].norm(dim=-1) > 1e-6).all(-1)
    ),
    show=lambda s: {
        "weights": plain(s.visible.weights[0, 0]),
        "vectors": plain(s.visible.vectors[0]),
        "N": int(s.visible.count[0]),
        "invisible keys": int(s.hidden[0]),
    },
    integers=frozenset({"count", "hidden"}),
)
