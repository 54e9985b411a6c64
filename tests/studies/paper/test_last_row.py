"""What is measured in single rows, coverage and the circle of Figure 1, against enumeration and definitions."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from models import build
from protocol_heads import plain_heads
from reproductions import BOOK, collect

from attnscope.studies.paper.sets import circle, layer_coverage
from attnscope.studies.paper.settings import SATURATION_N


def test_coverage_by_choosing_all_sets_of_heads() -> None:
    random = np.random.default_rng(4)
    heads, keys, n = 5, 13, 6
    selected = np.zeros((heads, keys), dtype=bool)
    for head in range(heads):
        selected[head, random.choice(keys, n, replace=False)] = True
    inside = selected & (random.random((heads, keys)) < 0.6)
    coverage = layer_coverage(selected, inside, 3)
    for count in (1, 2, 3):
        shares = []
        for head in range(heads):
            for others in combinations([h for h in range(heads) if h != head], count - 1):
                covered = inside[[head, *others]].any(0)
                shares.append(covered[selected[head]].mean())
        assert coverage[count - 1] == pytest.approx(np.mean(shares))


def test_the_circle_is_a_circle_and_its_ball_leaves_the_others_out() -> None:
    generator = torch.Generator().manual_seed(5)
    weights = torch.softmax(2 * torch.randn(12, generator=generator, dtype=torch.float64), -1)
    projected = circle(weights, torch.randn(12, 6, generator=generator, dtype=torch.float64) + 0.5, 4)
    assert projected.points.norm(dim=-1) == pytest.approx(np.ones(12))
    y = weights[:, None] * projected.points
    away = (y - y[projected.selected].sum(0)).norm(dim=-1)
    radius = float(projected.ball.radius)
    assert radius == pytest.approx(float(away[~projected.selected].min()))
    assert projected.ball.inside[0, 0].tolist() == (projected.selected & (away < radius)).tolist()


def test_separability_and_coverage_of_the_last_row_by_their_definition() -> None:
    """At the model's own temperature, of a model with grouped queries."""
    module = build("llama-gqa")
    tables = collect(module, length=32, windows=1)
    heads = {key[1:]: head for key, head in plain_heads(module, BOOK, (32,), ("value",)).items()}
    inside = {}
    for key, head in heads.items():
        alpha, x = head.weights[-1], head.vectors["value"] / np.linalg.norm(head.vectors["value"], axis=-1)[:, None]
        y, top = alpha[:, None] * x, np.argsort(-alpha, kind="stable")[:SATURATION_N]
        away = np.linalg.norm(y - y[top].sum(0), axis=-1)
        others = np.setdiff1d(np.arange(len(alpha)), top)
        inside[key] = {int(i) for i in top if away[i] < away[others].min()}
        line = tables["sharpness"].filter(layer=key[0], head=key[1], temperature=1.0)
        assert line["separability"].item() == pytest.approx(len(inside[key]) / SATURATION_N)
    alone = np.mean([len(each) for key, each in inside.items() if key[0] == 1]) / SATURATION_N
    line = tables["coverage"].filter(layer=1, heads=1)
    assert line["coverage"].item() == pytest.approx(alone)
    assert tables["coverage"].filter(layer=1, heads=3)["independent"].item() == pytest.approx(1 - (1 - alone) ** 3)
