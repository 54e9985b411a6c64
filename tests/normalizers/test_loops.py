"""How the compiled loops run: threads, forks, large results, read-only folders, and what they say."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from attnscope import normalizers as nz
from attnscope.normalizers import _kernels, _loops


def logits(rows: int, length: int) -> torch.Tensor:
    return torch.randn(rows, length, generator=torch.Generator().manual_seed(31))


@pytest.mark.parametrize("name", ["softmax", "topk", "sparsemax", "entmax15", "sigmoid"])
def test_any_number_of_threads_gives_the_same_bits(name: str) -> None:
    z = logits(701, 131)  # large enough to be shared out
    normalizer = nz.get(name)
    alone = normalizer(z)
    try:
        for threads in (2, 3, 7):
            torch.set_num_threads(threads)
            assert torch.equal(normalizer(z), alone)
    finally:
        torch.set_num_threads(1)


def test_many_threads_may_call_at_once() -> None:
    z = logits(701, 131)
    want = nz.entmax15(z)
    try:
        torch.set_num_threads(2)
        with ThreadPoolExecutor(8) as pool:
            for weights in pool.map(nz.entmax15, [z] * 24):
                assert torch.equal(weights, want)
    finally:
        torch.set_num_threads(1)


def test_a_large_result_is_an_ordinary_tensor() -> None:
    z = logits(8209, 1031)  # above 32 MiB
    weights = nz.sparsemax(z)
    assert weights.is_contiguous()
    assert float((weights.double().sum(-1) - 1).abs().max()) < 1e-5


FORK = """
import os, torch
from attnscope import normalizers as nz
torch.set_num_threads(2)
z = torch.randn(701, 131)
want = nz.sparsemax(z)
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(nz.sparsemax(z), want) else 1)
_, status = os.waitpid(child, 0)
raise SystemExit(os.waitstatus_to_exitcode(status))
"""


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=os.environ | environment
    )


def test_a_forked_child_starts_threads_of_its_own() -> None:
    done = run_python(FORK)
    assert done.returncode == 0, done.stderr


def test_without_a_folder_to_cache_in_the_loops_still_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = _kernels.njit

    def refuse(*, cache: bool = False, **options: object) -> object:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return plain(**options)

    monkeypatch.setattr(_kernels, "njit", refuse)

    @_kernels.compiled
    def double(x: float) -> float:
        return 2 * x

    assert double(1.5) == 3.0


def test_a_compilation_is_announced_only_when_it_takes_long(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_loops, "_NOTICE_AFTER", 0.05)
    monkeypatch.setattr(_loops, "_ready", set())

    def slow(*_: object) -> None:
        time.sleep(0.3)

    def quick(*_: object) -> None:
        return

    z = torch.zeros(1, 3)
    _loops.run(quick, z)
    assert capfd.readouterr().err == ""
    _loops.run(slow, z)
    assert capfd.readouterr().err == "attnscope: compiling the slow loop for torch.float32 (once; kept on disk)\n"
    _loops.run(slow, z)
    assert capfd.readouterr().err == ""
    assert not any(isinstance(t, threading.Timer) and t.is_alive() for t in threading.enumerate())


def test_importing_the_package_loads_neither_torch_nor_numba() -> None:
    done = run_python("import attnscope, sys; raise SystemExit({'torch', 'numba'} & set(sys.modules) != set())")
    assert done.returncode == 0
