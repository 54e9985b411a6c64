"""Every normalizer against an oracle: float64, one row at a time, thresholds from scipy's root finder."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from scipy.optimize import brentq
from torch import Tensor

from attnscope import normalizers as nz

Row = np.ndarray
Oracle = Callable[[Row], Row]

pytestmark = pytest.mark.pairwise

ERROR_FLOAT32 = 1e-6
ERROR_FLOAT64 = 1e-10
ERROR = {
    torch.float64: ERROR_FLOAT64,
    torch.float32: ERROR_FLOAT32,
    torch.bfloat16: 4e-3,
    torch.float16: 5e-4,
}


def exponential(z: Row, sink: float = -math.inf) -> Row:
    top = max(z.max(), sink)
    e = np.exp(z - top)
    return e / (e.sum() + math.exp(sink - top))


def tsallis(z: Row, alpha: float) -> Row:
    """alpha-entmax from its definition: the threshold is bracketed and found by Brent's method."""
    x = (alpha - 1) * (z - z.max())

    def excess(tau: float) -> float:
        return float((np.clip(x - tau, 0, None) ** (1 / (alpha - 1))).sum() - 1)

    tau = -1.0 if len(z) == 1 or excess(-1.0) <= 0 else brentq(excess, -1.0, 0.0, xtol=1e-16, rtol=1e-15)
    return np.clip(x - tau, 0, None) ** (1 / (alpha - 1))


def largest(z: Row, k: int) -> Row:
    order = sorted(range(len(z)), key=lambda i: (-z[i], i))[:k]
    w = np.zeros_like(z)
    w[order] = exponential(z[order])
    return w


def adaptive(z: Row) -> Row:
    p = exponential(z)
    h = float(-sum(v * math.log(v) for v in p if v > 0))
    beta = max(np.polyval([-0.037, 0.481, -2.3, 4.917, -1.791], h), 1.0) if h > 0.5 else 1.0
    return exponential(beta * z)


def scaled(z: Row) -> Row:
    low, high = min(z.min(), 0.0), max(z.max(), 0.0)
    return exponential(z) if high == low else (z - low) / (high - low) * exponential(z)


def over_sum(values: Row) -> Row:
    return values / values.sum()


ORACLES: dict[str, tuple[nz.Normalizer, Oracle]] = {
    "softmax": (nz.get("softmax"), exponential),
    "softmax-T0.3": (nz.get("softmax", temperature=0.3), lambda z: exponential(z / 0.3)),
    "f-softplus": (nz.get("f_normalizer"), lambda z: over_sum(np.logaddexp(0, z))),
    "f-square": (
        nz.get("f_normalizer", function="one_plus_square"),
        lambda z: over_sum(1 + np.maximum(z, 0) ** 2),
    ),
    "f-callable": (nz.get("f_normalizer", function=lambda z: 2 + z.cos()), lambda z: over_sum(2 + np.cos(z))),
    "ssmax": (nz.get("ssmax", s=0.6, b=0.2), lambda z: exponential((0.6 * math.log(len(z)) + 0.2) * z)),
    "ssmax-negative": (nz.get("ssmax", s=-0.6), lambda z: exponential(-0.6 * math.log(len(z)) * z)),
    "power_softmax": (nz.get("power_softmax", kappa=0.8, gamma=0.3), lambda z: exponential(0.8 * len(z) ** 0.3 * z)),
    "logn": (nz.get("logn", n_train=5), lambda z: exponential(max(1, math.log(len(z)) / math.log(5)) * z)),
    "adaptive_temperature": (nz.get("adaptive_temperature"), adaptive),
    "softmax1": (nz.get("softmax1"), lambda z: exponential(z, 0.0)),
    "sink_softmax": (nz.get("sink_softmax", sink=1.5), lambda z: exponential(z, 1.5)),
    "sigmoid": (nz.get("sigmoid"), lambda z: 1 / (1 + len(z) * np.exp(-np.clip(z, -600, None)))),
    "sigmoid-fixed": (nz.get("sigmoid", bias=-2.0), lambda z: 1 / (1 + np.exp(2 - np.clip(z, -600, None)))),
    "topk-3": (nz.get("topk", k=3), lambda z: largest(z, 3)),
    "sparsemax": (nz.get("sparsemax"), lambda z: tsallis(z, 2.0)),
    "entmax15": (nz.get("entmax15"), lambda z: tsallis(z, 1.5)),
    "entmax-1.2": (nz.get("entmax", alpha=1.2), lambda z: tsallis(z, 1.2)),
    "entmax-1.9": (nz.get("entmax", alpha=1.9), lambda z: tsallis(z, 1.9)),
    "entmax-1.0": (nz.get("entmax", alpha=1.0), exponential),
    "asentmax": (
        nz.get("asentmax", beta=0.5, gamma=-1.2),
        lambda z: tsallis((1 + 0.5 * math.log(len(z)) ** -1.2) * z if len(z) > 1 else z, 1.5),
    ),
    "lipmax": (
        nz.get("lipmax", kappa=0.7, cap=1.1, alpha=1.7),
        lambda z: tsallis(z * ((1.1**-4 + (0.7 * math.log(len(z))) ** -4) ** -0.25 if len(z) > 1 else 0.0), 1.7),
    ),
    "lipmix": (
        nz.get("lipmix", kappa=0.7, gamma=0.2, cap=1.1, alpha=1.7, gate=0.3),
        lambda z: 0.7 * tsallis(z * (1.1**-4 + (0.7 * len(z) ** 0.2) ** -4) ** -0.25, 1.7) + 0.3 / len(z),
    ),
    "sa-raw": (nz.get("sa_softmax_raw"), lambda z: z * exponential(z)),
    "sa-scaled": (nz.get("sa_softmax"), scaled),
}
NORMALIZERS = pytest.mark.parametrize(("normalizer", "oracle"), ORACLES.values(), ids=ORACLES)


