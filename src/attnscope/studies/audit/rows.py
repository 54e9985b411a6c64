"""Rows with vectors and sets: the configurations of Theorem 1, the unit vectors of Theorem 2, and heads of section 4.

Parameters: `masses` (keys), normalized to the weights; `vectors` (keys, dims); and the set, as `chosen` (keys) for an
arbitrary one or as its size `count`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import cycle
from typing import TYPE_CHECKING, Any

import torch

from attnscope.studies.audit.contract import (
    BATCH,
    SHAPES,
    Case,
    Space,
    masses,
    mixed,
    normalized,
    on_sphere,
    plain,
    points,
    positive,
    uniform,
    whole,
)
from attnscope.theory.configuration import Configuration, ranks
from attnscope.theory.expectation import every_distance

if TYPE_CHECKING:
    from torch import Generator, Tensor

    Shapes = tuple[tuple[int, int], ...]


def _configuration(weights: Tensor, vectors: Tensor, selected: Tensor) -> Configuration:
    """One row and one set for each configuration of the batch."""
    rows = weights.unsqueeze(1)
    return Configuration(rows, vectors, torch.ones_like(rows, dtype=torch.bool), selected[:, None, None, :])


def _top(case: Case) -> Tensor:
    masses = case["masses"]
    return ranks(masses, torch.ones_like(masses, dtype=torch.bool)) < case["count"].unsqueeze(-1)


def _draw_rows(shapes: Shapes, most: int | None = None) -> Any:
    """A stream of rows with a set size from 1 to L - 1, and at most `most`."""

    def draw(generator: Generator) -> Iterator[Case]:
        for keys, dims in cycle(shapes):
            highest = keys if most is None else min(keys, most + 1)
            yield {
                "masses": masses(generator, BATCH, keys),
                "vectors": points(generator, BATCH, keys, dims),
                "count": whole(generator, 1, highest, BATCH),
            }

    return draw


def _draw_sets(generator: Generator) -> Iterator[Case]:
    """Rows with arbitrary sets in half of the configurations and top sets in the other half."""
    for case in _draw_rows(SHAPES)(generator):
        arbitrary = uniform(generator, *case["masses"].shape) < 0.5
        top = uniform(generator, BATCH, 1) < 0.5
        chosen = torch.where(top, _top(case), arbitrary).to(torch.float64)
        yield {"masses": case["masses"], "vectors": case["vectors"], "chosen": chosen}


def counted(case: Case) -> Tensor:
    """Which configurations have a set of N < L tokens."""
    return positive(case) & (case["count"] >= 1) & (case["count"] < case["masses"].shape[-1])


def directed(case: Case) -> Tensor:
    """Which configurations have vectors that can be scaled to length one."""
    return (case["vectors"].norm(dim=-1) > 1e-6).all(-1)


def _chosen(case: Case) -> Tensor:
    chosen = case["chosen"]
    members = chosen.sum(-1)
    flags = ((chosen == 0) | (chosen == 1)).all(-1)
    return positive(case) & flags & (members >= 1) & (members < chosen.shape[-1])


def _show(c: Configuration) -> dict[str, Any]:
    return {
        "weights": plain(c.weights[0, 0]),
        "vectors": plain(c.vectors[0]),
        "set": [k + 1 for k in c.selected[0, 0, 0].nonzero().flatten().tolist()],
    }


_COUNTED_AXES = {"masses": ("keys",), "vectors": ("keys", "dims"), "count": ()}

ANY_SETS = Space(
    name="a row of weights summing to one, vectors, and any set of its tokens",
    axes={"masses": ("keys",), "vectors": ("keys", "dims"), "chosen": ("keys",)},
    least={"keys": 2},
    draw=_draw_sets,
    subject=lambda case: _configuration(normalized(case["masses"]), case["vectors"], case["chosen"] > 0),
    valid=_chosen,
    show=_show,
    integers=frozenset({"chosen"}),
)

TOP_SETS = Space(
    name="a row of weights summing to one, vectors, and the set of its N largest weights",
    axes=_COUNTED_AXES,
    least={"keys": 2},
    draw=_draw_rows(SHAPES),
    subject=lambda case: _configuration(normalized(case["masses"]), case["vectors"], _top(case)),
    valid=counted,
    show=_show,
    integers=frozenset({"count"}),
)

UNIT_TOP_SETS = replace(
    TOP_SETS,
    name="a row of weights, vectors on the unit sphere, and the set of its N largest weights",
    subject=lambda case: _configuration(normalized(case["masses"]), on_sphere(case["vectors"]), _top(case)),
    valid=lambda case: counted(case) & directed(case),
)


@dataclass(frozen=True)
class RandomSet:
    """A row and a set size N, with the mean and variance of the distance over all sets of that size."""

    c: Configuration

    @cached_property
    def distances(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of d~ over all sets, (batch, 1, 1) each."""
        counts = self.c.count.flatten().to(torch.long)
        mean, variance = torch.zeros_like(self.c.count), torch.zeros_like(self.c.count)
        for n in counts.unique().tolist():
            same = counts == n
            values = every_distance(self.c.weights[same], self.c.vectors[same], n)
            mean[same] = values.mean(-1, keepdim=True)
            variance[same] = values.var(-1, correction=0, keepdim=True)
        return mean, variance

    @property
    def expectation(self) -> Tensor:
        """E of eq. (8)."""
        return self.distances[0]

    @property
    def variance(self) -> Tensor:
        """The variance of d~."""
        return self.distances[1]

    @cached_property
    def rounding(self) -> Tensor:
        """Bound on the rounding error of the sums."""
        return 1e-12 * self.c.length * self.c.scaled_norms.sum(-1, keepdim=True)

    @cached_property
    def half(self) -> RandomSet:
        """The first half of the row, weights renormalized, with the same N."""
        keys = self.c.weights.shape[-1] // 2
        shorter = normalized(self.c.weights[..., :keys])
        chosen = torch.arange(keys) < self.c.count.unsqueeze(-1)
        return RandomSet(
            Configuration(shorter, self.c.vectors[:, :keys], torch.ones_like(shorter, dtype=torch.bool), chosen)
        )


