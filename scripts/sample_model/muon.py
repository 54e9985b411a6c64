"""The Muon optimizer in float32.

`torch.optim.Muon` orthogonalizes in bfloat16, which on a CPU without such instructions takes longer than the training
step itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


class Muon(torch.optim.Optimizer):
    """Momentum whose update is replaced by the nearest orthogonal matrix."""

    def __init__(self, matrices: Sequence[torch.Tensor], lr: float, weight_decay: float) -> None:
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay, "momentum": 0.95})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for matrix in group["params"]:
                momentum = self.state[matrix].setdefault("momentum", torch.zeros_like(matrix))
                momentum.lerp_(matrix.grad, 1 - group["momentum"])
                update = orthogonal(matrix.grad.lerp(momentum, group["momentum"]))
                # The root mean square of an AdamW update is about 0.2: one rate serves both.
                scale = 0.2 * max(matrix.shape) ** 0.5
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                matrix.sub_(update, alpha=group["lr"] * scale)


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """The nearest orthogonal matrix, by five Newton-Schulz steps with the quintic coefficients of Jordan (2024)."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.mT if tall else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.mT if tall else x
