"""The paper's appendix: steps of its proofs and of its five algorithms that the main text does not state.

Its algorithms average over all rows of a head. A row of a causal head that sees t of L keys can be read in two ways:
the `visible` reading takes its t keys; the `literal` reading takes I = {1, ..., L}, where the L - t keys that the row
cannot see are tokens of weight zero.

| here | paper |
|---|---|
| `p`, `significance` | p-values for N = 1, 2, ...; the level of the test |
| `radius`, `xi`, `mean` | r, from 0 to 2; the bound taken for the expectation; E Z |
| `hidden` | L - t, how many keys the row does not see, (..., rows, 1) |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from attnscope.theory.distance import distance
from attnscope.theory.geometry import ball

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from attnscope.theory.configuration import Configuration

# Significance of the KS test: in Algorithm 3, and in section 3.1 and the caption of Figure 2.
ALGORITHM_LEVEL, CAPTION_LEVEL = 0.05, 0.01


def first_accepted(p: Float[Tensor, "*batch sizes"], significance: float) -> Float[Tensor, "*batch"]:
    """Algorithm 3: the first N = 1, 2, ... whose p-value reaches the significance; one more than the last if none.

    >>> first_accepted(torch.tensor([0.001, 0.02, 0.2]), significance=0.05)
    tensor(3.)

    A p-value that reaches 0.05 reaches 0.01: the critical N at 0.01 is at most that at 0.05, and often smaller.
    """
    rejected = (p < significance).to(p.dtype)
    return 1 + rejected.cumprod(-1).sum(-1)


def persistently_accepted(p: Float[Tensor, "*batch sizes"], significance: float) -> Float[Tensor, "*batch"]:
    """The first N from which on every p-value reaches the significance; one more than the last if none does.

    >>> persistently_accepted(torch.tensor([0.2, 0.001, 0.2]), significance=0.05)
    tensor(3.)
    """
    accepted = (p >= significance).to(p.dtype)
    return 1 + p.shape[-1] - accepted.flip(-1).cumprod(-1).sum(-1)


def lower_tail_printed(radius: Float[Tensor, "*batch"], xi: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """Proof of Theorem 2, upper side: P(Z <= r) <= exp(-(r - xi)^2 / 16) for one variable Z in [0, 2], M = 1.

    >>> lower_tail_printed(torch.tensor(1.0), torch.tensor(0.0))
    tensor(0.9394)

    Z is |W_i|, and xi is taken for its expectation. Two slips: xi only bounds the expectation from above, and for
    r above the expectation Z <= r is no deviation at all. Z = 0, r = 1, xi = 0 has P = 1 > exp(-1/16).
    """
    return torch.exp(-(radius - xi).square() / 16)


def lower_tail_hoeffding(radius: Float[Tensor, "*batch"], mean: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """Hoeffding's inequality for one variable Z in [0, 2]: P(Z <= r) <= exp(-(E Z - r)_+^2 / 2).

    >>> lower_tail_hoeffding(torch.tensor(0.5), torch.tensor(1.5))
    tensor(0.6065)

    It needs E Z itself, and says nothing for r >= E Z. Since E|W_i| can be anything from 0 to xi_i, it gives no
    bound in terms of xi.
    """
    return torch.exp(-(mean - radius).clamp_min(0).square() / 2)


def lower_tail_markov(radius: Float[Tensor, "*batch"], mean: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """The best bound given E Z, for one variable Z in [0, 2]: P(Z <= r) <= (2 - E Z) / (2 - r) for r < E Z.

    >>> lower_tail_markov(torch.tensor(0.5), torch.tensor(1.5))
    tensor(0.3333)

    Markov's inequality for 2 - Z; attained by Z in {r, 2}.
    """
    below = radius < mean
    return torch.where(below, (2 - mean) / torch.where(below, 2 - radius, 1), 1)


def literal_distance(c: Configuration, hidden: Float[Tensor, "*batch rows 1"]) -> Float[Tensor, "*batch rows sets"]:
    """d~ of the literal reading from that of the visible one: d~ + (L - t)|s|, for N < t.

    >>> c = Configuration.of(torch.tensor([[0.5, 0.3, 0.2]]), torch.eye(3), n=[1, 2])
    >>> literal_distance(c, hidden=torch.tensor([[2.0]]))
    tensor([[2.1216, 1.7826]])

    Each of the L - t keys of weight zero is a token left out at the distance |0 - s|.
    """
    return distance(c) + hidden * c.context.norm(dim=-1)


def literal_radius(c: Configuration, hidden: Float[Tensor, "*batch rows 1"]) -> Float[Tensor, "*batch rows sets"]:
    """r of the literal reading from that of the visible one: min(r, |s|) if any key is invisible, for N < t.

    >>> c = Configuration.of(torch.tensor([[0.5, 0.3, 0.2]]), torch.eye(3), n=[1, 2])
    >>> literal_radius(c, hidden=torch.tensor([[2.0]]))
    tensor([[0.5000, 0.5831]])
    """
    radius = ball(c).radius
    return torch.where(hidden > 0, torch.minimum(radius, c.context.norm(dim=-1)), radius)
