"""The compiled eigenvalue of the softmax Jacobian against its form in torch and against dense matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnscope._secular import largest_and_rest, largest_eigenvalue
from attnscope.measure._kernels import _largest_eigenvalue

RELATIVE = 1e-13
DRAW = np.random.default_rng(1713)


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


ROWS = {
    "one key": np.array([1.0]),
    "two keys": softmax(np.array([0.3, -1.1])),
    "uniform": np.full(37, 1 / 37),
    "two largest are equal": softmax(np.array([2.0, 2.0, 1.0, -3.0])),
    "two largest nearly equal": softmax(np.array([2.0, 2.0 - 1e-12, 1.0, -3.0])),
    "saturated": softmax(np.array([40.0, 1.0, 0.0, -2.0, 0.5])),
    "saturated beyond rounding": np.array([1.0, 1e-200, 1e-230]),
    "zeros": np.array([0.0, 0.7, 0.0, 0.3, 0.0]),
    "a sink takes half": softmax(DRAW.normal(size=23)) / 2,
    "a sink takes nearly all": softmax(DRAW.normal(size=23)) * 1e-9,
} | {f"random {scale:g}": softmax(scale * DRAW.normal(size=211)) for scale in (0.01, 1, 3, 10, 100)}


@pytest.mark.parametrize("name", ROWS)
def test_compiled_and_torch_eigenvalues_agree(name: str) -> None:
    row = torch.from_numpy(ROWS[name])
    first, second, others, left_over = largest_and_rest(row)
    rest = float(others.sum() + left_over)
    compiled = _largest_eigenvalue(first.item(), second.item(), rest, left_over.item(), others.numpy())
    by_torch = largest_eigenvalue(row).item()
    assert compiled == pytest.approx(by_torch, rel=RELATIVE, abs=0)
    dense = np.linalg.eigvalsh(np.diag(ROWS[name]) - np.outer(ROWS[name], ROWS[name]))[-1]
    assert by_torch == pytest.approx(dense, rel=1e-12, abs=1e-15)
