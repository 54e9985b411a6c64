"""Folders that runs are written to: one process at a time, and each file whole or not at all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from attnscope.errors import OutputError
from attnscope.store.folders import output_folder, write_all


def test_a_failed_run_leaves_no_new_folder(tmp_path: Path) -> None:
    with pytest.raises(KeyError), output_folder(tmp_path / "a" / "b"):
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_fails_half_way_is_not_there(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.write_text("half")
        raise OSError(28, "No space left on device")

    (tmp_path / "rows.parquet").write_text("older")
    with pytest.raises(OutputError, match="No space left"):
        write_all(tmp_path, {"topn.parquet": lambda path: path.write_text("new"), "rows.parquet": fail})
    assert [path.name for path in tmp_path.iterdir()] == ["rows.parquet"]
    assert (tmp_path / "rows.parquet").read_text() == "older"


def test_a_name_too_long_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="too long"), output_folder(tmp_path / "new" / ("x" * 300)):
        pass
    assert list(tmp_path.iterdir()) == []


def test_two_processes_do_not_share_a_folder(tmp_path: Path) -> None:
    """Fault 19."""
    holder = (
        "import sys, pathlib\nfrom attnscope.store.folders import output_folder\n"
        f"with output_folder(pathlib.Path({str(tmp_path / 'run')!r})):\n"
        "    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout
        assert other.stdout.readline() == "held\n"
        with pytest.raises(OutputError, match="another attnscope process"), output_folder(tmp_path / "run"):
            pass
        other.communicate("")
    with output_folder(tmp_path / "run"):
        pass
