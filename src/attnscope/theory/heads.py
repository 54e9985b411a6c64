"""Section 4: how much of the top set several heads cover together.

A head covers a token when the token is distinguishable in it. The paper multiplies the misses: with separability p
in each of H heads, "up to" 1 - (1 - p)^H of the tokens are covered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from attnscope.theory.configuration import Interval

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


def coverage_independent(
    separability: Float[Tensor, "*batch"], heads: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    """Section 4 as printed: 1 - (1 - p)^H, with p = `separability` and H = `heads`.

    The exact expected coverage if every token is covered in every head independently with the same p: for p = 0.8
    and H = 3 it is 0.992. Not a maximum, as "up to" says: see `coverage_range`.
    """
    return -torch.expm1(heads * torch.log1p(-separability))


def coverage_range(separability: Float[Tensor, "*batch heads"]) -> Interval:
    """Corrected: max_h p_h <= coverage <= min(1, sum_h p_h), however the heads depend on one another.

    The bounds of Boole and Frechet for the measure of a union; both are attained, the left one by nested heads and
    the right one by heads that overlap as little as possible. Two complementary heads with p = 0.8 cover everything,
    more than the 0.96 of the printed form.
    """
    return Interval(separability.amax(-1), separability.sum(-1).clamp_max(1))


def coverage_of_tokens(
    separability: Float[Tensor, "*batch tokens"], heads: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    """Coverage by independent heads when token i has probability p_i: mean_i [1 - (1 - p_i)^H].

    At most the printed 1 - (1 - pbar)^H (Jensen: p -> 1 - (1-p)^H is concave); the difference is `jensen_gap`.
    If 80% of the tokens are always covered and 20% never, the coverage stays at 0.8 for every H.
    """
    return coverage_independent(separability, heads.unsqueeze(-1)).mean(-1)


def jensen_gap(separability: Float[Tensor, "*batch tokens"], heads: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """By how much 1 - (1 - pbar)^H overstates the coverage when tokens differ; zero when they do not."""
    return coverage_independent(separability.mean(-1), heads) - coverage_of_tokens(separability, heads)


def heads_needed(separability: Float[Tensor, "*batch"], target: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """The smallest H with 1 - (1 - p)^H >= `target`, for independent heads: 4, 3, 3 for p = 0.7, 0.8, 0.85 and 99%."""
    return torch.ceil(torch.log1p(-target) / torch.log1p(-separability) - 1e-12).clamp_min(1)