def _random_set(case: Case) -> RandomSet:
    return RandomSet(_configuration(normalized(case["masses"]), case["vectors"], _top(case)))


def _show_random(s: RandomSet) -> dict[str, Any]:
    return {"weights": plain(s.c.weights[0, 0]), "vectors": plain(s.c.vectors[0]), "N": int(s.c.count[0])}


RANDOM_SETS = Space(
    name="a row of weights summing to one, vectors, and a random set of N tokens (every set enumerated)",
    axes=_COUNTED_AXES,
    least={"keys": 2},
    draw=_draw_rows(((2, 1), (3, 1), (3, 2), (4, 1), (4, 3), (5, 2), (5, 7), (7, 3))),
    subject=_random_set,
    valid=counted,
    show=_show_random,
    trials=2000,
    integers=frozenset({"count"}),
)

FEW_OF_MANY = replace(
    RANDOM_SETS,
    name="a row with positive weights and a random set of at most a tenth of its tokens (every set enumerated)",
    least={"keys": 10},
    draw=_draw_rows(((10, 1), (11, 2), (13, 17), (23, 3)), most=2),
    valid=lambda case: counted(case) & (10 * case["count"] <= case["masses"].shape[-1]) & (case["masses"] > 0).all(-1),
    trials=1000,
)


@dataclass(frozen=True)
class GrowingRow:
    """A long row and its first eighth, each with the top half of its tokens selected."""

    long: Configuration
    short: Configuration


