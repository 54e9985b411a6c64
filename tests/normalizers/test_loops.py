"""How the compiled loops run: threads, forks, large results, read-only folders, and what they say."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from attnscope import _numerics, normalizers as nz
from attnscope.show.command import NOTICE


def logits(rows: int, length: int) -> torch.Tensor:
    return torch.randn(rows, length, generator=torch.Generator().manual_seed(31))


@pytest.mark.parametrize("name", ["softmax", "topk", "sparsemax", "entmax15", "sigmoid", "sa_softmax"])
def test_any_number_of_threads_gives_the_same_bits(name: str) -> None:
    """Fault 15."""
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
from attnscope import _numerics
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
    def refuse(function: object) -> object:
        raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.setattr(_numerics, "_SourceCache", refuse)

    @_numerics.loop
    def double(x: float) -> float:
        return 2 * x

    assert double(1.5) == 3.0


def test_compiling_is_announced_once_when_the_cache_is_cold_and_never_when_it_is_warm(tmp_path: Path) -> None:
    """Two loops, in two processes that share a cache."""
    (tmp_path / "loops.py").write_text(
        "from attnscope._numerics import loop\n\n\n"
        "@loop\ndef double(x):\n    return 2 * x\n\n\n"
        "@loop\ndef triple(x):\n    return 3 * x\n"
    )
    code = (
        "from attnscope.show.command import compile_notice\n"
        "from loops import double, triple\n"
        "with compile_notice(0.0):\n"
        "    assert double(1.5) == 3.0 and triple(1.5) == 4.5\n"
    )
    environment = {
        "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
    }
    cold, warm = (run_python(code, **environment) for _ in range(2))
    assert (cold.returncode, warm.returncode) == (0, 0), cold.stderr + warm.stderr
    assert cold.stderr == f"{NOTICE}\n"
    assert warm.stderr == ""


LOOPS = {
    "__init__.py": "",
    "constants.py": "FACTOR = 2.0\n",
    "helpers.py": "from attnscope._numerics import helper\nfrom attnscope import constants\n"
    "@helper\ndef scaled(x):\n    return constants.FACTOR * x\n",
    "loops.py": "from attnscope._numerics import loop\nfrom attnscope.helpers import scaled\n"
    "@loop\ndef first(pair):\n    return scaled(pair.first)\n",
    "pairs.py": "from collections import namedtuple\nPair = namedtuple('Pair', 'first second')\n",
}
CALL = """
from attnscope import loops, pairs
print(loops.first(pairs.Pair(1.0, 10.0)), sum(loops.first.stats.cache_hits.values()))
"""


@pytest.fixture
def small_package(tmp_path: Path) -> Path:
    """A package of the same name with one loop, a helper, a constant and a named tuple, each in a file of its own."""
    package = tmp_path / "attnscope"
    package.mkdir()
    shutil.copy(_numerics.__file__, package)
    for name, content in LOOPS.items():
        (package / name).write_text(content)
    return package


def called(package: Path) -> list[float]:
    """What the loop gives in a new process, and how many times it came from the cache."""
    environment = {"PYTHONPATH": str(package.parent), "NUMBA_CACHE_DIR": str(package.parent / "cache")}
    done = run_python(CALL, **environment, PYTHONDONTWRITEBYTECODE="1")
    assert done.returncode == 0, done.stderr
    return [float(word) for word in done.stdout.split()]


def replace_keeping_time_and_size(file: Path, old: str, new: str) -> None:
    """As a checkout or an image with fixed times does."""
    state = file.stat()
    file.write_text(file.read_text().replace(old, new))
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert file.stat().st_size == state.st_size


def test_no_change_of_source_leaves_old_machine_code_in_use(small_package: Path) -> None:
    """A constant two imports away, and the order of a named tuple's fields in a file that the loop does not import."""
    assert called(small_package) == [2.0, 0]
    assert called(small_package) == [2.0, 1]
    replace_keeping_time_and_size(small_package / "constants.py", "2.0", "3.0")
    assert called(small_package) == [3.0, 0]
    replace_keeping_time_and_size(small_package / "pairs.py", "first second", "second first")
    assert called(small_package) == [30.0, 0]
    assert called(small_package) == [30.0, 1]


