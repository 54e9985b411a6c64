"""Coverage by several heads, against tables of covered tokens."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from attnscope.theory import geometry


def number(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def test_independent_coverage_is_the_mean_over_all_tables() -> None:
    # Every pattern of two heads over one token, weighted by its probability.
    chances = (0.3, 0.8)
    for p, h in product(chances, (1, 2, 3)):
        patterns = product((0, 1), repeat=h)
        expected = sum(np.prod([p if hit else 1 - p for hit in pattern]) for pattern in patterns if any(pattern))
        assert float(geometry.coverage_independent(number(p), number(h))) == pytest.approx(expected, rel=1e-12)


def test_the_papers_arithmetic_is_right() -> None:
    assert float(geometry.coverage_independent(number(0.8), number(3))) == pytest.approx(0.992)
    assert [int(geometry.heads_needed(number(p), number(0.99))) for p in (0.7, 0.8, 0.85)] == [4, 3, 3]


def test_every_table_is_within_the_range_and_both_ends_are_attained() -> None:
    least, most = set(), set()
    for cells in product((0.0, 1.0), repeat=6):
        table = torch.tensor(cells, dtype=torch.float64).reshape(2, 3)
        coverage = float(table.amax(0).mean())
        lower, upper = geometry.coverage_range(table.mean(-1))
        assert float(lower) - 1e-12 <= coverage <= float(upper) + 1e-12
        least.add(coverage == pytest.approx(float(lower)))
        most.add(coverage == pytest.approx(float(upper)))
    assert True in least
    assert True in most


def test_complementary_heads_exceed_the_printed_maximum() -> None:
    shares = torch.tensor([0.8, 0.8], dtype=torch.float64)
    assert float(geometry.coverage_range(shares).upper) == 1
    assert float(geometry.coverage_independent(number(0.8), number(2))) == pytest.approx(0.96)


def test_tokens_that_differ_are_covered_less() -> None:
    chances = torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    for h in (1, 2, 5):
        assert float(geometry.coverage_of_tokens(chances, number(h))) == pytest.approx(0.8)
        assert float(geometry.jensen_gap(chances, number(h))) == pytest.approx(1 - 0.2**h - 0.8, abs=1e-12)
