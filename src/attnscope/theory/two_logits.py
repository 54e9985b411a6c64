"""The example of section 2.3: two competing logits, and how far a small step moves their weights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from attnscope.theory.gradient import PRINTED_CAP

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


def two_logit_rows(
    height: Float[Tensor, "*batch"], step: Float[Tensor, "*batch"], length: int
) -> tuple[Float[Tensor, "*batch keys"], Float[Tensor, "*batch keys"]]:
    """The example of section 2.3: (0, ..., 0, a, a + eps) and (0, ..., 0, a + 2 eps, a), sqrt 5 eps apart.

    >>> two_logit_rows(torch.tensor(5.0), torch.tensor(0.1), length=4)
    (tensor([0.0000, 0.0000, 5.0000, 5.1000]), tensor([0.0000, 0.0000, 5.2000, 5.0000]))

    Parameters
    ----------
    height : (...)
        a, the height of the two logits.
    step : (...)
        eps, the length of the step, in logits.
    length
        L, the number of keys.

    Returns
    -------
    two of (..., keys)
        The two rows of logits.
    """
    rest = torch.zeros(*height.shape, length - 2, dtype=height.dtype, device=height.device)
    first = torch.cat([rest, torch.stack([height, height + step], -1)], -1)
    second = torch.cat([rest, torch.stack([height + 2 * step, height], -1)], -1)
    return first, second


def two_logit_response_printed(step: Float[Tensor, "*batch"], temperature: Float[Tensor, "*batch"]) -> Tensor:
    """Section 2.3 as printed: |alpha1 - alpha2| ~ sqrt 2 eps / T.

    >>> two_logit_response_printed(torch.tensor(0.1), torch.tensor(1.0))
    tensor(0.1414)

    Impossible as a slope: the Lipschitz constant 1/(2T) allows at most (sqrt 5 / 2) eps / T = 1.118 eps / T. The
    number sqrt 2 is the saturation value as T -> 0, the diameter of the simplex.

    Parameters
    ----------
    step : (...)
        eps, the length of the step, in logits.
    temperature : (...)
        T.

    Returns
    -------
    (...)
        The printed distance of the two rows of weights.
    """
    return PRINTED_CAP * step / temperature


def two_logit_response(step: Float[Tensor, "*batch"], temperature: Float[Tensor, "*batch"]) -> Tensor:
    """Section 2.3, exactly, for a >> T ln L: sqrt 2 [sigma(eps/T) - sigma(-2 eps/T)].

    >>> two_logit_response(torch.tensor(0.1), torch.tensor(1.0))
    tensor(0.1058)

    To first order (3 sqrt 2 / 4) eps / T = 1.0607 eps / T, which by itself exceeds what Corollary 3 allows,
    (sqrt 5 / 4) eps / T. Proof: with two live logits J = (1/4T) [[1, -1], [-1, 1]] and the step is (-2 eps, eps).

    Parameters
    ----------
    step : (...)
        eps, the length of the step, in logits.
    temperature : (...)
        T.

    Returns
    -------
    (...)
        The distance of the two rows of weights.
    """
    reach = step / temperature
    return math.sqrt(2) * (torch.sigmoid(reach) - torch.sigmoid(-2 * reach))
