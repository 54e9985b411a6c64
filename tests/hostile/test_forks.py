"""A forked child scans, or is told at once why it cannot. Fault 28."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# One process tells all: starting one takes longer than what it does.
FORKS = """
import os, signal, sys
import attnscope.scanning, attnscope._process, polars, torch
attnscope._process._PATIENCE = 1.0
torch.set_num_threads(2)
torch.ones(3000, 3000).mul(2)
torch.ones(900, 900) @ torch.ones(900, 900)

def answer(name, work):
    signal.alarm(50)  # a child that waits for ever is killed
    try:
        print(name, work(), torch.get_num_threads(), flush=True)
    except attnscope.AttnscopeError as error:
        print(name, error, flush=True)

def fork(work):
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

def scan():
    return attnscope.scan(length=32, lengths=[32], top_n=[5]).rows.height

def use_polars_and_fork():
    polars.select(polars.repeat(1, 5))
    fork(lambda: answer("polars", scan))

class Scans(torch.utils.data.Dataset):
    def __len__(self):
        return 1
    def __getitem__(self, index):
        answer("worker", scan)
        return 0

def work_of_a_loader():
    list(torch.utils.data.DataLoader(Scans(), num_workers=1, multiprocessing_context="fork"))

fork(lambda: answer("never", scan))
fork(use_polars_and_fork)
work_of_a_loader()
folder = sys.argv[1]
attnscope.scan(length=32, lengths=[32], top_n=[5]).save(folder)
fork(lambda: answer("child", scan))
fork(lambda: answer("reader", lambda: attnscope.ScanResult.load(folder)))
work_of_a_loader()
answer("parent", scan)
"""


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_scans_or_is_told_to_use_spawn(tmp_path: Path) -> None:
    """Children of a process that used torch but never scanned do; where polars' threads are lost they are told."""
    command = [sys.executable, "-W", "ignore", "-c", FORKS, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    heads = 36
    lines = [line.replace(*SPAWN) if "spawn" in line else line for line in done.stdout.splitlines()]
    assert lines == [
        f"never {heads} 2",
        "polars is told",
        f"worker {heads} 1",  # DataLoader gives its workers one thread
        "child is told",
        "reader is told",
        "worker is told",
        f"parent {heads} 2",
    ]


SPAWN = (
    "attnscope or polars was used before this process was forked, and their threads were not copied; start the "
    "process with the 'spawn' method, e.g. multiprocessing_context='spawn' of a DataLoader",
    "is told",
)