def test_an_index_without_its_data_does_not_bring_older_data_back(small_package: Path) -> None:
    """As a process leaves it that is killed, or finds the disk full, between writing the one and the other."""
    cache = small_package.parent / "cache"
    assert called(small_package) == [2.0, 0]
    older = {path: path.read_bytes() for path in cache.rglob("*.nbc")}
    replace_keeping_time_and_size(small_package / "constants.py", "2.0", "3.0")
    assert called(small_package) == [3.0, 0]
    for path in cache.rglob("*.nbc"):
        path.unlink()
    for path, data in older.items():
        path.write_bytes(data)
    assert called(small_package) == [3.0, 0]


MASKED = """
import hashlib, torch
from attnscope.normalizers import Softmax
generator = torch.Generator().manual_seed(7)
z = 4 * torch.randn(21, 257, generator=generator, dtype=torch.float64)
weights = Softmax().weights(z, torch.rand(21, 257, generator=generator) < 0.8)
print(hashlib.sha256(weights.numpy().tobytes()).hexdigest())
"""


def test_the_process_that_compiles_and_the_next_one_get_the_same_bits(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    outputs = [
        subprocess.run([sys.executable, "-c", MASKED], env=environment, capture_output=True, check=True).stdout
        for _ in range(2)
    ]
    assert outputs[0] == outputs[1]
    assert list(tmp_path.rglob("*.nbc"))  # the second one read it


def test_a_cache_on_a_full_disk_costs_only_time(monkeypatch: pytest.MonkeyPatch) -> None:
    @_numerics.loop
    def double(x: float) -> float:
        return 2 * x

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(double._cache._cache_file, "_save_data", full)  # type: ignore[attr-defined]
    assert double(1.5) == 3.0


def test_no_other_module_calls_the_compiler() -> None:
    """What `loop` caches is covered because nothing is compiled in another way."""
    package = Path(nz.__file__).parents[1]
    calling = re.compile(r"import njit|numba\.(n?jit|vectorize)")
    found = [path.name for path in package.rglob("*.py") if calling.search(path.read_text("utf-8"))]
    assert found == ["_numerics.py"]


def test_importing_the_package_loads_neither_torch_nor_numba() -> None:
    done = run_python("import attnscope, sys; raise SystemExit({'torch', 'numba'} & set(sys.modules) != set())")
    assert done.returncode == 0


def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    """The package in a folder where nothing can be written, with no other place for the cache."""
    package = tmp_path / "site" / "attnscope"
    shutil.copytree(
        Path(nz.__file__).parents[1], package, ignore=shutil.ignore_patterns("__pycache__", "sample", "report")
    )
    (tmp_path / "no-folder").write_text("a file where the cache would go")
    code = (
        "import torch\nfrom attnscope.normalizers import sparsemax, _arguments\n"
        "rows = torch.tensor([[1.0, 0.8, -2.0]])\n"
        "assert _arguments.usable(rows)\n"
        "assert torch.allclose(sparsemax(rows), torch.tensor([[0.6, 0.4, 0.0]]))\n"
    )
    folders = [path for path in (package, *package.rglob("*")) if path.is_dir()]
    for folder in folders:
        folder.chmod(0o555)
    environment = os.environ | {
        "PYTHONPATH": str(tmp_path / "site"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(tmp_path / "no-folder"),
        "XDG_CACHE_HOME": str(tmp_path / "no-folder"),
        "NUMBA_CACHE_DIR": str(tmp_path / "no-folder" / "cache"),
    }
    try:
        answer = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
        )
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert answer.returncode == 0, answer.stderr


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler itself trips over several
def test_a_caller_compiled_by_inductor_gets_the_same_weights_and_gradients() -> None:
    def caller(logits: torch.Tensor) -> torch.Tensor:
        return (nz.sparsemax(2 * logits) * torch.arange(7.0)).sum() + nz.entmax15(logits).square().sum()

    plain, compiled = (torch.linspace(-1, 1, 35).view(5, 7).requires_grad_() for _ in range(2))
    expected = caller(plain)
    found = torch.compile(caller)(compiled)
    torch.testing.assert_close(found, expected)
    expected.backward()
    found.backward()
    torch.testing.assert_close(compiled.grad, plain.grad)
