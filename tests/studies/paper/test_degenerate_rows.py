"""The protocol's means over rows where vectors or weights are degenerate, against the slow oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import protocol_oracle as oracle
import pytest
import torch
from models import build
from reproductions import collect

from attnscope.measure import Visibility
from attnscope.studies.paper import every_n as profiles, measuring
from attnscope.studies.paper.sets import COLUMNS, HeadRows, sum_sets

pytestmark = pytest.mark.pairwise

LENGTHS, SIZES = (5, 13), [[1, 2, 4], [1, 2, 4, 8]]
CLOSE = 2e-5
TIED = ("identical", "nearly identical", "in pairs", "some zero", "all zero")


def vectors_of(kind: str) -> Any:
    random = np.random.default_rng(7)
    x = random.standard_normal((13, 3))
    if kind == "identical":
        x[:] = x[0]
    elif kind == "nearly identical":
        x = x[0] + 1e-6 * x
    elif kind == "some zero":
        x[[0, 4, 7]] = 0
    elif kind == "all zero":
        x[:] = 0
    elif kind == "in pairs":
        x[1::2] = x[:-1:2]
    elif kind == "massive first":
        x[0] *= 1e4
    elif kind == "tiny":
        x *= 1e-20
    elif kind == "huge":
        x *= 1e20
    return x


def logits_of(kind: str) -> Any:
    z = np.random.default_rng(11).standard_normal((13, 13))
    if kind == "equal":
        z[:] = 0
    elif kind == "one-hot":
        z[:, 0] = 40
    elif kind == "underflow":
        z *= 400
    elif kind == "sharp":
        z *= 9
    return z


def head(vectors: str, logits: str, window: int = 13) -> tuple[HeadRows, torch.Tensor]:
    z = logits_of(logits)
    rows = np.arange(13)
    visible = (rows <= rows[:, None]) & (rows > rows[:, None] - window)
    shown = np.where(visible, z, -np.inf)
    powers = np.exp(shown - shown.max(-1, keepdims=True))
    weights = powers / powers.sum(-1, keepdims=True)
    x = torch.from_numpy(vectors_of(vectors))[None]
    tensors = (torch.from_numpy(array)[None] for array in (z, weights))
    return HeadRows(*tensors, Visibility(torch.from_numpy(visible)[None]), rows), x


CASES = [
    (vectors, logits, window)
    for vectors in ("plain", "identical", "nearly identical", "some zero", "all zero", "in pairs", "massive first")
    for logits in ("equal", "one-hot", "underflow", "sharp")
    for window in ((13, 4) if logits == "sharp" else (13,))
] + [("tiny", "sharp", 13), ("huge", "sharp", 13)]


@pytest.mark.parametrize(("vectors", "logits", "window"), CASES)
def test_every_n_of_degenerate_heads(vectors: str, logits: str, window: int) -> None:
    """Faults 12 and 13. Equal, zero, nearly equal and massive vectors; rows that are equal, one-hot or underflow."""
    rows, layer = head(vectors, logits, window)
    weights, visible, x = rows.weights[0].numpy(), rows.visibility.visible[0].numpy(), layer[0].numpy()
    sums = profiles.empty(LENGTHS)
    along = (rows.weights[0] @ layer[0] @ layer[0].mT).numpy()
    gram = (layer[0] @ layer[0].mT).numpy()
    order = np.argsort(-weights, axis=-1, kind="stable")
    profiles.add_rows(weights, visible, order, along, gram, rows.positions, np.array(LENGTHS), sums)
    means = profiles.averages(sums)
    size = max(np.linalg.norm(x, axis=-1).max(), 1e-300)
    for r, reading in enumerate(("literal", "visible")):
        for place, length in enumerate(LENGTHS):
            for n in range(1, length):
                block = weights[:length, :length], visible[:length, :length], x[:length]
                right = oracle.distance_columns(*block, n, reading)
                if not right["rows"]:
                    assert np.isnan(means[r, place, :, n - 1]).all()
                    continue
                expected = [right[name] for name in profiles.COLUMNS]
                # Where vectors cancel, rounding is relative to their lengths.
                assert means[r, place, :, n - 1] == pytest.approx(expected, rel=CLOSE, abs=3e-7 * size)


@pytest.mark.parametrize(("vectors", "logits", "window"), CASES)
def test_separability_of_degenerate_heads(vectors: str, logits: str, window: int) -> None:
    """Faults 12 and 13. Counts are exact, those of the closed ball but for tokens that are the same."""
    rows, layer = head(vectors, logits, window)
    weights, visible, x = rows.weights[0].numpy(), rows.visibility.visible[0].numpy(), layer[0].numpy()
    sums = sum_sets(rows, layer, LENGTHS, SIZES)
    names = list(COLUMNS)
    for r, reading in enumerate(("literal", "visible")):
        for place, length in enumerate(LENGTHS):
            for s, n in enumerate(SIZES[place]):
                right = oracle.separability_columns(
                    weights[:length, :length], visible[:length, :length], x[:length], n, reading
                )
                assert sums.rows[r, place, s] == right["rows"]
                for name in ("separability", "lower_printed", "upper_printed", "separability_closed"):
                    if not right["rows"] or (name == "separability_closed" and reading == "visible"):
                        continue
                    measured = sums.sums[r, place, names.index(name), s] / right["rows"]
                    if name == "separability_closed" and vectors in TIED:
                        assert measured <= right[name] + 1e-12
                        continue
                    assert measured == pytest.approx(right[name], rel=CLOSE, abs=1e-9), (reading, length, n, name)


def test_blocks_and_threads_do_not_change_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 15. Directions are drawn for each head, whatever the blocks."""
    options: dict[str, Any] = {"length": 37, "windows": 1, "vectors": ("value", "hidden")}
    module = build("llama-gqa")
    whole = collect(module, **options)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1 if threads > 1 else 2)
        alone = collect(module, **options)
    finally:
        torch.set_num_threads(threads)
    monkeypatch.setattr(measuring, "_MOST_ROWS", 5)
    parts = collect(module, **options)
    for name in (name for name in whole if name.startswith("protocol_")):
        assert alone[name].equals(whole[name]), name
        assert parts[name].columns == whole[name].columns
        for column, kind in whole[name].schema.items():
            if kind.is_float():
                right = pytest.approx(whole[name][column].to_numpy(), rel=1e-9, abs=1e-12, nan_ok=True)
                assert parts[name][column].to_numpy() == right
            else:
                assert parts[name][column].equals(whole[name][column])


def test_a_block_that_runs_out_of_memory_is_measured_again_in_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 16. No row is counted twice, and the directions are the same."""
    options: dict[str, Any] = {"length": 37, "windows": 1}
    module = build("gpt2")
    whole = collect(module, **options)
    add = measuring.add_responses

    def fail_on_many(logits: Any, *others: Any) -> None:
        if len(logits) > 20:
            raise MemoryError
        add(logits, *others)

    monkeypatch.setattr(measuring, "add_responses", fail_on_many)
    halved = collect(module, **options)
    for name, column in (("protocol_gradient", "g"), ("protocol_distance", "distance")):
        assert halved[name][column].to_numpy() == pytest.approx(whole[name][column].to_numpy(), rel=1e-9)
    assert halved["protocol_distance"]["rows"].equals(whole["protocol_distance"]["rows"])
