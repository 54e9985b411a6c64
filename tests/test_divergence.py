"""The KL divergence against torch's distributions."""

from __future__ import annotations

import torch

from attnscope.swapping.changes import kl_divergence


def test_kl_is_that_of_torch_distributions() -> None:
    generator = torch.Generator().manual_seed(1)
    own, other = (5 * torch.randn(7, 31, generator=generator, dtype=torch.float64) for _ in range(2))
    p, q = (torch.distributions.Categorical(logits=logits) for logits in (own, other))
    computed = kl_divergence(own.log_softmax(-1), other.log_softmax(-1))
    torch.testing.assert_close(computed, torch.distributions.kl_divergence(p, q))
