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
from attnscope.measure._kernels_panels import (
    INTEGER_ONE,
    distance_words,
    integer_error,
    pack,
    panels_shape,
    panels_to_distances,
    panels_to_integers,
    to_distances,
    to_integers,
    words,
)
from attnscope.measure._kernels_products import (
    AT_ONCE,
    FEWEST,
    average,
    keep_most,
    multiply,
    next_above,
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
def packed(vectors: Any, shifts: Any, factors: Any, panels: Any) -> None:
    pack(vectors, shifts, factors, panels)


@njit
def products(few: Any, count: Any, panels: Any, begin: Any, end: Any, out: Any) -> None:
    multiply(few, count, panels, begin, end, out)


@njit
def most(few: Any, count: Any, start: Any, panels: Any, begin: Any, end: Any, best: Any) -> None:
    keep_most(few, count, start, panels, begin, end, best)


@njit
def next_panel(integers: Any, panels: Any, begin: Any, end: Any, cut: Any) -> int:
    return next_above(integers, panels, begin, end, cut)


@njit
def rounded(vectors: Any, out: Any) -> None:
    for row in range(vectors.shape[0]):
        to_integers(vectors[row], np.float32(1), out[row])


@njit
def rounded_panels(panels: Any, out: Any) -> None:
    panels_to_integers(panels, np.float32(1), out)


@njit
def distances(vectors: Any, panels: Any, squares: Any, by: Any, out: Any, out_panels: Any) -> None:
    for row in range(vectors.shape[0]):
        to_distances(-vectors[row], squares[row], by, out[row])
    panels_to_distances(panels, squares, by, out_panels)


@njit
def error_of_distances(dims: Any) -> float:
    return integer_error(dims + 2, 1.5)


@njit
def error_of_integers(dims: Any) -> float:
    return integer_error(dims, 1.0)


@njit
def averages(weights: Any, rows: Any, ends: Any, vectors: Any, few: Any, sums: Any, out: Any) -> None:
    average(weights, rows, ends, vectors, few, sums, out)


def group(keys: int, dims: int, seed: int = 0) -> tuple[Any, Any]:
    vectors = np.random.default_rng(seed).normal(size=(keys, dims)).astype(np.float32)
    return vectors, panels_of(vectors, np.zeros(dims), np.ones(keys))


def panels_of(vectors: Any, shifts: Any, factors: Any) -> Any:
    panels = np.full(panels_shape(*vectors.shape), np.nan, np.float32)
    packed(vectors.astype(np.float64), shifts, factors, panels)
    return panels


def unpacked(panels: Any, dims: int) -> Any:
    """The vectors of all places, (places, dims)."""
    return panels.reshape(len(panels), dims, PANEL).transpose(0, 2, 1).reshape(-1, dims)


@pytest.mark.parametrize("keys", [1, 7, 8, 16, 31, 40])
@pytest.mark.parametrize("dims", [1, 7, 8, 17, 64])
def test_panels_hold_the_vectors_and_zeros_behind_them(keys: int, dims: int) -> None:
    random = np.random.default_rng(10)
    vectors, shifts, factors = random.normal(size=(keys, dims)), random.normal(size=dims), random.normal(size=keys)
    found = unpacked(panels_of(vectors, shifts, factors), dims)
    assert (found[:keys] == ((vectors - shifts) * factors[:, None]).astype(np.float32)).all()
    assert (found[keys:] == 0).all()


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


def units(count: int, dims: int, seed: int) -> Any:
    """Vectors of length 1 in float32, the last two along an axis."""
    vectors = np.random.default_rng(seed).normal(size=(count, dims))
    vectors[-2:] = 0
    vectors[-2:, 0] = 3.0, -3.0
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def integers_of(vectors: Any) -> Any:
    found = np.full((len(vectors), words(vectors.shape[1])), -1, np.int32)
    rounded(vectors, found)
    return found


def integer_panels_of(vectors: Any) -> Any:
    keys, dims = vectors.shape
    found = np.full(panels_shape(keys, words(dims)), -1, np.int32)
    rounded_panels(panels_of(vectors, np.zeros(dims), np.ones(keys)), found)
    return found


@pytest.mark.parametrize("dims", [1, 2, 7, 64, 129])
def test_integers_are_within_their_bound(dims: int) -> None:
    exact = units(2 * PANEL, dims, seed=6)
    integers = integers_of(exact).view(np.int16).astype(np.int64)
    exact = exact.astype(np.float64)
    assert (np.abs(integers[:, :dims] - exact * INTEGER_ONE) <= 0.52).all()
    assert (integers[:, dims:] == 0).all()
    off = np.abs(integers @ integers.T - exact @ exact.T * INTEGER_ONE**2)
    assert off.max() <= error_of_integers(dims)


@pytest.mark.parametrize("size", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize("keys", [1, 16, 33])
@pytest.mark.parametrize("dims", [1, 2, 7, 64, 129])
def test_integers_tell_half_the_squared_distance(keys: int, dims: int, size: float) -> None:
    """Of vectors of very different lengths, among them the longest and its opposite."""
    random = np.random.default_rng(12)
    vectors = random.normal(size=(keys, dims)) * 10.0 ** -random.integers(0, 4, size=(keys, 1))
    vectors[-1] = -vectors[0]
    vectors = (vectors / np.linalg.norm(vectors, axis=1).max() * size).astype(np.float32)
    squares = (vectors.astype(np.float64) ** 2).sum(1).astype(np.float32)
    by = np.float32(0.98 / np.sqrt(np.float64(squares.max())))
    rows, panels = (
        np.full((keys, distance_words(dims)), -1, np.int32),
        panels_of(vectors, np.zeros(dims), np.ones(keys)),
    )
    others = np.full(panels_shape(keys, distance_words(dims)), -1, np.int32)
    distances(vectors, panels, squares, by, rows, others)
    of_rows, of_keys = (
        part.view(np.int16).astype(np.int64) for part in (rows, unpacked(others, rows.shape[1])[:keys].copy())
    )
    found = of_rows @ of_keys.T
    gaps2 = ((vectors[:, None].astype(np.float64) - vectors[None]) ** 2).sum(-1)
    expected = gaps2 / 2 * np.float64(by) ** 2 * INTEGER_ONE**2
    assert np.abs(found - expected).max() <= error_of_distances(dims)
    assert found.max() < 2**31


@pytest.mark.parametrize("keys", [1, 15, 16, 33])
@pytest.mark.parametrize("dims", [1, 2, 7, 64, 129])
def test_panels_of_integers_hold_the_same_integers(keys: int, dims: int) -> None:
    vectors = units(max(keys, 2), dims, seed=11)[:keys]
    found = unpacked(integer_panels_of(vectors), words(dims))
    assert (found[:keys] == integers_of(vectors)).all()
    assert (found[keys:] == 0).all()


@pytest.mark.parametrize("dims", [1, 2, 7, 64, 129])
def test_the_next_panel_with_a_product_of_integers_above_the_cut(dims: int) -> None:
    vectors, others = units(AT_ONCE, dims, seed=7), units(5 * PANEL, dims, seed=8)
    few, panels = integers_of(vectors), integer_panels_of(others)
    values = few.view(np.int16).astype(np.int64) @ integers_of(others).view(np.int16).T.astype(np.int64)
    highest = values.reshape(AT_ONCE, 5, PANEL).max((0, 2))
    for begin, end in ((0, 5), (1, 4), (3, 3)):
        for cut in {*highest.tolist(), *(highest - 1).tolist(), 2**31 - 1, -(2**31)}:
            expected = next((panel for panel in range(begin, end) if highest[panel] > cut), end)
            assert next_panel(few, panels, begin, end, np.array([cut], np.int32)) == expected


def test_integers_on_a_processor_without_an_instruction_for_them() -> None:
    plain = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-k",
        "above or panels_of_integers",
        __file__,
    ]
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
