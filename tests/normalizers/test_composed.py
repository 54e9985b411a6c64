"""Normalizers with loops of their own: weights and gradients against their definitions in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from attnscope import normalizers as nz
from attnscope.normalizers._arguments import reference_only

pytestmark = pytest.mark.pairwise

SPECS = (
    "sa_softmax",
    "adaptive_temperature",
    "f_normalizer",
    "f_normalizer:function=one_plus_square",
    "f_normalizer:function=sigmoid",
)
KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "gaussian": lambda z: z,
    "sharp": lambda z: 20 * z,
    "far below zero": lambda z: 3 * z - 60,
    "all positive": lambda z: z.abs() + 0.5,
    "nearly flat": lambda z: 1e-3 * z,
    "ties at both ends": lambda z: z.clamp(-0.5, 0.5),
    "large": lambda z: 1e15 * z,
    "flat": lambda z: torch.full_like(z, 0.25),
    "zero": torch.zeros_like,
}


def rows(kind: str, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(29)
    return KINDS[kind](torch.randn(5, 317, generator=generator, dtype=dtype)).requires_grad_()


def weights_and_gradient(spec: str, z: Tensor, visible: Tensor | None, g: Tensor) -> tuple[Tensor, Tensor]:
    weights = nz.parse(spec)(z, visible)
    return weights.detach(), torch.autograd.grad(weights, z, g)[0]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("masked", [False, True], ids=["all visible", "masked"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.float64, 1e-12)])
def test_the_loops_agree_with_the_definition(
    spec: str, kind: str, masked: bool, dtype: torch.dtype, tolerance: float
) -> None:
    z = rows(kind, dtype)
    generator = torch.Generator().manual_seed(31)
    visible = torch.rand(z.shape, generator=generator) > 0.4 if masked else None
    g = torch.randn(z.shape, generator=generator, dtype=dtype)
    got = weights_and_gradient(spec, z, visible, g)
    with reference_only():
        want = weights_and_gradient(spec, z.detach().double().requires_grad_(), visible, g.double())
    for ours, exact in zip(got, want, strict=True):
        assert ours.dtype == dtype
        # Where a gradient cancels to nothing, what is left is the rounding of weights and g, which are of order one.
        assert float((ours - exact).abs().max()) <= tolerance * max(float(exact.abs().max()), 1e-2)


@pytest.mark.parametrize("spec", SPECS)
def test_a_row_with_nan_or_without_keys_touches_no_other(spec: str) -> None:
    z = rows("gaussian", torch.float64).detach()
    visible = torch.ones(z.shape, dtype=torch.bool)
    visible[2] = False
    broken = z.clone()
    broken[1, 3] = torch.nan
    g = torch.ones_like(z)
    weights, gradient = weights_and_gradient(spec, broken.requires_grad_(), visible, g.cumsum(-1))
    want, want_gradient = weights_and_gradient(spec, z.clone().requires_grad_(), visible, g.cumsum(-1))
    assert weights[1].isnan().all()
    assert gradient[1].isnan().all()
    assert (weights[2] == 0).all()
    assert (gradient[2] == 0).all()
    for sound in (0, 3, 4):
        assert torch.equal(weights[sound], want[sound])
        assert torch.equal(gradient[sound], want_gradient[sound])


@pytest.mark.parametrize("spec", SPECS)
def test_second_derivatives_are_those_of_the_definition(spec: str) -> None:
    def second(z: Tensor) -> Tensor:
        weights = nz.parse(spec)(z)
        (first,) = torch.autograd.grad(weights.square().sum(), z, create_graph=True)
        return torch.autograd.grad(first.square().sum(), z)[0]

    z = rows("gaussian", torch.float64).detach()[:, :9].contiguous()
    ours = second(z.clone().requires_grad_())
    with reference_only():
        want = second(z.clone().requires_grad_())
    torch.testing.assert_close(ours, want, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("spec", SPECS)
def test_the_gradient_is_the_limit_of_differences(spec: str) -> None:
    """Independent of both implementations of the gradient."""
    z = rows("gaussian", torch.float64).detach()[:2, :11].contiguous()
    z[0, 4], z[1, 2] = 3.0, -3.0  # one clear maximum and minimum: the definition has corners at ties
    direction = torch.linspace(-1, 1, 11, dtype=torch.float64).cos()
    g = torch.linspace(-2, 1, 11, dtype=torch.float64).expand_as(z)
    _, gradient = weights_and_gradient(spec, z.clone().requires_grad_(), None, g)
    step = 1e-6
    normalizer = nz.parse(spec)
    change = (normalizer(z + step * direction) - normalizer(z - step * direction)) / (2 * step)
    torch.testing.assert_close((gradient * direction).sum(-1), (change * g).sum(-1), rtol=1e-6, atol=1e-9)
