"""How blocks are given to workers, with a Ray in this process: deaths, failures, workers that differ."""

from __future__ import annotations

import builtins
import sys
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_ray import FakeRay

import attnscope
from attnscope.capture.models import ModelSource
from attnscope.engine import chosen_workers, ray_engine
from attnscope.engine.blocks import Blocks, Failure, Workers, run_blocks
from attnscope.engine.ray_engine import DIED, RAISED, RayEngine, WorkerError
from attnscope.engine.run import WindowPlan
from attnscope.errors import InputError, ModelError
from attnscope.progress import Step

TOKENS = np.arange(33, dtype=np.int32).reshape(11, 3)


PLAN = WindowPlan({3: (2,)}, causal=True)


@dataclass(frozen=True)
class Counted:
    """Work that counts how often each block is run; no model is run."""

    plan: WindowPlan = PLAN
    raises: tuple[int, ...] = ()
    warns: bool = False

    def run(self, model: Any, block: Any) -> list[int]:
        RUNS[block.number] += 1
        if self.warns:
            warnings.warn("look out", UserWarning, stacklevel=1)
        if block.number in self.raises:
            raise ModelError(f"no attention in block {block.number}")
        return block.tokens[:, 0].tolist()


RUNS: Counter[int] = Counter()


@pytest.fixture(autouse=True)
def _counted() -> None:
    RUNS.clear()


def entered(ray: FakeRay, monkeypatch: pytest.MonkeyPatch, said: list[str] | None = None, **workers: Any) -> RayEngine:
    monkeypatch.setattr(ray_engine, "import_ray", lambda: ray)
    return RayEngine(ModelSource(), Workers(**{"count": 2} | workers), (said if said is not None else []).append)


def outcomes(engine: RayEngine, work: Any = None, steps: list[Step] | None = None) -> dict[int, Any]:
    blocks = Blocks(TOKENS, 2)
    return dict(run_blocks(engine, work or Counted(), blocks, progress=(steps if steps is not None else []).append))


EXPECTED = {number: TOKENS[2 * number : 2 * number + 2, 0].tolist() for number in range(6)}


