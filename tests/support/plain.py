"""Attention as a plain function of whole matrices, for models whose eager kernel a test replaces by it.

Nothing of the package is used: normalizers are written from their definitions, by sorting, and differentiated
by autograd through the sort.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Row = Callable[[Tensor], Tensor]


def softmax(z: Tensor) -> Tensor:
    e = (z - z.max()).exp()
    return e / e.sum()


def ssmax(z: Tensor, s: float | Tensor = 0.43) -> Tensor:
    return softmax(z * s * torch.log(torch.tensor(float(len(z)), dtype=z.dtype)))


def sparsemax(z: Tensor) -> Tensor:
    """Martins and Astudillo, algorithm 1."""
    ordered = z.sort(descending=True).values
    totals = ordered.cumsum(0)
    count = torch.arange(1, len(z) + 1, dtype=z.dtype)
    k = int((1 + count * ordered > totals).sum())
    return (z - (totals[k - 1] - 1) / k).clamp(min=0)


def entmax15(z: Tensor) -> Tensor:
    """Peters, Niculae and Martins, the exact algorithm for alpha = 1.5."""
    half = z / 2
    ordered = half.sort(descending=True).values
    count = torch.arange(1, len(z) + 1, dtype=z.dtype)
    mean, square = ordered.cumsum(0) / count, ordered.square().cumsum(0) / count
    tau = mean - ((1 - count * (square - mean.square())) / count).clamp(min=0).sqrt()
    k = int((tau <= ordered).sum())
    return (half - tau[k - 1]).clamp(min=0).square()


def sigmoid(z: Tensor) -> Tensor:
    return torch.sigmoid(z - torch.log(torch.tensor(float(len(z)), dtype=z.dtype)))


def kernel(rows: Callable[[Any, int], Row]) -> Callable[..., Any]:
    """An eager kernel that puts every row of every head, visible keys only, through `rows(module, head)`."""

    def attention(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
    ) -> Any:
        repeat = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(repeat, 1), value.repeat_interleave(repeat, 1)
        logits = query @ key.transpose(2, 3) * options["scaling"]
        batch, heads, queries, keys = logits.shape
        mask = torch.zeros(1, 1, queries, keys) if attention_mask is None else attention_mask
        mask = mask.expand(batch, heads, queries, keys)
        items = []
        for b in range(batch):
            outputs = []
            for h in range(heads):
                normalize = rows(module, h)
                lines = []
                for q in range(queries):
                    seen = (mask[b, h, q] > -1e30).nonzero().flatten()
                    if len(seen):
                        lines.append(normalize(logits[b, h, q, seen]) @ value[b, h, seen])
                    else:
                        lines.append(torch.zeros_like(value[b, h, 0]))
                outputs.append(torch.stack(lines))
            items.append(torch.stack(outputs, 1))
        return torch.stack(items), None

    return attention
