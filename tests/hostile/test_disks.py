"""Disks that are full, and what a killed process leaves on them: nothing lost, nothing left over."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from models import build

from attnscope.errors import OutputError
from attnscope.scanning import ScanResult, scan
from attnscope.store.folders import write_all

FULL = """
import sys
from pathlib import Path
import torch
from models import build, byte_tokenizer
from attnscope.errors import OutputError
from attnscope.scanning import ScanResult, scan
out, text = Path(sys.argv[1]) / "run", "The quick brown fox jumps over the lazy dog. " * 99
first = scan(build("gpt2"), text, tokenizer=byte_tokenizer(), length=16, top_n=[3], out=out)
files = {path.name: path.read_bytes() for path in out.iterdir()}
try:
    with open(out.parent / "filler", "wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))
except OSError:
    pass
for windows in (1, 4):
    try:
        scan(build("gpt2"), text, tokenizer=byte_tokenizer(), length=64, rows="all", windows=windows, out=out)
        print("written")
    except OutputError as error:
        print(error)
assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == files
assert ScanResult.load(out).rows.equals(first.rows)
"""


def test_a_full_disk_is_one_line_and_an_older_run_stays_as_it_was(tmp_path: Path) -> None:
    """Fault 19: a real one, of 2 MB, in a mount namespace of its own; in the folder of parts, and for the tables."""
    alone = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    mount = f"mount -t tmpfs -o size=2m none '{tmp_path}'"
    if not shutil.which("unshare") or subprocess.run([*alone, mount], capture_output=True).returncode:
        pytest.skip("no small disk can be mounted here")
    support = str(Path(__file__).parent.parent / "support")
    code = f"import sys; sys.path.append({support!r})\n{FULL}"
    command = f'{mount} && exec "$0" "$@"'
    done = subprocess.run(
        [*alone, command, sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    for line, folder in zip(lines, ("run", "run/.parts"), strict=True):
        assert line == f"cannot write to '{tmp_path}/{folder}': No space left on device"


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_table_that_cannot_be_written_is_one_line_and_loses_nothing(
    tmp_path: Path, tokenizer: Any, text: str
) -> None:
    """Fault 19: the system refuses files of more than 20 KB."""
    options: dict[str, Any] = {"tokenizer": tokenizer, "length": 64, "windows": 3, "top_n": [1, 5], "out": tmp_path}
    first = scan(build("gpt2"), text, **options)
    with largest_file(20_000), pytest.raises(OutputError, match=r"cannot write to .*: File too large$"):
        scan(build("gpt2"), text, rows="all", **options)
    assert ScanResult.load(tmp_path).rows.equals(first.rows)
    assert not list(tmp_path.glob(".*"))


KILLED = """
import os, pathlib, sys
from attnscope.store.folders import write_all
die = lambda path: (path.write_text("half"), os.kill(os.getpid(), 9))
write_all(pathlib.Path(sys.argv[1]), {"rows.parquet": die})
"""


def test_files_that_a_killed_process_left_half_written_are_removed(tmp_path: Path, tokenizer: Any, text: str) -> None:
    """Fault 18: killed inside `write_all`, in the folder of the run and in that of its parts."""
    for folder in (tmp_path, tmp_path / ".parts"):
        done = subprocess.run([sys.executable, "-c", KILLED, str(folder)], timeout=60)
        assert done.returncode == -9
    assert len(list(tmp_path.rglob(".*rows*"))) == 2
    scan(build("gpt2"), text, tokenizer=tokenizer, length=16, windows=2, top_n=[3], out=tmp_path)
    assert not list(tmp_path.rglob(".*"))


def test_a_folder_is_made_for_what_is_written_and_a_file_in_its_place_is_one_line(tmp_path: Path) -> None:
    record = json.dumps({})
    write_all(tmp_path / "new" / "folder", {"a.json": lambda path: path.write_text(record)})
    assert (tmp_path / "new" / "folder" / "a.json").read_text() == record
    with pytest.raises(OutputError, match=r"cannot write to .*a.json': File exists"):
        write_all(tmp_path / "new" / "folder" / "a.json", {"b.json": lambda path: path.write_text(record)})
