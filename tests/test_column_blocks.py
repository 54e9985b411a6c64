"""Tables from what was measured: which lines, in which order, and missing values."""

from __future__ import annotations

import numpy as np
import polars as pl

from attnscope.scanning.measuring import ColumnBlock, table
from attnscope.store import tables

ORDER = ("layer", "head", "position", "length", "normalizer")
HEADS = 2


def lines(layer: int, label: str, positions: tuple[int, ...], included: bool = True) -> ColumnBlock:
    """Rows whose entropy says where they belong; that of position 4 is missing."""
    head = np.arange(HEADS)[:, None]
    place = np.array(positions)
    shape = (HEADS, len(positions))
    columns = {name: np.zeros(shape) for name in tables.ROWS if name != "normalizer"} | {
        "window": np.array(0),
        "layer": np.full(shape, layer),
        "head": head,
        "position": place,
        "length": place + 1,
        "support": np.ones(shape, dtype=np.int64),
        "entropy": np.where(place == 4, np.nan, 100.0 * layer + 10 * head + place),
    }
    return ColumnBlock(layer, label, positions, columns, np.full(shape, included))


def check(found: pl.DataFrame, labels: int, layers: int, positions: list[int]) -> None:
    assert found.schema == tables.ROWS
    assert found.equals(found.sort(ORDER))
    assert len(found) == labels * layers * HEADS * len(positions)
    for row in found.iter_rows(named=True):
        expected = None if row["position"] == 4 else 100.0 * row["layer"] + 10 * row["head"] + row["position"]
        assert row["entropy"] == expected
        assert row["length"] == row["position"] + 1


def test_blocks_of_rows_come_out_by_head() -> None:
    parts = [lines(layer, "own", block) for layer in (0, 1) for block in ((0, 1, 2), (3, 4), (5,))]
    check(table(parts, tables.ROWS, ORDER), 1, 2, [0, 1, 2, 3, 4, 5])


def test_layers_and_positions_in_any_order() -> None:
    parts = [lines(layer, "own", block) for layer in (2, 0) for block in ((3, 4), (1, 2))]
    check(table(parts, tables.ROWS, ORDER), 1, 2, [1, 2, 3, 4])


def test_several_normalizers() -> None:
    own = [lines(0, "own", (0, 1)), lines(0, "own", (2,))]
    parts = [own[0], own[0].named("sparsemax"), own[1], own[1].named("sparsemax")]
    found = table(parts, tables.ROWS, ORDER)
    check(found, 2, 1, [0, 1, 2])
    assert found["normalizer"].to_list()[:2] == ["own", "sparsemax"]


def test_lines_that_are_not_included_and_no_lines_at_all() -> None:
    found = table([lines(0, "own", (0, 1), included=False), lines(1, "own", (2,))], tables.ROWS, ORDER)
    assert found["layer"].to_list() == [1, 1]
    assert table([], tables.ROWS, ORDER).schema == tables.ROWS
