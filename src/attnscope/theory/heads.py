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

    >>> coverage_independent(torch.tensor(0.8), torch.tensor(3.0))
    tensor(0.9920)

    The exact expected coverage if every token is covered in every head independently with the same p: for p = 0.8
    and H = 3 it is 0.992. Not a maximum, as "up to" says: see `coverage_range`.

    Parameters
    ----------
    separability : (...)
        p, the separability of a head, from 0 to 1.
    heads : (...)
        H, how many heads.

    Returns
    -------
    (...)
        The expected share of the tokens that some head covers.
    """
    return -torch.expm1(heads * torch.log1p(-separability))


def coverage_range(separability: Float[Tensor, "*batch heads"]) -> Interval:
    """Corrected: max_h p_h <= coverage <= min(1, sum_h p_h), however the heads depend on one another.

    >>> coverage_range(torch.tensor([0.8, 0.7]))
    Interval(lower=tensor(0.8000), upper=tensor(1.))

    The bounds of Boole and Frechet for the measure of a union; both are attained, the left one by nested heads and
    the right one by heads that overlap as little as possible. Two complementary heads with p = 0.8 cover everything,
    more than the 0.96 of the printed form.

    Parameters
    ----------
    separability : (..., heads)
        p, the separability of a head, from 0 to 1.

    Returns
    -------
    Interval
        The least and the largest coverage, (...).
    """
    return Interval(separability.amax(-1), separability.sum(-1).clamp_max(1))


def coverage_of_tokens(
    separability: Float[Tensor, "*batch tokens"], heads: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    """Coverage by independent heads when token i has probability p_i: mean_i [1 - (1 - p_i)^H].

    >>> coverage_of_tokens(torch.tensor([1.0, 1.0, 0.0]), torch.tensor(3.0))
    tensor(0.6667)

    At most the printed 1 - (1 - pbar)^H (Jensen: p -> 1 - (1-p)^H is concave); the difference is `jensen_gap`.
    If 80% of the tokens are always covered and 20% never, the coverage stays at 0.8 for every H.

    Parameters
    ----------
    separability : (..., tokens)
        p_i, the probability that a head covers token i.
    heads : (...)
        H, how many heads.

    Returns
    -------
    (...)
        The expected share of the tokens that some head covers.
    """
    return coverage_independent(separability, heads.unsqueeze(-1)).mean(-1)


def jensen_gap(separability: Float[Tensor, "*batch tokens"], heads: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """By how much 1 - (1 - pbar)^H overstates the coverage when tokens differ; zero when they do not.

    >>> jensen_gap(torch.tensor([1.0, 1.0, 0.0]), torch.tensor(3.0))
    tensor(0.2963)

    Parameters
    ----------
    separability : (..., tokens)
        p_i, the probability that a head covers token i.
    heads : (...)
        H, how many heads.

    Returns
    -------
    (...)
        A share, nonnegative.
    """
    return coverage_independent(separability.mean(-1), heads) - coverage_of_tokens(separability, heads)


def heads_needed(separability: Float[Tensor, "*batch"], target: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """The smallest H with 1 - (1 - p)^H >= `target`, for independent heads: 4, 3, 3 for p = 0.7, 0.8, 0.85 and 99%.

    >>> heads_needed(torch.tensor([0.7, 0.8, 0.85]), torch.tensor(0.99))
    tensor([4., 3., 3.])

    Parameters
    ----------
    separability : (...)
        p, the separability of a head, from 0 to 1.
    target : (...)
        The coverage to reach, below 1.

    Returns
    -------
    (...)
        H, a whole number.
    """
    return torch.ceil(torch.log1p(-target) / torch.log1p(-separability) - 1e-12).clamp_min(1)
