"""Several processes that train one model (Faults 24 and 33)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
import torch
from training import batches, gpt2, loss_of

import attnscope

SUPPORT = Path(__file__).resolve().parent.parent / "support"
SIZE = 2
ALL = 10**6


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder of two processes that have done all of tests/support/ranks.py, and what each printed."""
    folder = tmp_path_factory.mktemp("ranks")
    paths = os.pathsep.join([str(SUPPORT), str(Path(attnscope.__file__).parent.parent)])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    commands = [[sys.executable, str(SUPPORT / "ranks.py"), str(rank), str(SIZE), str(folder)] for rank in range(SIZE)]
    processes = [
        subprocess.Popen(each, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for each in commands
    ]
    results = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0] * SIZE, "\n".join(error for _, error in results)
    return folder, [output for output, _ in results]


def in_one_process() -> pl.DataFrame:
    """The same two steps on the joined batches."""
    model = gpt2(dropout=0.0)
    monitor = attnscope.Monitor(model, every=1, rows=ALL, sequences=ALL)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for ids in batches(2, items=2 * SIZE):
        optimizer.zero_grad()
        loss_of(model, ids).backward()
        optimizer.step()
        monitor.step()
    return monitor.heads


def assert_alike(table: pl.DataFrame) -> None:
    expected = in_one_process()
    assert table.select("step", "layer", "head", "rows").equals(expected.select("step", "layer", "head", "rows"))
    for name in table.columns:
        if name != "null_random":  # other random sets
            assert table[name].to_list() == pytest.approx(expected[name].to_list(), rel=1e-4), name


Ranks = tuple[Path, list[str]]


def test_two_ranks_measure_what_one_process_does_on_the_joined_batch(ranks: Ranks) -> None:
    run = attnscope.monitor.load(ranks[0] / "data-parallel")
    assert_alike(run.heads)
    assert run.run["world_size"] == SIZE


def test_a_rank_that_measures_nothing_makes_all_skip_the_step(ranks: Ranks) -> None:
    assert ranks[1][0] == "step 1 was not measured: another rank measured nothing, or other heads\n"
    assert ranks[1][1].startswith("step 1 was not measured: no attention call was seen")


def test_fully_sharded_models_measure_what_one_process_does(ranks: Ranks) -> None:
    assert_alike(attnscope.monitor.load(ranks[0] / "fully-sharded").heads)
