"""The products that are held in registers, against numpy: any number of rows, keys and dimensions."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from numba import njit

from attnscope._kernels_tiles import PANEL
from attnscope.measure._kernels_products import (
    AT_ONCE,
    FEWEST,
    INTEGER_ONE,
    any_above,
    any_integer_above,
    average,
    integer_error,
    keep_most,
    multiply,
    pack,
    panels_shape,
    to_integers,
    words,
)

SIZES = [
    (1, 1, 1),
    (3, 5, 2),
    (4, 16, 8),
    (5, 17, 7),
    (6, 33, 64),
    (7, 40, 9),
    (10, 100, 3),
    (13, 64, 65),
    (31, 15, 24),
]


@njit
def packed(vectors: Any, panels: Any) -> None:
    panels[:] = 0
    for key in range(vectors.shape[0]):
        pack(vectors[key], key, panels)


@njit
def products(few: Any, count: Any, panels: Any, begin: Any, end: Any, out: Any) -> None:
    multiply(few, count, panels, begin, end, out)


@njit
def most(few: Any, count: Any, start: Any, panels: Any, begin: Any, end: Any, best: Any) -> None:
    keep_most(few, count, start, panels, begin, end, best)


@njit
def above(few: Any, first: Any, panels: Any, panel: Any, start: Any, cuts: Any) -> bool:
    return any_above(few, first, panels, panel, start, cuts)


@njit
def integers_above(few: Any, first: Any, panels: Any, panel: Any, start: Any, cuts: Any) -> bool:
    return any_integer_above(few, first, panels, panel, start, cuts)


@njit
def rounded(vectors: Any, by: Any, out: Any) -> None:
    for row in range(vectors.shape[0]):
        to_integers(vectors[row], by[row], out[row])


@njit
def error_of_integers(dims: Any) -> float:
    return integer_error(dims)


@njit
def averages(weights: Any, rows: Any, ends: Any, vectors: Any, few: Any, sums: Any, out: Any) -> None:
    average(weights, rows, ends, vectors, few, sums, out)


def group(keys: int, dims: int, seed: int = 0) -> tuple[Any, Any]:
    vectors = np.random.default_rng(seed).normal(size=(keys, dims)).astype(np.float32)
    panels = np.empty(panels_shape(keys, dims), np.float32)
    packed(vectors, panels)
    return vectors, panels


def rows_of(count: int, dims: int) -> Any:
    """Rows, and what stands behind them: it must not matter."""
    few = np.full((count + FEWEST, dims), np.nan, np.float32)
    few[:count] = np.random.default_rng(1).normal(size=(count, dims))
    return few


@pytest.mark.parametrize(("count", "keys", "dims"), SIZES)
def test_products_of_all_or_some_panels(count: int, keys: int, dims: int) -> None:
    vectors, panels = group(keys, dims)
    few = rows_of(count, dims)
    for begin in {0, len(panels) - 1}:
        out = np.full((count + FEWEST, len(panels) * PANEL), 7, np.float32)
        products(few, count, panels, begin, len(panels), out)
        expected = few[:count].astype(np.float64) @ vectors[begin * PANEL :].T.astype(np.float64)
        assert np.allclose(out[:count, : expected.shape[1]], expected, rtol=1e-5, atol=1e-5)
        assert (out[max(count, FEWEST) :] == 7).all()


@pytest.mark.parametrize(("count", "keys", "dims"), SIZES)
def test_the_largest_of_each_key(count: int, keys: int, dims: int) -> None:
    vectors, panels = group(keys, dims)
    few = rows_of(count, dims)
    start = np.full(count + FEWEST, -np.inf, np.float32)
    start[:count] = np.random.default_rng(2).normal(size=count)
    best = np.full(len(panels) * PANEL, -1.5, np.float32)
    most(few, count, start, panels, 0, len(panels), best)
    expected = (start[:count, None] + few[:count].astype(np.float64) @ vectors.T.astype(np.float64)).max(0)
    assert np.allclose(best[:keys], np.maximum(expected, -1.5), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dims", [1, 6, 64])
def test_any_product_above_its_cut(dims: int) -> None:
    vectors, panels = group(2 * PANEL, dims)
    few = np.random.default_rng(3).normal(size=(2 * AT_ONCE, dims)).astype(np.float32)
    start = np.random.default_rng(4).normal(size=2 * PANEL).astype(np.float32)
    values = start + few.astype(np.float64) @ vectors.T.astype(np.float64)
    for first in (0, AT_ONCE):
        for panel in (0, 1):
            own = values[first : first + AT_ONCE, panel * PANEL : (panel + 1) * PANEL]
            cuts = np.full(2 * AT_ONCE, np.inf, np.float32)
            cuts[first : first + AT_ONCE] = own.max(1) + 1e-3
            assert not above(few, first, panels, panel, start, cuts)
            for row in range(AT_ONCE):
                cuts[first + row] -= 2e-3
                assert above(few, first, panels, panel, start, cuts)
                cuts[first + row] = np.inf


def units(count: int, dims: int, seed: int) -> tuple[Any, Any]:
    """Vectors of any length, the last two along an axis, and the inverses of their lengths."""
    vectors = (
        np.random.default_rng(seed).normal(size=(count, dims))
        * 10.0 ** np.arange(-count // 2, count - count // 2)[:, None]
    )
    vectors[-2:] = 0
    vectors[-2:, 0] = 3.0, -3.0
    return vectors, 1 / np.linalg.norm(vectors, axis=1)


@pytest.mark.parametrize("dims", [1, 2, 7, 64, 129])
def test_integers_are_within_their_bound(dims: int) -> None:
    vectors, inverses = units(2 * PANEL, dims, seed=6)
    found = np.full((len(vectors), words(dims)), -1, np.int32)
    rounded(vectors, inverses, found)
    integers = found.view(np.int16).astype(np.int64)
    exact = vectors * inverses[:, None]
    assert (np.abs(integers[:, :dims] - exact * INTEGER_ONE) <= 0.5 + 1e-6).all()
    assert (integers[:, dims:] == 0).all()
    off = np.abs(integers @ integers.T - exact @ exact.T * INTEGER_ONE**2)
    assert off.max() <= error_of_integers(dims)


@pytest.mark.parametrize("dims", [1, 2, 7, 64, 129])
def test_any_product_of_integers_above_its_cut(dims: int) -> None:
    (vectors, inverses), (others, of_others) = units(2 * AT_ONCE, dims, seed=7), units(2 * PANEL, dims, seed=8)
    few, keys = (np.empty((count, words(dims)), np.int32) for count in (2 * AT_ONCE, 2 * PANEL))
    rounded(vectors, inverses, few)
    rounded(others, of_others, keys)
    panels = np.empty(panels_shape(*keys.shape), np.int32)
    packed(keys, panels)
    start = np.random.default_rng(9).integers(-(2**29), 0, 2 * PANEL).astype(np.int32)
    values = start + few.view(np.int16).astype(np.int64) @ keys.view(np.int16).T.astype(np.int64)
    for first in (0, AT_ONCE):
        for panel in (0, 1):
            highest = values[first : first + AT_ONCE, panel * PANEL : (panel + 1) * PANEL].max(1)
            cuts = np.full(2 * AT_ONCE, 2**31 - 1, np.int32)
            cuts[first : first + AT_ONCE] = highest
            assert not integers_above(few, first, panels, panel, start, cuts)
            for row in range(AT_ONCE):
                cuts[first + row] -= 1
                assert integers_above(few, first, panels, panel, start, cuts)
                cuts[first + row] += 1


def test_integers_on_a_processor_without_an_instruction_for_them() -> None:
    plain = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "above_its_cut", __file__]
    run = subprocess.run(command, env=os.environ | plain, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout


@pytest.mark.parametrize("dims", [1, 7, 8, 19, 64])
@pytest.mark.parametrize("count", [1, 5, 6, 11])
@pytest.mark.parametrize("step", [1, 3])
def test_averages_of_evenly_spaced_rows(dims: int, count: int, step: int) -> None:
    random = np.random.default_rng(5)
    vectors = random.normal(size=(23, dims))
    weights = random.random((2 + step * count, 23))
    rows = 1 + step * np.arange(count)
    ends = np.minimum(23, 9 + np.arange(count))
    for row, end in zip(rows, ends, strict=True):
        weights[row, end:] = 0
    out = np.full((count, dims), np.nan)
    averages(weights, rows, ends, vectors, np.empty((AT_ONCE, 23)), np.empty((AT_ONCE, dims)), out)
    assert np.allclose(out, weights[rows] @ vectors, rtol=1e-13, atol=1e-13)
