"""Which heads cover which tokens: the configurations of section 4."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING

import torch

from attnscope.theory.audit.contract import Case, Space
from attnscope.theory.spaces.families import BATCH, mixed, plain, uniform, whole

if TYPE_CHECKING:
    from torch import Generator, Tensor


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
