"""Random and adversarial weights, vectors and logits, from which every space draws."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Generator, Tensor

BATCH = 100
SHAPES = ((2, 1), (3, 1), (2, 2), (3, 2), (5, 3), (4, 7), (7, 2), (11, 3), (7, 13), (23, 5))


def normal(generator: Generator, *shape: int) -> Tensor:
    """Standard normal samples in float64."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def uniform(generator: Generator, *shape: int) -> Tensor:
    """Uniform samples between 0 and 1 in float64."""
    return torch.rand(*shape, generator=generator, dtype=torch.float64)


def whole(generator: Generator, low: int, high: int, *shape: int) -> Tensor:
    """Random integers low <= k < high, in float64."""
    return torch.randint(low, high, shape, generator=generator).to(torch.float64)


def mixed(generator: Generator, kinds: Sequence[Tensor]) -> Tensor:
    """One of several families for each configuration of the batch."""
    stacked = torch.stack(list(kinds))
    choice = torch.randint(len(kinds), (stacked.shape[1],), generator=generator)
    return stacked[choice, torch.arange(stacked.shape[1])]


def masses(generator: Generator, batch: int, keys: int) -> Tensor:
    """Nonnegative numbers that a space turns into weights: flat, peaked, one-hot, tied, with zeros."""
    noise = normal(generator, batch, keys)
    peak = torch.zeros(batch, keys, dtype=torch.float64)
    peak[:, 0] = 1
    kinds = [
        torch.ones(batch, keys, dtype=torch.float64),
        torch.exp(0.1 * noise),
        torch.exp(noise),
        torch.exp(4 * noise),
        peak,
        peak + 1e-3 * uniform(generator, batch, keys),
        whole(generator, 0, 4, batch, keys),
    ]
    return mixed(generator, kinds)


def normalized(masses: Tensor) -> Tensor:
    """Masses divided by their sum: weights."""
    return masses / masses.sum(-1, keepdim=True)


def points(generator: Generator, batch: int, keys: int, dims: int) -> Tensor:
    """Vectors: isotropic, with a common mean, few distinct, one outlier, orthonormal, collinear, antipodal, alike."""
    noise = normal(generator, batch, keys, dims)
    common = normal(generator, batch, 1, dims)
    outlier = noise.clone()
    outlier[:, 0] *= 50
    half = keys // 2
    antipodal = noise.clone()
    antipodal[:, half : 2 * half] = -noise[:, :half]
    axes = torch.eye(dims, dtype=torch.float64)[torch.arange(keys) % dims].expand(batch, keys, dims)
    some = noise.clone()
    some[:, ::2] = 0
    kinds = [
        noise,
        3 * common + noise,
        noise[:, torch.arange(keys) % 2],
        outlier,
        axes,
        normal(generator, batch, keys, 1) * common,
        antipodal,
        common.expand_as(noise),
        torch.ones_like(noise),
        some,
        on_sphere(noise),
    ]
    return mixed(generator, kinds)


def on_sphere(vectors: Tensor) -> Tensor:
    """Vectors scaled to length one; zero stays zero."""
    norm = vectors.norm(dim=-1, keepdim=True)
    return vectors / torch.where(norm > 0, norm, 1)


def scores(generator: Generator, batch: int, keys: int) -> Tensor:
    """Logits: of several sizes, all equal, one or two winners, two extremes."""
    noise = normal(generator, batch, keys)
    size = torch.exp(1.5 * normal(generator, batch, 1))
    winner = torch.zeros_like(noise)
    winner[:, 0] = 1
    pair = winner.clone()
    pair[:, 1] = 1
    kinds = [
        size * noise,
        noise,
        torch.zeros_like(noise),
        size * winner,
        size * pair,
        size * torch.sign(noise),
        size * (2 * winner - 1),
        size * (1 - 2 * winner),
        size * whole(generator, 0, 3, batch, keys),
    ]
    return mixed(generator, kinds)


def plain(values: Tensor) -> Any:
    """Values of a tensor rounded for printing: nested lists, or one number."""
    return (values.to(torch.float64).round(decimals=6) + 0.0).tolist()  # adding 0 turns -0 into 0
