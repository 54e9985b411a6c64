"""Normalizers inside a trained model: their learned parameters, and the budget on their Jacobian.

A normalizer that is named without settings is learned if attnscope has a module for it, as `ssmax` has; with settings,
or without a module, it is used as it is, and only the scale of its logits is learned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from attnscope import normalizers as nz
from attnscope.errors import InputError
from attnscope.experiments.user_normalizer import load_normalizer
from attnscope.normalizers._base import SUPREMUM
from attnscope.normalizers._rows import column

_LEARNED = {
    "ssmax": nz.LearnedSSMax,
    "power_softmax": nz.LearnedPowerSoftmax,
    "entmax": nz.LearnedEntmax,
    "asentmax": nz.LearnedASEntmax,
    "lipmax": nz.LearnedLipmax,
    "lipmix": nz.LearnedLipmix,
}
_SMOOTH_MIN_ORDER = 4


@dataclass(frozen=True)
class Rule:
    """A normalizer to train with, and the largest Jacobian norm that it may have (infinite for none)."""

    fixed: nz.Normalizer
    learned: bool
    budget: float

    def module(self, heads: int) -> nn.Module | None:
        """The learned form for this many heads, if there is one."""
        return _LEARNED[self.fixed.name](heads) if self.learned else None

    def normalizer(self, module: nn.Module | None) -> nz.Normalizer:
        """The normalizer with the module's present parameters."""
        if module is None:
            return self.fixed
        normalizer: nz.Normalizer = module.normalizer  # type: ignore[assignment]  # every learned module has one
        return normalizer

    def within_budget(self, normalizer: nz.Normalizer, scale: Tensor, n: Tensor) -> Tensor:
        """The scale of the logits, at which the Jacobian norm is at most the budget for rows of n keys.

        scale is (heads, 1, 1) and n is (rows, 1). A smooth minimum of the scale and budget / Lipschitz constant, as a
        hard one would leave the scale without a gradient.
        """
        if self.budget == math.inf:
            return scale
        share = scale * lipschitz(normalizer, n) / self.budget
        return scale / (1 + share**_SMOOTH_MIN_ORDER) ** (1 / _SMOOTH_MIN_ORDER)


def make_rule(spec: str, budget: float) -> Rule:
    """The rule for a normalizer as written on the command line: a name with settings, or a class in a file."""
    normalizer = load_normalizer(spec)
    if budget != math.inf and normalizer.lipschitz(2) == math.inf:
        raise InputError(f"{spec} has no Lipschitz constant, so no budget can hold for it: leave out one of the two")
    return Rule(normalizer, spec in _LEARNED, budget)


def lipschitz(normalizer: nz.Normalizer, n: Tensor) -> Tensor:
    """A bound on the Jacobian norm for rows of n keys, for each head where parameters are per head."""
    if isinstance(normalizer, nz.Lipmix):
        return (1 - column(normalizer.gate, n)) * lipschitz(normalizer.sparse_part, n)
    if isinstance(normalizer, nz.MappedNormalizer):
        mapped = normalizer.row_map(n)
        bound = torch.ones_like(n) if mapped.scale is None else mapped.scale.abs()
        return SUPREMUM[mapped.kind] * bound
    return torch.tensor([[_constant(normalizer, int(one))] for one in n[:, 0]], dtype=n.dtype)


@cache
def _constant(normalizer: nz.Normalizer, n: int) -> float:
    return normalizer.lipschitz(n)