@pytest.fixture(params=["loops", "reference"])
def implementation(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run a test with the compiled loops and with the torch reference."""
    if request.param == "reference":
        with nz.reference_only():
            yield request.param
    else:
        yield request.param


def expected(oracle: Oracle, logits: Tensor, visible: Tensor | None) -> Tensor:
    z = logits.double().numpy().reshape(-1, logits.shape[-1])
    mask = np.isfinite(z) if visible is None else visible.expand(logits.shape).numpy().reshape(z.shape)
    out = np.zeros_like(z)
    for row, row_mask, target in zip(z, mask, out, strict=True):
        if row_mask.any():
            target[row_mask] = oracle(row[row_mask])
    return torch.from_numpy(out).reshape(logits.shape)


def rows() -> Tensor:
    """Rows that are hard in different ways, 13 keys each."""
    generator = torch.Generator().manual_seed(7)
    z = torch.randn(11, 13, generator=generator)
    z[1] = 0.25  # all equal
    z[2] = 0.0
    z[3, 4] = 60.0  # one huge
    z[4, ::2] = z[4, 0]  # ties
    z[5] = -z[5].abs() - 1  # all negative
    z[6] *= 1e-3
    z[7] *= 30
    z[8, :2] = torch.tensor([3.0, 3.0])  # a tied top
    z[9] = torch.linspace(-1, 1, 13)
    z[10, 3:] = -50.0
    return z


MASKS = {
    "none": None,
    "causal": torch.ones(11, 13, dtype=torch.bool).tril(2),
    "left-padded": torch.arange(13) >= torch.arange(11)[:, None],
    "one-visible": torch.nn.functional.one_hot(torch.arange(11), 13).bool(),
    "columns": (torch.arange(13) % 3 == 0)[None],
    "some-rows-empty": (torch.arange(11) % 2 == 0)[:, None],
}


@NORMALIZERS
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_weights_equal_the_oracle(
    normalizer: nz.Normalizer, oracle: Oracle, mask: Tensor | None, dtype: torch.dtype, implementation: str
) -> None:
    z = rows().to(dtype)
    weights = normalizer(z, mask)
    assert weights.dtype == dtype
    want = expected(oracle, z, mask)
    scale = want.abs().amax(-1, keepdim=True).clamp(min=1.0)
    torch.testing.assert_close(weights.double() / scale, want / scale, rtol=0, atol=ERROR[dtype])


@NORMALIZERS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_sixteen_bit_logits_are_computed_in_float32(
    normalizer: nz.Normalizer, oracle: Oracle, dtype: torch.dtype
) -> None:
    z = rows()[[0, 1, 4, 8, 9]].to(dtype)
    weights = normalizer(z)
    assert weights.dtype == dtype
    torch.testing.assert_close(weights, normalizer(z.float()).to(dtype), rtol=0, atol=0)
    torch.testing.assert_close(weights.double(), expected(oracle, z, None), rtol=ERROR[dtype], atol=ERROR[dtype])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.lists(st.floats(-40, 40, width=32) | st.sampled_from([0.0, 1.0, -1e4, 1e4]), min_size=1, max_size=37),
    alpha=st.floats(1.01, 2.0),
)
def test_entmax_equals_the_oracle_for_any_row(values: list[float], alpha: float, implementation: str) -> None:
    z = torch.tensor(values, dtype=torch.float64)
    weights = nz.entmax(z, alpha=torch.tensor(alpha, dtype=torch.float64))
    np.testing.assert_allclose(weights.numpy(), tsallis(z.numpy(), alpha), atol=1e-8)
    single = nz.entmax(z.float(), alpha=torch.tensor(alpha))
    np.testing.assert_allclose(single.numpy(), tsallis(z.numpy(), alpha), atol=ERROR_FLOAT32)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.lists(st.integers(-3, 3), min_size=1, max_size=29),
    k=st.integers(1, 31),
)
def test_topk_keeps_exactly_k_and_the_first_of_equals(values: list[int], k: int, implementation: str) -> None:
    z = torch.tensor(values, dtype=torch.float32)
    weights = nz.topk(z, k=k)
    assert int((weights > 0).sum()) == min(k, len(values))
    np.testing.assert_allclose(weights.numpy(), largest(z.double().numpy(), k), atol=ERROR_FLOAT32)


@pytest.mark.parametrize("alpha", [1.0, 1.0005, 1.001])
def test_entmax_is_softmax_within_a_thousandth_of_one(alpha: float) -> None:
    """Fault 12."""
    z = rows().double()
    for value in (alpha, torch.tensor(alpha, dtype=torch.float64)):
        torch.testing.assert_close(nz.entmax(z, alpha=value), torch.softmax(z, -1), rtol=1e-12, atol=1e-14)


def test_entmax_takes_one_alpha_per_head() -> None:
    z = torch.randn(2, 3, 5, 7, dtype=torch.float64)
    alpha = torch.tensor([1.0, 1.3, 2.0], dtype=torch.float64)
    weights = nz.entmax(z, alpha=alpha[:, None])
    for head, order in enumerate(alpha.tolist()):
        torch.testing.assert_close(weights[:, head], nz.entmax(z[:, head], alpha=order), rtol=0, atol=1e-12)


LONG = 100_003
SUMMING = [name for name, (normalizer, _) in ORACLES.items() if normalizer.facts.sums_to_one]


@pytest.mark.parametrize("name", SUMMING)
@pytest.mark.parametrize("scale", [0.0, 1e-4, 1.0, 8.0], ids=lambda s: f"scale-{s}")
def test_a_row_of_1e5_keys_sums_to_one(name: str, scale: float) -> None:
    """Fault 12."""
    z = torch.randn(LONG, generator=torch.Generator().manual_seed(3)) * scale + 0.1
    assert abs(float(ORACLES[name][0](z).double().sum()) - 1) < 1e-5


@pytest.mark.parametrize("name", SUMMING)
def test_the_reference_too_sums_1e5_keys_to_one(name: str) -> None:
    z = torch.randn(LONG, generator=torch.Generator().manual_seed(3))
    with nz.reference_only():
        assert abs(float(ORACLES[name][0](z).double().sum()) - 1) < 1e-5


def test_bfloat16_rows_of_1e5_keys_sum_to_one_before_the_last_rounding() -> None:
    z = torch.randn(LONG, generator=torch.Generator().manual_seed(5)).bfloat16()
    assert abs(float(nz.entmax15(z.float()).double().sum()) - 1) < 1e-5
    assert abs(float(nz.entmax15(z).double().sum()) - 1) < 4e-3  # each weight rounded to 8 bits, at random


def test_logits_of_1e4_neither_overflow_nor_lose_the_gap() -> None:
    """Fault 12."""
    z = torch.tensor([1e4, 1e4 - 0.5, -1e4], dtype=torch.float32)
    want = [1 / (1 + math.exp(-0.5)), 1 / (1 + math.exp(0.5)), 0.0]
    torch.testing.assert_close(nz.softmax(z), torch.tensor(want), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(nz.sparsemax(z), torch.tensor([0.75, 0.25, 0.0]), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax15", "entmax:alpha=1.3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_temperatures_near_zero_and_infinity_give_the_limits(
    name: str, dtype: torch.dtype, implementation: str
) -> None:
    """Fault 12: the largest keys share the weight, or all keys do."""
    z = torch.tensor([-2.0, 3.0, 1.0, 3.0, 0.5], dtype=dtype)
    cold, hot = (nz.parse(f"{name}:temperature={value}").weights(z) for value in ("1e-30", "1e30"))
    torch.testing.assert_close(cold, torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0], dtype=dtype))
    torch.testing.assert_close(hot, torch.full_like(z, 1 / 5))


@pytest.mark.parametrize("alpha", [1.2, 1.5, 1.6, 1.7, 1.9])
def test_a_key_above_a_hundred_thousand_equal_ones_keeps_its_weight(alpha: float) -> None:
    z = torch.ones(1, 100_000)
    z[0, -1] = 1.5
    weights = nz.entmax(z, alpha=alpha)[0].double()
    # one unknown: y of the equal keys, with n y^q + (y + gap)^q = 1
    power, gap, count = 1 / (float(np.float32(alpha)) - 1), (float(np.float32(alpha)) - 1) * 0.5, 99_999
    low, high = 0.0, 1.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if count * middle**power + (middle + gap) ** power < 1 else (low, middle)
    assert abs(weights[-1].item() - (low + gap) ** power) < 1e-6
    assert abs(weights[0].item() - low**power) < 1e-9
