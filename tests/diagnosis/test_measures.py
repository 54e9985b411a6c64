"""Agreement, intervals, growth, nulls and the number of keys that are enough, each against its definition."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch

from attnscope.diagnosis.heads import budget_by_share
from attnscope.diagnosis.observing import (
    ERRORS,
    HeadOutputs,
    WindowRows,
    context_of,
    key_grid,
    keys_column,
    keys_enough,
    random_sets,
    separability_columns,
)
from attnscope.diagnosis.states import Thresholds
from attnscope.errors import InputError
from attnscope.intervals import agreement, block_bootstrap, power_law_of_rows


def test_kappa_is_cohens() -> None:
    # Cohen's table: 20 and 15 on the diagonal, 5 and 10 beside it. (35/50 - 0.5) / (1 - 0.5) = 0.4.
    first = ["yes"] * 25 + ["no"] * 25
    second = ["yes"] * 20 + ["no"] * 5 + ["yes"] * 10 + ["no"] * 15
    assert agreement(first, second) == pytest.approx((0.7, 0.4))
    assert agreement(["a", "b", "c"], ["a", "b", "c"]) == (1.0, 1.0)
    assert agreement(["a", "a"], ["a", "a"]) == (1.0, 1.0)
    assert agreement(["a", "b"], ["b", "a"]) == pytest.approx((0.0, -1.0))


def test_the_interval_of_correlated_rows_is_wider_than_that_of_independent_ones() -> None:
    generator = np.random.default_rng(3)
    independent = generator.standard_normal((400, 128))
    correlated = np.repeat(generator.standard_normal((400, 16)), 8, axis=-1)  # runs of eight equal rows
    covered = {}
    for name, values in (("independent", independent), ("correlated", correlated)):
        found = block_bootstrap([values[:, :64], values[:, 64:]])
        np.testing.assert_allclose(found.mean, values.mean(-1))
        np.testing.assert_allclose(found.deviation, values.std(-1))
        covered[name] = np.mean((found.low < 0) & (found.high > 0))
        width = np.mean(found.high - found.low)
        expected = 2 * 1.96 / np.sqrt(128 if name == "independent" else 16)
        assert width == pytest.approx(expected, rel=0.1), name
    assert min(covered.values()) > 0.85


def test_missing_values_are_left_out() -> None:
    values = np.arange(32.0).reshape(2, 16)
    values[0, 3:] = np.nan
    values[1] = np.nan
    found = block_bootstrap([values])
    assert found.mean[0] == 1.0
    assert all(np.isnan(column[1]) for column in found)


def test_growth_finds_the_exponent_of_a_power_law() -> None:
    lengths = np.geomspace(16, 1024, 80)
    noise = np.random.default_rng(1).normal(0, 0.2, 80)
    found = power_law_of_rows(lengths, 3 * lengths**0.4 * np.exp(noise))
    assert found is not None
    assert found.exponent == pytest.approx(0.4, abs=0.05)
    assert found.low < 0.4 < found.high
    assert power_law_of_rows(np.full(9, 64.0), np.ones(9)) is None


def plain_separability(weights: np.ndarray, units: np.ndarray, chosen: tuple[int, ...]) -> float:
    scaled = weights[:, None] * units
    context = scaled[list(chosen)].sum(0)
    distance = np.linalg.norm(scaled - context, axis=-1)
    radius = min(distance[i] for i in range(len(weights)) if i not in chosen)
    return float(np.mean([distance[i] < radius for i in chosen]))


def test_separability_and_its_nulls_agree_with_an_enumeration_of_all_sets() -> None:
    generator = torch.Generator().manual_seed(11)
    rows, keys, n = 2000, 7, 2
    logits = 2 * torch.randn(keys, generator=generator, dtype=torch.float64)
    weights = logits.softmax(-1)
    vectors = torch.randn(keys, 3, generator=generator, dtype=torch.float64)
    visible = torch.ones(1, rows, keys, dtype=torch.bool)
    columns = separability_columns(weights.expand(1, rows, keys), visible, vectors[None], n, generator)
    w, units = weights.numpy(), (vectors / vectors.norm(dim=-1, keepdim=True)).numpy()
    top = tuple(np.argsort(-w)[:n])
    every = [plain_separability(w, units, chosen) for chosen in combinations(range(keys), n)]
    assert columns["separability"][0, 0] == plain_separability(w, units, top)
    assert columns["null_uniform"][0, 0] == plain_separability(np.full(keys, 1 / keys), units, top)
    error = np.std(every) / np.sqrt(rows)
    assert abs(float(columns["null_random"].mean()) - np.mean(every)) < 4 * error
    rest = plain_separability(w[1:], units[1:], tuple(np.argsort(-w[1:])[:n]))
    assert columns["separability_without_sink"][0, 0] == rest


def test_random_sets_are_uniform_and_visible() -> None:
    visible = torch.tensor([True, False, True, True, True]).expand(6000, 5)
    sets = random_sets(visible, 2, 1, torch.Generator().manual_seed(2))[:, 0]
    assert (sets.sum(-1) == 2).all()
    assert not sets[:, 1].any()
    codes, counts = np.unique([tuple(np.flatnonzero(s)) for s in sets.numpy()], axis=0, return_counts=True)
    assert len(codes) == 6
    assert (np.abs(counts - 1000) < 4 * np.sqrt(6000 / 6 * 5 / 6)).all()


def test_rows_too_short_for_the_top_set_have_no_separability() -> None:
    weights = torch.full((1, 1, 4), 0.25, dtype=torch.float64)
    columns = separability_columns(
        weights, weights > 0, torch.eye(4, dtype=torch.float64)[None], 4, torch.Generator().manual_seed(0)
    )
    assert all(column.isnan().all() for column in columns.values())


def test_keys_enough_lies_between_the_sizes_around_the_first_that_is() -> None:
    generator = torch.Generator().manual_seed(4)
    heads, rows, keys = 3, 5, 97
    weights = (3 * torch.randn(heads, rows, keys, generator=generator, dtype=torch.float64)).softmax(-1)
    values = torch.randn(heads, keys, 6, generator=generator, dtype=torch.float64)
    visible = torch.ones_like(weights, dtype=torch.bool)
    found, wider = keys_enough(HeadOutputs.of(weights, values), visible, [0.2, 0.6])
    assert (wider <= found).all()
    grid = [1, 2, 3, 5, 8, 13, 21, 34, 55, 89]
    assert key_grid(97) == tuple(grid)
    for head in range(heads):
        for row in range(rows):
            w, v = weights[head, row].numpy(), values[head].numpy()
            order, own = np.argsort(-w), w @ v
            errors = []
            for k in [*grid, 97]:
                top = order[:k]
                errors.append(np.linalg.norm(own - (w[top] / w[top].sum()) @ v[top]) / np.linalg.norm(own))
            first = next(i for i, error in enumerate(errors) if error <= 0.2)
            low, high = ([*grid, 97][max(first - 1, 0)], [*grid, 97][first])
            assert low <= float(found[head, row]) <= high


def two_heads() -> list[WindowRows]:
    """Heads whose keys fall off with the error like known powers, on rows of a hundred keys."""
    windows = []
    for _ in range(2):
        window = WindowRows()
        for head, (scale, power) in enumerate(((1.0, 0.5), (4.0, 0.25))):
            columns = {keys_column(error): np.full(8, scale * error**-power) for error in ERRORS}
            window.rows[0, head] = {"length": np.full(8, 100.0), **columns}
        windows.append(window)
    return windows


def test_a_budget_is_shared_out_at_one_error_for_all_heads() -> None:
    windows = two_heads()
    found = budget_by_share(windows, [(0, 0), (0, 1)], 0.05)
    assert np.mean(list(found.shares.values())) == pytest.approx(0.05, rel=1e-6)
    assert found.shares[0, 0] == pytest.approx(found.error**-0.5 / 100, rel=1e-6)
    assert found.shares[0, 1] == pytest.approx(4 * found.error**-0.25 / 100, rel=1e-6)
    most = budget_by_share(windows, [(0, 0), (0, 1)], 0.9)
    assert most.error == pytest.approx(0.02)
    assert np.mean(list(most.shares.values())) < 0.9
    least = budget_by_share(windows, [(0, 0), (0, 1)], 0.001)
    assert least.error == pytest.approx(0.4)


def test_rules_keep_the_total_weight_of_a_row_with_a_sink() -> None:
    weights = torch.tensor([[[0.1, 0.2, 0.1]]], dtype=torch.float64)  # 0.6 went to a sink without a value
    keys = torch.tensor([[[True, False, True]]])
    context = context_of(HeadOutputs.of(weights, torch.eye(3, dtype=torch.float64)[None]), keys)
    torch.testing.assert_close(context, torch.tensor([[[0.2, 0.0, 0.2]]], dtype=torch.float64))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("lokal=0.3", "one of sink_bound"),
        ("local", "received 'local'"),
        ("local=much", "received 'much'"),
        ("local=0", "received 0.0"),
        ("local=nan", "received nan"),
        ("top_share=1", "share below 1"),
        ("near_keys=2.5", "whole number"),
    ],
)
def test_thresholds_that_cannot_be_are_refused(setting: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Thresholds.parse([setting])


def test_thresholds_are_read_by_name() -> None:
    assert Thresholds.parse(["near-keys=16", "local=0.2"]) == Thresholds(near_keys=16, local=0.2)
