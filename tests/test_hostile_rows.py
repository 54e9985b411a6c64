"""Hostile rows through the front door: a module that records chosen logits and vectors, scanned like any other."""

from __future__ import annotations

import math
from typing import Any

import adversarial
import definitions
import numpy as np
import pytest
import torch
from torch import nn

import attnscope
from attnscope.scanning import scan

Row = tuple[str, np.ndarray, np.ndarray]
MARGIN = 1e-9


class Given(nn.Module):
    """Attention whose logits and vectors are its inputs."""

    def forward(self, logits: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
        query = torch.ones(len(logits), 1, 1, 1, dtype=torch.float64)
        attnscope.capture.record(query, logits[:, None, :, None], vectors[:, None], scale=1.0)
        return vectors


def rows() -> list[Row]:
    draw = np.random.default_rng(9)
    found = [*adversarial.rows()]
    x = draw.normal(size=(31, 7))
    steps = np.linspace(0, 3, 31)
    top = np.zeros(31)
    top[4] = 900.0
    found.append(("one-hot", top, x))
    found.append(("huge logits", 1e6 * draw.normal(size=31), x))
    found.append(("huge equal logits", np.full(31, 1e8), x))
    found.append(("all tied, all duplicates", np.zeros(31), np.tile(x[0], (31, 1))))
    found.append(("duplicates in pairs", np.repeat(steps[:16], 2)[:31], np.repeat(x[:16], 2, 0)[:31]))
    found.append(("zero vectors in the top set", steps, np.where(np.arange(31)[:, None] > 26, 0.0, x)))
    found.append(("all vectors zero", steps, np.zeros((31, 7))))
    found.append(("offset mean", steps, x + 100))
    found.append(("near duplicates", steps / 1e7, x[0] + 1e-7 * x))
    found.append(("one heavy, the rest tiny", np.where(np.arange(31) == 3, 46.0, 0.0), x))
    found.append(("tiny vectors", steps, 1e-150 * x))
    found.extend((f"{length} keys", draw.normal(size=length), draw.normal(size=(length, 3))) for length in (1, 2, 3))
    return found


@pytest.mark.parametrize(
    ("name", "logits", "vectors"), rows(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_hostile_row(name: str, logits: np.ndarray, vectors: np.ndarray) -> None:
    """Faults 4, 12 and 13."""
    length = len(logits)
    top_n = sorted({1, 2, 3, 5, max(1, length - 1), length, length + 4})
    z, x = torch.tensor(logits, dtype=torch.float64)[None], torch.tensor(vectors, dtype=torch.float64)[None]
    with np.errstate(over="ignore", invalid="ignore"):
        if not (np.isfinite(logits).all() and np.isfinite((vectors**2).sum(1)).all()):
            pytest.skip("sums of squares overflow in plain float64")
    result = scan(Given(), inputs=(z, x), top_n=top_n, bounds="paper")
    weights = definitions.softmax(logits)
    assert result.rows.height == 1
    check(result.rows.to_dicts()[0], definitions.of_row(logits, weights), {}, float(np.abs(logits).max()))
    assert result.topn["n"].to_list() == [n for n in top_n if n < length]  # a set of all keys has no line
    for line in result.topn.iter_rows(named=True):
        expected, margins = definitions.of_set(weights, vectors, line["n"])
        check(line, expected, margins, float(np.abs(logits).max()))


def check(line: dict[str, Any], expected: dict[str, Any], margins: dict[str, float], size: float) -> None:
    for name, value in expected.items():
        if margins.get(name, math.inf) < MARGIN:
            continue
        if value is None or not math.isfinite(value):
            assert line[name] is None or not math.isfinite(line[name]), name
            continue
        relative = max(1e-7, 1e-15 * size)  # exp of a large logit has no more digits than that
        assert line[name] == pytest.approx(value, rel=relative, abs=1e-14), (name, line)
