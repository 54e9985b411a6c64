"""A real Ray on this machine: the same tables as in this process, whoever is killed. Skipped without Ray."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import attnscope
from attnscope.store.manifest import Manifest

ray = pytest.importorskip("ray")

pytestmark = pytest.mark.filterwarnings("default")  # of Ray itself

TABLES = ("rows", "topn", "weights", "patterns")
OPTIONS: dict[str, Any] = {"length": 32, "windows": 24, "top_n": [1, 5], "progress": False}
COMMAND = [sys.executable, "-m", "attnscope.cli", "scan", "--length", "32", "--windows", "24", "--top-n", "1,5"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    attnscope.scan(out=folder, **OPTIONS)
    return folder


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """One small cluster for all tests; an engine that finds Ray in use starts none of its own."""
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


def assert_same(folder: Path, whole: Path) -> None:
    for name in TABLES:
        assert (folder / f"{name}.parquet").read_bytes() == (whole / f"{name}.parquet").read_bytes(), name


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("workers", [1, 2])
def test_workers_make_the_same_tables_to_the_byte(workers: int, tmp_path: Path, whole: Path) -> None:
    result = attnscope.scan(out=tmp_path, workers=workers, **OPTIONS)
    assert_same(tmp_path, whole)
    assert result.run["workers"]["count"] == workers
    assert result.run["blocks"]["failed"] == []


@pytest.mark.usefixtures("cluster")
def test_workers_killed_at_any_moment_leave_the_tables_as_they_are(
    tmp_path: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fault 34: kill -9 after every sixth window."""
    killed: list[int] = []

    def kill(step: attnscope.progress.Step) -> None:
        finished = step.done // (step.total // 24)
        if finished % 6 == 0 and finished < 24:
            processes = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True).stdout.splitlines()
            workers = [int(line.split()[0]) for line in processes if "ray::Worker" in line and _is_ours(line)]
            for worker in workers[:1]:
                os.kill(worker, signal.SIGKILL)
                killed.append(worker)

    result = attnscope.scan(out=tmp_path, workers=2, **OPTIONS | {"progress": kill})
    assert killed
    assert result.run["workers"]["deaths"] == len(killed)
    assert_same(tmp_path, whole)
    assert "died; its blocks are run again" in capsys.readouterr().err


def _is_ours(line: str) -> bool:
    """Whether a process was started by the cluster of this process: its raylet is a child of it."""
    parent = Path(f"/proc/{line.split()[0]}/stat").read_text().rsplit(")", 1)[1].split()[1]
    return Path(f"/proc/{parent}/stat").read_text().rsplit(")", 1)[1].split()[1] == str(os.getpid())


def test_a_driver_that_is_killed_goes_on_where_it_stopped(tmp_path: Path, whole: Path) -> None:
    """Fault 34: with workers, then without."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [*COMMAND, "--workers", "1", "--out", str(tmp_path)], env=environment, stderr=subprocess.DEVNULL
    ) as driver:
        while driver.poll() is None and not (tmp_path / ".parts" / "manifest.jsonl").exists():
            time.sleep(0.01)
        driver.kill()
    assert driver.returncode == -signal.SIGKILL, "it ended before it could be killed"
    manifest = Manifest.read(tmp_path / ".parts")
    assert manifest is not None
    finished = manifest.finished_windows
    assert 0 < finished < 24
    seen: set[int] = set()
    attnscope.scan(out=tmp_path, **OPTIONS | {"progress": lambda step: seen.add(step.window)})
    assert len(seen) == 24 - finished
    assert_same(tmp_path, whole)


@pytest.mark.usefixtures("cluster")
def test_a_model_and_a_corpus_that_workers_read_themselves(model_folder: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"text": f"{i}: {'A line of a poem. ' * i}"}) + "\n" for i in range(2, 12)))
    source = attnscope.capture.Corpus((str(corpus),))
    options: dict[str, Any] = {"length": 24, "windows": 7, "choose": "random", "seed": 3, "progress": False}
    here = attnscope.scan(model_folder, source, out=tmp_path / "here", **options)
    there = attnscope.scan(model_folder, source, out=tmp_path / "there", workers=2, **options)
    assert_same(tmp_path / "there", tmp_path / "here")
    assert here.run["text"] == there.run["text"]
