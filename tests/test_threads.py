"""Work that is shared out: every piece once; errors, forks, threads of the caller; the process is left as it was."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import attnscope
from attnscope._process import parallel_for


@pytest.fixture
def two_threads() -> Iterator[None]:
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def test_every_piece_is_done_once_on_two_threads(two_threads: None) -> None:
    meet = threading.Barrier(2, timeout=30)
    done: list[tuple[int, int]] = []

    def work(piece: int) -> None:
        if piece < 2:  # both threads have one of these, or neither goes on
            meet.wait()
        done.append((piece, threading.get_ident()))

    parallel_for(work, range(50))
    assert Counter(piece for piece, _ in done) == Counter(range(50))
    assert len({thread for _, thread in done}) == 2


def test_torch_in_a_piece_runs_on_its_thread_alone_and_has_no_gradient(two_threads: None) -> None:
    weight = torch.randn(300, 300, requires_grad=True)
    results = [torch.empty(0)] * 6

    def work(piece: int) -> None:
        results[piece] = weight @ weight + piece
        threads.add(torch.get_num_threads())

    threads: set[int] = set()
    parallel_for(work, range(6))
    assert threads == {1}
    expected = (weight @ weight).detach()
    for piece, result in enumerate(results):
        assert not result.requires_grad
        torch.testing.assert_close(result, expected + piece)
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("error", [ValueError("piece 3"), KeyboardInterrupt()])
def test_an_error_ends_all_and_is_raised(two_threads: None, error: BaseException) -> None:
    started: list[int] = []

    def work(piece: int) -> None:
        started.append(piece)
        if piece == 3:
            raise error

    with pytest.raises(type(error)) as caught:
        parallel_for(work, range(10_000))
    assert caught.value is error
    assert len(started) < 10_000
    parallel_for(started.append, [-1, -2])
    assert {-1, -2} <= set(started)


def test_nothing_and_one_piece(two_threads: None) -> None:
    done: list[int] = []
    parallel_for(done.append, [])
    parallel_for(done.append, [7])
    assert done == [7]


def test_threads_of_the_caller_may_share_out_at_once(two_threads: None) -> None:
    def one(offset: int) -> int:
        found: list[int] = []
        parallel_for(found.append, range(offset, offset + 40))
        return sum(found) - 40 * offset

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(one, range(12))) == [sum(range(40))] * 12


FORK = """
import os, signal, torch
from attnscope._process import parallel_for
torch.set_num_threads(2)
parallel_for(lambda piece: None, range(8))
child = os.fork()
if child == 0:
    signal.alarm(20)
    done = []
    parallel_for(done.append, range(8))
    os._exit(0 if sorted(done) == list(range(8)) else 1)
_, status = os.waitpid(child, 0)
done = []
parallel_for(done.append, range(8))
raise SystemExit(os.waitstatus_to_exitcode(status) or len(done) != 8)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_and_its_parent_go_on() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


UNTOUCHED = """
import os, resource, signal, sys, threading, warnings
import accelerate, altair, numba, polars, torch, transformers.modeling_utils  # what they do to the process is theirs
torch.set_num_threads(2)
torch.ones(1000, 1000).mul(2)
def state():
    return {
        "environment": dict(os.environ),
        "warnings": list(warnings.filters),
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "threads of torch": torch.get_num_threads(),
        "gradients": torch.is_grad_enabled(),
        "default type": torch.get_default_dtype(),
        "random state": torch.random.get_rng_state().tolist(),
        "excepthook": (sys.excepthook, threading.excepthook),
        "limits": resource.getrlimit(resource.RLIMIT_NOFILE),
        "verbosity": transformers.utils.logging.get_verbosity(),
    }
before = state()
import attnscope
hooks = []
os.register_at_fork = lambda **given: hooks.append(given)
result = attnscope.scan(length=64, top_n=[5], bounds="paper")
after = state()
changed = [name for name in before if before[name] != after[name]]
ours = [given for given in hooks if any("attnscope" in hook.__module__ for hook in given.values())]
raise SystemExit(f"changed: {changed}, fork hooks: {ours}" if changed or ours else 0)
"""


def test_a_scan_leaves_the_state_of_the_process_alone() -> None:
    """Fault 35."""
    done = subprocess.run([sys.executable, "-c", UNTOUCHED], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_no_module_touches_the_c_library_or_the_code_generator() -> None:
    """What a library call must not need: ctypes, llvmlite, fork hooks, addresses of arrays."""
    package = Path(attnscope.__file__).parent
    banned = re.compile(
        r"ctypes|llvmlite|mallopt|register_at_fork|PyGILState|data_ptr\(\) *[+-]|simplefilter|filterwarnings"
    )
    found = {str(path.relative_to(package)) for path in package.rglob("*.py") if banned.search(path.read_text("utf-8"))}
    assert found == set()
