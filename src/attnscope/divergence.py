"""The Kullback-Leibler divergence, for everything that compares next-token distributions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


def kl_divergence(
    log_p: Float[Tensor, "*batch tokens"], log_q: Float[Tensor, "*batch tokens"]
) -> Float[Tensor, " *batch"]:
    """KL(p || q) in nats, from the log-probabilities (`log_softmax`) of both distributions; differentiable."""
    return (log_p.exp() * (log_p - log_q)).sum(-1)
