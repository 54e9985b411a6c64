"""The files of a run: replaced all or not at all, and read with a clear answer."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from attnscope.errors import OutputError
from attnscope.store import folders, tables

RUN = {"schema": tables.SCHEMA_VERSION}


def save(folder: Path) -> None:
    with folders.output_folder(folder):
        rows, topn = pl.DataFrame(schema=tables.ROWS), pl.DataFrame(schema=tables.TOPN)
        tables.save_run(folder, {"rows": rows, "topn": topn}, RUN)


def test_a_failed_run_leaves_an_older_one_alone(tmp_path: Path) -> None:
    save(tmp_path / "run")
    with pytest.raises(KeyError), folders.output_folder(tmp_path / "run"):
        raise KeyError
    assert tables.load_run(tmp_path / "run")[2] == RUN


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    """Fault 19."""
    (tmp_path / "notes.txt").write_text("mine")
    save(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_folder_in_the_way_leaves_the_older_run(tmp_path: Path) -> None:
    save(tmp_path)
    before = (tmp_path / "rows.parquet").stat().st_ino
    (tmp_path / "weights.parquet").mkdir()
    token_weights = tables.TokenWeights(pl.DataFrame(schema=tables.WEIGHTS), [], [])
    rows, topn = pl.DataFrame(schema=tables.ROWS), pl.DataFrame(schema=tables.TOPN)
    with pytest.raises(OutputError, match="in the way"):
        tables.save_run(tmp_path, {"rows": rows, "topn": topn}, RUN, token_weights)
    assert tables.load_run(tmp_path)[2] == RUN
    assert (tmp_path / "rows.parquet").stat().st_ino == before


@pytest.mark.parametrize("name", ["run.json", "rows.parquet", "topn.parquet"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "foreign"])
def test_a_damaged_run_is_refused(tmp_path: Path, name: str, damage: str) -> None:
    """Fault 19."""
    save(tmp_path)
    file = tmp_path / name
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:7] if damage == "truncated" else b"\x00foreign\xff")
    with pytest.raises(OutputError):
        tables.load_run(tmp_path)


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    """Fault 19."""
    save(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps({"schema": 99}))
    with pytest.raises(OutputError, match="newer attnscope"):
        tables.load_run(tmp_path)
