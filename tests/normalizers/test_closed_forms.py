"""Closed forms of the theory that the normalizers must reproduce."""

from __future__ import annotations

import math

import pytest
import torch

from attnscope import normalizers as nz

DOUBLE = torch.float64


@pytest.mark.parametrize("length", [2, 16, 1024])
@pytest.mark.parametrize("logit_range", [0.3, 2.0])
def test_softmax_bounds_are_logistic(length: int, logit_range: float) -> None:
    want = [1 / (1 + (length - 1) * math.exp(sign * logit_range)) for sign in (1, -1)]
    bounds = nz.get("softmax").weight_bounds(length, -logit_range / 2, logit_range / 2)
    assert bounds == pytest.approx(want, rel=1e-12)


def test_ssmax_bounds_are_powers_of_the_length() -> None:
    _, upper = nz.get("ssmax", s=0.7).weight_bounds(129, 0.0, 1.3)
    assert upper == pytest.approx(1 / (1 + 128 * 129 ** (-0.7 * 1.3)), rel=1e-12)


@pytest.mark.parametrize("r", [0.2, 0.9, 1.5], ids=lambda r: f"range-{r}")
def test_sparsemax_bound_tends_to_the_range_not_to_zero(r: float) -> None:
    lower, upper = nz.get("sparsemax").weight_bounds(1009, 0.0, r)
    assert upper == pytest.approx(min(1, r + (1 - r) / 1009), rel=1e-12)
    assert lower == pytest.approx(max(0, (1 - r * 1008) / 1009), abs=1e-12)


def test_entmax15_bound_is_the_root_of_a_quadratic() -> None:
    length, c = 523, 0.4
    v = (-c + math.sqrt(c * c + length * (1 - c * c))) / length
    assert nz.get("entmax15").weight_bounds(length, 0.0, 2 * c)[1] == pytest.approx((v + c) ** 2, rel=1e-10)


def test_a_gap_keeps_its_weight_at_every_length() -> None:
    """sparsemax(.5, 0, ..) tends to .5 and 1.5-entmax to .0625, where softmax vanishes."""
    z = torch.zeros(100_003, dtype=DOUBLE)
    z[0] = 0.5
    assert float(nz.sparsemax(z)[0]) == pytest.approx(0.5, abs=1e-5)
    assert float(nz.entmax15(z)[0]) == pytest.approx(0.0625, abs=2e-3)
    assert float(nz.softmax(z)[0]) < 1e-4


def test_softmax_norm_is_half_over_the_temperature_at_a_tie() -> None:
    assert float(nz.get("softmax", temperature=0.1).jacobian_norm(torch.zeros(2))) == pytest.approx(5.0)


def test_sparsemax_norm_is_one_or_zero() -> None:
    z = torch.tensor([[0.1, 0.0, -5.0], [3.0, 0.0, -5.0]])
    assert nz.get("sparsemax").jacobian_norm(z).tolist() == pytest.approx([1.0, 0.0])


@pytest.mark.parametrize(("support", "norm"), [(1000, 0.868), (10_000, 0.934)])
def test_the_entmax15_norm_tends_to_one_with_the_support(support: int, norm: float) -> None:
    """The two-token supremum 2^(alpha-2) is not a bound: the supremum over k + 1 tokens exceeds it."""
    grid = torch.linspace(0.5, 1.999, 1500, dtype=DOUBLE)
    top = (grid / 2) ** 2  # the top weight; the rest is shared by `support` equal ones
    u1, rest = top.sqrt(), ((1 - top) / support).clamp(min=0)
    u = rest.sqrt()
    total = u1 + support * u
    # two distinct values: the 2 x 2 problem on (top, mean of the others)
    largest = u1 * (1 - u1 / total) + u * (1 - support * u / total)
    assert float(largest.max()) == pytest.approx(norm, abs=2e-3)
    best = int(largest.argmax())
    gap = 2 * (float(u1[best]) - float(u[best]))
    z = torch.zeros(support + 1, dtype=DOUBLE)
    z[0] = gap
    assert float(nz.get("entmax15").jacobian_norm(z)) == pytest.approx(float(largest[best]), rel=1e-6)


@pytest.mark.parametrize(("t", "norm"), [(0.1, 2.2), (0.01, 20.6), (0.001, 204)])
def test_the_scaled_self_adjust_norm_grows_without_bound(t: float, norm: float) -> None:
    z = torch.tensor([t, 0.0, -t], dtype=DOUBLE)
    assert float(nz.get("sa_softmax").jacobian_norm(z)) == pytest.approx(norm, rel=0.02)


def test_the_raw_self_adjust_norm_grows_with_the_logits() -> None:
    z = torch.full((2,), 7.0, dtype=DOUBLE)
    assert float(nz.get("sa_softmax_raw").jacobian_norm(z)) == pytest.approx((1 + 7) / 2)


def test_all_equal_negative_logits_have_no_scaled_self_adjust_weight() -> None:
    assert torch.equal(nz.sa_softmax(torch.full((5,), -2.0)), torch.zeros(5))
    torch.testing.assert_close(nz.sa_softmax(torch.zeros(5)), torch.full((5,), 0.2))


def test_adaptive_temperature_is_softmax_on_long_flat_rows() -> None:
    for length, sharpened in ((64, True), (379, True), (389, False), (2048, False)):
        z = torch.linspace(0, 1e-3, length, dtype=DOUBLE)
        ratio = float((nz.adaptive_temperature(z)[-1] / nz.adaptive_temperature(z)[0]).log()) / 1e-3
        assert (ratio > 1 + 1e-6) == sharpened


def test_lipmax_never_exceeds_its_cap_and_kappa_has_a_gradient() -> None:
    kappa = torch.tensor(50.0, dtype=DOUBLE, requires_grad=True)
    z = torch.tensor([0.30, 0.11, -0.2], dtype=DOUBLE)
    normalizer = nz.Lipmax(kappa=kappa, cap=1.5)
    assert normalizer.lipschitz(10**6) <= 1.5
    (slope,) = torch.autograd.grad(normalizer(z)[0], kappa)
    assert float(slope) > 0


def test_sigmoid_total_stays_below_the_exponential_of_the_largest_logit() -> None:
    z = torch.full((1009,), 1.2, dtype=DOUBLE)
    assert float(nz.sigmoid(z).sum()) == pytest.approx(1009 / (1 + 1009 * math.exp(-1.2)))


def test_a_sparse_rule_loses_the_mean_of_a_long_row_and_lipmix_keeps_it() -> None:
    """Sparsemax gives all keys weight only if none lies 1/n below the mean; the gate of lipmix needs no such logits."""
    for n in (16, 256, 4096):
        z = torch.zeros(n, dtype=torch.float64)
        z[0] = -2.0 / n
        assert float(nz.sparsemax(z)[0]) == 0.0
        weights = nz.lipmix(torch.randn(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64), gate=1.0)
        torch.testing.assert_close(weights, torch.full((n,), 1 / n, dtype=torch.float64))


def test_lipmix_keeps_a_gap_at_any_length() -> None:
    """P2: a top gap d keeps (1-g) min(1, (alpha-1) theta d)^(1/(alpha-1)), at the theta of the length."""
    for n in (8, 512, 32768):
        z = torch.zeros(n, dtype=torch.float64)
        z[0] = 0.4
        theta = (2.0**-4 + (0.5 * n**0.15) ** -4) ** -0.25
        assert float(nz.lipmix(z, gate=0.25)[0]) >= 0.75 * min(1.0, theta * 0.4)