@pytest.mark.parametrize("order", [-1, 1, 2])
def test_all_blocks_are_run_once_whatever_order_they_end_in(order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[Step] = []
    with entered(FakeRay(order=order), monkeypatch) as engine:
        assert outcomes(engine, steps=steps) == EXPECTED
    assert set(RUNS.values()) == {1}
    layers = attnscope.load_model().layers
    assert [step.done for step in steps] == sorted(step.done for step in steps)
    assert (steps[-1].done, steps[-1].total) == (11 * layers, 11 * layers)
    assert steps[-1].doing.startswith("block 6 of 6, ")
    assert "windows/s, 2 workers" in steps[-1].doing


def test_blocks_of_a_dead_worker_are_run_again_and_none_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 23: the worker dies while it runs its second block, with another one waiting."""
    died: list[int] = []

    def dies(actor: int, method: str, arguments: tuple[Any, ...]) -> bool:
        if method == "run" and actor == 0 and arguments[1].number == 2:
            died.append(actor)
            return True
        return False

    said: list[str] = []
    ray = FakeRay(dies)
    with entered(ray, monkeypatch, said) as engine:
        assert outcomes(engine) == EXPECTED
        assert engine.described["workers"]["deaths"] == 1
    assert died == [0]
    assert set(RUNS.values()) == {1}
    assert len(ray.actors) == 3  # a new one took its place
    assert [line for line in said if "died; its blocks are run again" in line]


def test_a_block_whose_workers_die_each_time_is_named_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 23: a block that takes more memory than there is."""
    ray = FakeRay(lambda actor, method, arguments: method == "run" and arguments[1].number == 3)
    with entered(ray, monkeypatch) as engine:
        found = outcomes(engine)
    failure = found.pop(3)
    assert isinstance(failure, Failure)
    assert failure.attempts == DIED
    assert "its workers died (RayError: the actor died unexpectedly)" in failure.reason
    assert found == {number: block for number, block in EXPECTED.items() if number != 3}


def test_a_block_that_raises_is_tried_again_and_keeps_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with entered(FakeRay(), monkeypatch) as engine:
        found = outcomes(engine, Counted(raises=(4,)))
    assert RUNS[4] == RAISED
    assert isinstance(found[4].error, ModelError)
    assert (found[4].reason, found[4].attempts) == ("ModelError: no attention in block 4", RAISED)
    assert {number: block for number, block in found.items() if number != 4} == {
        number: block for number, block in EXPECTED.items() if number != 4
    }


def test_an_exception_that_cannot_be_sent_is_told_in_words() -> None:
    class LocalError(Exception):
        pass

    sent = ray_engine._portable(LocalError("odd"))
    assert isinstance(sent, WorkerError)
    assert str(sent) == "LocalError: odd"


def test_a_worker_that_differs_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 23: it would make other tables."""
    from attnscope.engine import record

    calls = []
    original = record.model_identity

    def second_differs(*arguments: Any) -> dict[str, Any]:
        calls.append(arguments)
        return original(*arguments) | ({"torch": "0.1"} if len(calls) == 2 else {})

    monkeypatch.setattr(record, "model_identity", second_differs)
    said: list[str] = []
    with entered(FakeRay(), monkeypatch, said) as engine:
        assert outcomes(engine) == EXPECTED
        assert engine.described["workers"]["count"] == 1
    assert said == ["a worker is left out: InputError: its torch differ from those of the first worker"]


def test_another_version_of_attnscope_on_all_workers_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "__version__", "9.9")
    with pytest.raises(InputError, match=r"it runs attnscope 0\.\S+, and this process 9\.9"):
        entered(FakeRay(), monkeypatch).__enter__()


def test_a_model_that_no_worker_can_load_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "import_ray", lambda: FakeRay())
    with (
        pytest.raises(ModelError, match="no-such-model"),
        RayEngine(ModelSource("/no-such-model"), Workers(2), lambda _: None),
    ):
        pass


def test_workers_that_die_as_they_start_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WorkerError, match="workers die while they load the model"):
        entered(FakeRay(lambda actor, method, arguments: method == "load"), monkeypatch).__enter__()


def test_warnings_of_workers_are_said_once_with_the_name_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    with entered(FakeRay(), monkeypatch, said) as engine:
        outcomes(engine, Counted(warns=True))
    (line,) = [line for line in said if "look out" in line]
    assert line.startswith("worker ")
    assert line.endswith(": UserWarning: look out")


def test_a_function_is_called_on_a_worker_even_if_one_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay(lambda actor, method, arguments: method == "call" and actor == 0)
    with entered(ray, monkeypatch) as engine:
        assert engine.call(_name, "!") == "sample!"
    with (
        entered(FakeRay(lambda actor, method, _: method == "call"), monkeypatch) as engine,
        pytest.raises(WorkerError, match="3 workers died while they ran _name"),
    ):
        engine.call(_name, "!")


def _name(model: Any, report: Any, more: str) -> str:
    return str(model.name) + more


def test_ray_is_joined_by_address_or_started_and_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay(cpus=6)
    with entered(ray, monkeypatch, count=3, cpus=2) as engine:
        assert ray.inits[0]["address"] == "local"
        assert ray.inits[0]["num_cpus"] == 6
        assert (ray.options["num_cpus"], ray.options["max_restarts"]) == (2, 0)
        assert ray.options["runtime_env"]["env_vars"]["OMP_NUM_THREADS"] == "2"
        assert engine.described["workers"]["count"] == 3
    assert not ray.is_initialized()
    with entered(ray, monkeypatch, count=None, address="ray://host:10001") as engine:
        assert ray.inits[0]["address"] == "ray://host:10001"
        assert engine.described["workers"]["count"] == 6  # all that fit
    ray.init(address="mine")
    with entered(ray, monkeypatch):
        assert len(ray.inits) == 1
    assert ray.is_initialized()  # the caller's own
    with pytest.raises(InputError, match=r"no worker of 64 cores and 0 GPUs fits the cluster, which has 6 and 0"):
        entered(ray, monkeypatch, count=None, cpus=64).__enter__()


def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def without(name: str, *more: Any, **options: Any) -> Any:
        if name == "ray":
            raise ImportError
        return imported(name, *more, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r"need Ray, which is not installed; pip install 'attnscope\[ray\]'"):
        attnscope.scan(length=32, workers=2, progress=False)


def test_workers_take_descriptions_and_sensible_numbers(model_folder: Path) -> None:
    with pytest.raises(InputError, match="give the name or folder of a model, not an object"):
        attnscope.scan(attnscope.load_model(model_folder).module, "text", tokenizer=object(), workers=1)
    with pytest.raises(InputError, match="worker_cpus=2 is for workers; add workers or ray"):
        attnscope.scan(length=32, worker_cpus=2)
    for options, message in (({"count": 0}, "workers"), ({"cpus": 0}, "worker_cpus"), ({"gpus": -1}, "worker_gpus")):
        with pytest.raises(InputError, match=message):
            Workers(**options)
    assert chosen_workers(None, None, None, None) is None
    assert chosen_workers(None, "auto", 4, 0.5) == Workers(None, "auto", 4, 0.5)
    with pytest.raises(InputError, match="leave out workers or ray"):
        attnscope.scan(torch.nn.MultiheadAttention(8, 2), inputs=(torch.zeros(1, 2, 8),) * 3, workers=2)


def test_ray_is_not_imported_unless_it_is_asked_for() -> None:
    if "ray" not in sys.modules:
        attnscope.scan(length=32, windows=2, top_n=[3], progress=False)
        assert "ray" not in sys.modules


def test_a_work_of_a_scan_gives_the_same_on_a_worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Through the whole of `scan`, a diagnosis included."""
    monkeypatch.setattr(ray_engine, "import_ray", lambda: FakeRay())
    options: dict[str, Any] = {"length": 48, "windows": 4, "top_n": [1, 5], "diagnose": True, "progress": False}
    here = attnscope.scan(out=tmp_path / "here", **options)
    there = attnscope.scan(out=tmp_path / "there", workers=2, **options)
    for name in ("rows", "topn", "weights", "patterns"):
        one, other = ((tmp_path / where / f"{name}.parquet").read_bytes() for where in ("here", "there"))
        assert one == other, name
    assert here.findings == there.findings
    assert there.run["workers"]["engine"] == "ray"
