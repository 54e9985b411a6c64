"""Work that is shared out: every piece once, on torch's threads or our own; errors, forks, threads of the caller."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from attnscope import _threads
from attnscope._threads import share_out
from attnscope.measure._memory import memory, release, scratch


@pytest.fixture(params=["openmp", "own pool"])
def two_threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "own pool":
        monkeypatch.setattr(_threads, "_openmp", lambda: None)
    elif _threads._openmp() is None:
        pytest.skip("torch has no OpenMP that can be called")
    torch.set_num_threads(2)
    yield request.param
    torch.set_num_threads(1)


def test_every_piece_is_done_once_on_two_threads(two_threads: str) -> None:
    meet = threading.Barrier(2, timeout=30)
    done: list[tuple[int, int]] = []

    def work(piece: int) -> None:
        if piece < 2:  # both threads have one of these, or neither goes on
            meet.wait()
        done.append((piece, threading.get_ident()))

    share_out(work, range(50))
    assert Counter(piece for piece, _ in done) == Counter(range(50))
    assert len({thread for _, thread in done}) == 2


def test_what_torch_is_asked_in_a_piece_runs_on_its_thread_and_has_no_gradient(two_threads: str) -> None:
    weight = torch.randn(300, 300, requires_grad=True)
    results = [torch.empty(0)] * 6

    def work(piece: int) -> None:
        results[piece] = weight @ weight + piece

    share_out(work, range(6))
    expected = (weight @ weight).detach()
    for piece, result in enumerate(results):
        assert not result.requires_grad
        torch.testing.assert_close(result, expected + piece)
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("error", [ValueError("piece 3"), KeyboardInterrupt()])
def test_an_error_ends_all_and_is_raised(two_threads: str, error: BaseException) -> None:
    started: list[int] = []

    def work(piece: int) -> None:
        started.append(piece)
        if piece == 3:
            raise error

    with pytest.raises(type(error)) as caught:
        share_out(work, range(10_000))
    assert caught.value is error
    assert len(started) < 10_000
    share_out(started.append, [-1, -2])
    assert {-1, -2} <= set(started)


def test_nothing_and_one_piece(two_threads: str) -> None:
    done: list[int] = []
    share_out(done.append, [])
    share_out(done.append, [7])
    assert done == [7]


def test_threads_of_the_caller_may_share_out_at_once(two_threads: str) -> None:
    def one(offset: int) -> int:
        found: list[int] = []
        share_out(found.append, range(offset, offset + 40))
        return sum(found) - 40 * offset

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(one, range(12))) == [sum(range(40))] * 12


FORK = """
import os, signal, torch
from attnscope._threads import share_out
torch.set_num_threads(2)
share_out(lambda piece: None, range(8))
child = os.fork()
if child == 0:
    signal.alarm(20)
    done = []
    share_out(done.append, range(8))
    large = torch.ones(1 << 20).mul(2).sum().item()  # torch's own threads work too
    os._exit(0 if sorted(done) == list(range(8)) and large == 1 << 21 else 1)
_, status = os.waitpid(child, 0)
done = []
share_out(done.append, range(8))
raise SystemExit(os.waitstatus_to_exitcode(status) or len(done) != 8)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_and_its_parent_go_on() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_thread_takes_its_memory_again_and_gives_it_back() -> None:
    release()
    first = scratch("a", (3, 5))
    first[:] = 1
    assert scratch("a", (2, 5)).base is first.base
    assert np.array_equal(scratch("a", (15,)), np.ones(15))
    assert scratch("a", (4, 5)).base is not first.base
    other: list[dict[str, object]] = []
    thread = threading.Thread(target=lambda: other.append(memory()))
    thread.start()
    thread.join()
    assert other == [{}]
    release()
    assert memory() == {}
