"""Jacobian norms of rows with nearly all the weight on one key, where 1 - p has no digits left in float64.

The oracle differentiates each normalizer's definition by central differences with 110 decimal
digits, so that it shares neither a formula nor its cancellation with the library.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Context, Decimal, localcontext

import numpy as np
import pytest
import torch

from attnscope import normalizers as nz

DIGITS = Context(prec=110)
STEP = Decimal(10) ** -35
Row = list[Decimal]


def _softmax(z: Row) -> Row:
    powers = [(x - max(z)).exp() for x in z]
    return [x / sum(powers) for x in powers]


def _raw(z: Row) -> Row:
    return [x * p for x, p in zip(z, _softmax(z), strict=True)]


def _scaled(z: Row) -> Row:
    low, high = min(*z, Decimal(0)), max(*z, Decimal(0))
    return [(x - low) / (high - low) * p for x, p in zip(z, _softmax(z), strict=True)]


def _softplus_share(z: Row) -> Row:
    values = [(1 + x.exp()).ln() for x in z]
    return [x / sum(values) for x in values]


def _sharpened(z: Row) -> Row:
    entropy = -sum((p * p.ln() for p in _softmax(z)), Decimal(0))
    beta = Decimal(0)
    for coefficient in ("-0.037", "0.481", "-2.3", "4.917", "-1.791"):
        beta = beta * entropy + Decimal(coefficient)
    beta = max(beta, Decimal(1)) if entropy > Decimal("0.5") else Decimal(1)
    return _softmax([beta * x for x in z])


def exact_norm(weights: Callable[[Row], Row], logits: list[float]) -> float:
    """The spectral norm of the dense Jacobian."""
    columns = []
    with localcontext(DIGITS):
        for j in range(len(logits)):
            up, down = ([Decimal(x) + sign * STEP * (i == j) for i, x in enumerate(logits)] for sign in (1, -1))
            differences = zip(weights(up), weights(down), strict=True)
            columns.append([float((above - below) / (2 * STEP)) for above, below in differences])
    return float(np.linalg.norm(np.array(columns), 2))


def rows() -> list[list[float]]:
    """Two keys far apart, small and one-sided logits, and random rows with one key up to 40 above the rest."""
    rows = [[19.0, -19.0], [30.0, -5.0], [10.0, -10.0], [40.0, 1.0], [-1.0, -20.0], [-3.0, -40.0]]
    rows += [[5e-3, -5e-3], [1e-6, -1e-6], [1e-6, -2e-6, 5e-7], [19.0, 18.999, -19.0], [20.0, 1.5, 1.0, -20.0]]
    generator = np.random.default_rng(5)
    for trial in range(30):
        row = generator.normal(size=generator.integers(2, 8)) * generator.uniform(0.1, 4)
        row[generator.integers(len(row))] += generator.uniform(0, 40)
        rows.append((row + (trial % 2) * generator.normal() * 10).tolist())
    return rows


DEFINITIONS = {
    "sa_softmax_raw": _raw,
    "sa_softmax": _scaled,
    "f_normalizer": _softplus_share,
    "adaptive_temperature": _sharpened,
}


@pytest.mark.parametrize(("name", "weights"), DEFINITIONS.items(), ids=DEFINITIONS)
def test_the_norm_is_accurate_on_saturated_rows(name: str, weights: Callable[[Row], Row]) -> None:
    normalizer = nz.get(name)
    for row in rows():
        norm = float(normalizer.jacobian_norm(torch.tensor(row, dtype=torch.float64)))
        assert norm == pytest.approx(exact_norm(weights, row), rel=1e-9, abs=1e-21), row


@pytest.mark.parametrize("name", ["sa_softmax", "sa_softmax_raw"])
def test_a_batch_of_saturated_and_masked_rows_equals_its_rows_one_by_one(name: str) -> None:
    normalizer = nz.get(name)
    padded = torch.tensor([[19.0, -19.0, 7.0], [0.5, 0.2, 99.0], [30.0, -5.0, -60.0]], dtype=torch.float64)
    visible = torch.tensor([True, True, False]).expand(3, 3)
    alone = [exact_norm(DEFINITIONS[name], row[:2]) for row in padded.tolist()]
    assert normalizer.jacobian_norm(padded, visible).tolist() == pytest.approx(alone, rel=1e-9, abs=1e-21)


@pytest.mark.parametrize("value", [-2.0, -0.5, 1.0, 7.0])
@pytest.mark.parametrize("length", [2, 3, 32])
def test_tied_rows_have_the_closed_form(value: float, length: int) -> None:
    """Raw: J = ((1 + z) I - z 11^T / n) / n, with the eigenvalues (1 + z)/n and 1/n."""
    z = torch.full((length,), value, dtype=torch.float64)
    norm = float(nz.get("sa_softmax_raw").jacobian_norm(z))
    assert norm == pytest.approx(max(abs(1 + value), 1) / length, rel=1e-9)
