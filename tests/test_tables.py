"""Run folders: written whole or not at all, and read with a clear answer."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from attnscope import tables
from attnscope.errors import OutputError

RUN = {"schema": tables.SCHEMA_VERSION}


def save(folder: Path) -> None:
    with tables.output_folder(folder):
        rows, topn = pl.DataFrame(schema=tables.ROWS), pl.DataFrame(schema=tables.TOPN)
        tables.save_run(folder, {"rows": rows, "topn": topn}, RUN)


def test_a_failed_run_leaves_no_new_folder(tmp_path: Path) -> None:
    with pytest.raises(KeyError), tables.output_folder(tmp_path / "a" / "b"):
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_a_failed_run_leaves_an_older_one_alone(tmp_path: Path) -> None:
    save(tmp_path / "run")
    with pytest.raises(KeyError), tables.output_folder(tmp_path / "run"):
        raise KeyError
    assert tables.load_run(tmp_path / "run")[2] == RUN


def test_a_file_that_fails_half_way_is_not_there(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.write_text("half")
        raise OSError(28, "No space left on device")

    (tmp_path / "rows.parquet").write_text("older")
    with pytest.raises(OutputError, match="No space left"):
        tables.write_all(tmp_path, {"topn.parquet": lambda path: path.write_text("new"), "rows.parquet": fail})
    assert [path.name for path in tmp_path.iterdir()] == ["rows.parquet"]
    assert (tmp_path / "rows.parquet").read_text() == "older"


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


def test_a_name_too_long_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="too long"), tables.output_folder(tmp_path / "new" / ("x" * 300)):
        pass
    assert list(tmp_path.iterdir()) == []


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