def _growing(case: Case) -> GrowingRow:
    def upper_half(keys: int) -> Configuration:
        part = case["masses"][:, :keys]
        count = torch.full((len(part),), keys // 2, dtype=part.dtype)
        cut = {"masses": part, "count": count}
        return _configuration(normalized(part), case["vectors"][:, :keys], _top(cut))

    keys = case["masses"].shape[-1]
    return GrowingRow(upper_half(keys), upper_half(keys // 8))


def _draw_growing(generator: Generator) -> Iterator[Case]:
    for keys, dims in cycle(((32, 1), (40, 2), (64, 5))):
        yield {"masses": masses(generator, BATCH, keys), "vectors": points(generator, BATCH, keys, dims)}


GROWING_ROWS = Space(
    name="a row of 32 tokens or more and its first eighth, N = L/2 in both",
    axes={"masses": ("keys",), "vectors": ("keys", "dims")},
    least={"keys": 32},
    draw=_draw_growing,
    subject=_growing,
    valid=lambda case: (case["masses"] > 0).all(-1) & directed(case),
    show=lambda s: _show(s.long) | {"short row": f"the first {s.short.weights.shape[-1]} tokens, weights renormalized"},
    trials=1000,
)


@dataclass(frozen=True)
class Covered:
    """Which head covers which token, (batch, heads, tokens)."""

    table: Tensor

    @property
    def separability(self) -> Tensor:
        """p_h, the share of tokens that each head covers, (batch, heads)."""
        return self.table.mean(-1)

    @property
    def coverage(self) -> Tensor:
        """The share of tokens that some head covers, (batch, 1)."""
        return self.table.amax(-2).mean(-1, keepdim=True)

    @property
    def heads(self) -> Tensor:
        """H, (batch, 1)."""
        return torch.full((len(self.table), 1), float(self.table.shape[-2]), dtype=self.table.dtype)


def _draw_covered(generator: Generator) -> Iterator[Case]:
    for heads, tokens in cycle(((1, 5), (2, 2), (2, 5), (3, 7), (5, 11))):
        covered = whole(generator, 0, tokens + 1, BATCH, 1, 1)
        shuffled = uniform(generator, BATCH, heads, tokens).argsort(-1) < covered
        shifted = (torch.arange(tokens) + torch.arange(heads).unsqueeze(-1) * covered) % tokens
        kinds = [shuffled, shuffled[:, :1].expand_as(shuffled), shifted < covered]
        yield {"covered": mixed(generator, [kind.to(torch.float64) for kind in kinds])}


def _valid_covered(case: Case) -> Tensor:
    """Whether a table has only zeros and ones, and every head covers the same number of tokens."""
    table = case["covered"]
    counts = table.sum(-1)
    flags = ((table == 0) | (table == 1)).flatten(1).all(1)
    return flags & (counts == counts[:, :1]).all(-1)


COVERED_TOKENS = Space(
    name="a table of which head distinguishes which token, the same number in every head",
    axes={"covered": ("heads", "tokens")},
    draw=_draw_covered,
    subject=lambda case: Covered(case["covered"]),
    valid=_valid_covered,
    show=lambda s: {"covered (one row per head)": plain(s.table[0]), "p": plain(s.separability[0])},
    integers=frozenset({"covered"}),
)


@dataclass(frozen=True)
class Chances:
    """Probability that each token is covered in a head, and the number of independent heads."""

    separability: Tensor
    heads: Tensor

    @property
    def coverage(self) -> Tensor:
        """Expected coverage by definition: one minus the product of the misses, (batch,)."""
        most = int(self.heads.max())
        within = torch.arange(most).unsqueeze(-1) < self.heads[:, None, None]
        misses = torch.where(within, 1 - self.separability.unsqueeze(-2), 1).prod(-2)
        return (1 - misses).mean(-1)


def _draw_chances(generator: Generator) -> Iterator[Case]:
    for tokens in cycle((1, 2, 5, 11)):
        chance = uniform(generator, BATCH, tokens)
        yield {
            "chance": mixed(generator, [chance, chance[:, :1].expand_as(chance), chance.round()]),
            "heads": whole(generator, 1, 9, BATCH),
        }


TOKEN_CHANCES = Space(
    name="tokens with individual probabilities of being distinguished, and H independent heads",
    axes={"chance": ("tokens",), "heads": ()},
    draw=_draw_chances,
    subject=lambda case: Chances(case["chance"], case["heads"]),
    valid=lambda case: ((case["chance"] >= 0) & (case["chance"] <= 1)).all(-1) & (case["heads"] >= 1),
    show=lambda s: {"p": plain(s.separability[0]), "H": int(s.heads[0])},
    integers=frozenset({"heads"}),
)
