"""Every fact that a normalizer declares, and Theorem S for all normalizers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from torch.func import jacrev, vmap

from attnscope import normalizers as nz

ALL = {name: nz.get(name) for name in nz.names()}
ALL |= {
    "softmax-T0.2": nz.get("softmax", temperature=0.2),
    "entmax-1.3": nz.get("entmax", alpha=1.3),
    "topk-3": nz.get("topk", k=3),
    "ssmax-1.7": nz.get("ssmax", s=1.7, b=0.1),
    "f-square": nz.get("f_normalizer", function="one_plus_square"),
    "f-sigmoid": nz.get("f_normalizer", function="sigmoid"),
    "f-exp": nz.get("f_normalizer", function="exp"),
    "lipmax-1.6": nz.get("lipmax", alpha=1.6, kappa=3.0),
    "lipmix-0.4": nz.get("lipmix", alpha=1.6, kappa=3.0, gate=0.4),
    "asentmax-1.8": nz.get("asentmax", alpha=1.8, beta=0.3, gamma=1.4),
    "sigmoid-fixed": nz.get("sigmoid", bias=-1.0),
    "sink-2": nz.get("sink_softmax", sink=2.0),
    "logn": nz.get("logn", n_train=7),  # shorter than the rows
}
EVERY = pytest.mark.parametrize("normalizer", ALL.values(), ids=ALL)
ROUNDING = 1e-9


def rows() -> Tensor:
    """Rows of 29 keys over five orders of size, with near-ties and gaps."""
    z = torch.randn(41, 29, generator=torch.Generator().manual_seed(13), dtype=torch.float64)
    z = z * torch.logspace(-3, 1.2, 41, dtype=torch.float64)[:, None]
    z[::5, 3] = z[::5, 11] + 1e-9
    return z


@EVERY
def test_sums_to_one(normalizer: nz.Normalizer) -> None:
    total = normalizer(rows()).sum(-1)
    assert bool(((total - 1).abs() < ROUNDING).all()) == normalizer.facts.sums_to_one
    if normalizer.facts.at_most_one:
        assert bool((total <= 1 + ROUNDING).all())


@EVERY
def test_non_negative(normalizer: nz.Normalizer) -> None:
    assert bool((normalizer(rows()) >= 0).all()) == normalizer.facts.non_negative


@EVERY
def test_sparse(normalizer: nz.Normalizer) -> None:
    z = torch.zeros(1, 131, dtype=torch.float64)
    z[0, 0] = 8.0  # no exponential underflows here, so zeros are exact by definition
    assert bool((normalizer(z) == 0).any()) == normalizer.facts.sparse


@EVERY
def test_shift_invariant(normalizer: nz.Normalizer) -> None:
    z = rows()
    same = torch.allclose(normalizer(z + 0.75), normalizer(z), rtol=1e-7, atol=1e-9)
    if isinstance(normalizer, nz.FNormalizer) and normalizer.function == "exp":
        assert same  # the one F for which the general form is softmax
    else:
        assert same == normalizer.facts.shift_invariant


@EVERY
def test_length_aware(normalizer: nz.Normalizer) -> None:
    """Keys of negligible weight change the ratio of two other weights only through the length.

    Both rows have the same range, which enters sa_softmax though the number of keys does not.
    """
    top = torch.tensor([0.5, 0.3], dtype=torch.float64)
    short = normalizer(torch.cat([top, torch.full((1,), -60.0, dtype=torch.float64)]))
    long = normalizer(torch.cat([top, torch.full((20,), -60.0, dtype=torch.float64)]))
    changed = not torch.allclose(short[0] / short[1], long[0] / long[1], rtol=1e-6)
    assert changed == normalizer.facts.length_aware


@EVERY
def test_permutation_equivariant(normalizer: nz.Normalizer) -> None:
    z = torch.randn(7, 29, generator=torch.Generator().manual_seed(17), dtype=torch.float64)
    z[:, ::2] = z[:, :1]
    order = torch.randperm(29, generator=torch.Generator().manual_seed(19))
    same = torch.allclose(normalizer(z[:, order]), normalizer(z)[:, order], atol=1e-12)
    if isinstance(normalizer, nz.TopK) and normalizer.k >= 29:
        assert same
    else:
        assert same == normalizer.facts.permutation_equivariant


@EVERY
def test_every_weight_lies_within_its_bounds(normalizer: nz.Normalizer) -> None:
    generator = torch.Generator().manual_seed(23)
    for length, low, high in ((2, -1.0, 1.0), (7, 0.2, 0.9), (29, -3.0, -0.5), (131, -0.05, 0.05), (5, 0.5, 0.5)):
        lower, upper = normalizer.weight_bounds(length, low, high)
        z = torch.rand(301, length, generator=generator, dtype=torch.float64).round() * (high - low) + low
        z[100:] = torch.rand(201, length, generator=generator, dtype=torch.float64) * (high - low) + low
        weights = normalizer(z)
        assert float(weights.min()) >= lower - ROUNDING
        assert float(weights.max()) <= upper + ROUNDING


@EVERY
def test_the_jacobian_norm_is_the_largest_singular_value(normalizer: nz.Normalizer) -> None:
    z = rows()[::3]
    visible = torch.ones(z.shape, dtype=torch.bool).tril(9)
    visible[4] = False
    for mask in (None, visible):
        inputs = (z,) if mask is None else (z, mask)
        jacobian = vmap(jacrev(normalizer))(*inputs)
        exact = torch.linalg.matrix_norm(jacobian, 2)
        norm = normalizer.jacobian_norm(z, mask)
        torch.testing.assert_close(norm, exact, rtol=1e-7, atol=1e-9)
        bound = normalizer.jacobian_bound(z, mask)
        assert bool((bound >= exact * (1 - 1e-9) - 1e-12).all())


@EVERY
def test_no_row_exceeds_the_lipschitz_constant(normalizer: nz.Normalizer) -> None:
    z = rows()
    constant = normalizer.lipschitz(29)
    assert bool((normalizer.jacobian_norm(z) <= constant * (1 + ROUNDING)).all())
    other = z + torch.randn(z.shape, generator=torch.Generator().manual_seed(29), dtype=torch.float64)
    moved = (normalizer(z) - normalizer(other)).norm(dim=-1)
    assert bool((moved <= constant * (z - other).norm(dim=-1) + ROUNDING).all())


LIPSCHITZ = {name: n for name, n in ALL.items() if math.isfinite(n.lipschitz(7))}
SMOOTH = {name: n for name, n in ALL.items() if not math.isfinite(n.lipschitz(7)) and not isinstance(n, nz.TopK)}
ROWS = st.lists(st.floats(-6, 6) | st.sampled_from([0.0, 1.0, 1.0 + 1e-7]), min_size=2, max_size=23)


def largest_sparsemax(z: Tensor) -> float:
    """min over m of 1/m + z_(1) - mean of the m largest: the top weight of sparsemax in closed form."""
    s = sorted(z.tolist(), reverse=True)
    return min(1 / m + s[0] - sum(s[:m]) / m for m in range(1, len(s) + 1))


@pytest.mark.parametrize("normalizer", LIPSCHITZ.values(), ids=LIPSCHITZ)
@settings(max_examples=30, deadline=None)
@given(values=ROWS)
def test_theorem_s(normalizer: nz.Normalizer, values: list[float]) -> None:
    """|f_i - f_j| <= K |z_i - z_j|, and no top weight above max sparsemax(K z)."""
    z = torch.tensor(values, dtype=torch.float64)
    constant = normalizer.lipschitz(len(values))
    f = normalizer(z)
    differences = (f[:, None] - f).abs()
    assert bool((differences <= constant * (z[:, None] - z).abs() + ROUNDING).all())
    if normalizer.facts.at_most_one:
        assert float(f.max()) <= largest_sparsemax(constant * z) + ROUNDING


def test_sparsemax_attains_theorem_s() -> None:
    for row in rows():
        assert abs(float(nz.sparsemax(row).max()) - largest_sparsemax(row)) < ROUNDING


@pytest.mark.parametrize("normalizer", SMOOTH.values(), ids=SMOOTH)
@settings(max_examples=10, deadline=None)
@given(values=st.lists(st.floats(-2, 2), min_size=3, max_size=9, unique=True))
def test_theorem_s_along_the_path_where_no_constant_exists(normalizer: nz.Normalizer, values: list[float]) -> None:
    """The mean Jacobian norm on the segment that exchanges two logits is at least their weights' slope."""
    z = torch.tensor(values, dtype=torch.float64)
    swapped = z[[1, 0, *range(2, len(values))]]
    steps = torch.linspace(0.5 / 400, 1 - 0.5 / 400, 400, dtype=torch.float64)[:, None]
    mean = float(normalizer.jacobian_norm(z + steps * (swapped - z)).mean())
    f = normalizer(z)
    assert abs(float(f[0] - f[1])) <= mean * abs(values[0] - values[1]) * 1.02 + 1e-6
