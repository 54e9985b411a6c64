"""The engine of a Ray cluster: actors that load the model once and run blocks, with their results sent back.

Decisions:

- a worker gets the description of a model and of the work, and blocks of tokens; it writes no files. The driver, which
  has the folder locked, writes what comes back;
- every worker has at most two blocks: one that it runs and one that waits, so that it is never idle. A block is only
  given to a worker that has loaded the model;
- a worker that dies is replaced, as soon as the cluster has room. Blocks that were with it go back into the queue; one
  that kills its workers, or raises in them, is given up after a few attempts;
- workers must agree in everything that decides the numbers; one that does not is left out, and a message says so.
"""

from __future__ import annotations

import math
import pickle
import sys
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from attnscope import __version__
from attnscope.engine.blocks import Block, Failure, Work
from attnscope.errors import AttnscopeError, InputError, parameter
from attnscope.progress import OnStep, Step

if TYPE_CHECKING:
    from attnscope.capture.models import Model, ModelFacts, ModelSource
    from attnscope.engine.blocks import Workers

P = TypeVar("P")
R = TypeVar("R")

IN_FLIGHT = 2  # blocks with a worker
RAISED, DIED = 3, 8  # attempts at a block that raises, and at one whose workers die
_STARTS = 3  # workers in a row that may die before one has loaded the model
_PATIENCE = 30.0  # seconds without a worker before that is said


class WorkerError(AttnscopeError):
    """What a worker raised, if the exception itself cannot be sent, or the death of a worker."""


@dataclass(frozen=True)
class Answer:
    """What a worker sends back: a result or an error, and the warnings that came up."""

    result: Any = None
    error: Exception | None = None
    warnings: tuple[str, ...] = ()


class Worker:
    """A process of the cluster with a model of its own."""

    def __init__(self, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self.model: Model | None = None

    def load(self, source: ModelSource) -> Answer:
        """Load the model: its facts, what decides its numbers, and the name of the worker."""
        return self._answer(lambda: self._loaded(source))

    def _loaded(self, source: ModelSource) -> tuple[ModelFacts, dict[str, Any], str]:
        import os
        import socket

        from attnscope.engine.record import model_identity

        self.model = source.load()
        name = f"{socket.gethostname()}:{os.getpid()}"
        return self.model.facts, model_identity(self.model, _ignore), name

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Answer:
        return self._answer(lambda: function(self.model, _ignore, *arguments))

    def run(self, work: Work[Any, Any], block: Block) -> Answer:
        assert self.model is not None
        model = self.model
        return self._answer(lambda: work.run(model, block))

    def _answer(self, do: Callable[[], Any]) -> Answer:
        with warnings.catch_warnings(record=True, action="default") as caught:
            result, failed = None, None
            try:
                result = do()
            except Exception as error:
                failed = _portable(error)
        said = dict.fromkeys(f"{one.category.__name__}: {one.message}" for one in caught)
        return Answer(result, failed, tuple(said))


def _ignore(_: Step) -> None:
    """Nobody watches the steps of a worker."""


def _portable(error: Exception) -> Exception:
    """The exception, or one that says the same if it cannot be sent to another process."""
    error.__traceback__ = error.__cause__ = error.__context__ = None
    with suppress(Exception):
        if isinstance(pickle.loads(pickle.dumps(error)), type(error)):
            return error
    return WorkerError(f"{type(error).__name__}: {error}")


@dataclass(eq=False)
class _Remote:
    """A worker as the driver sees it."""

    actor: Any
    loading: Any  # what `load` will give; None once it has
    name: str = ""
    blocks: dict[Any, Block] = field(default_factory=dict)  # by what `run` will give, the running one first


class RayEngine:
    """Runs blocks on the workers of a Ray cluster while it is entered."""

    def __init__(self, source: ModelSource, workers: Workers, say: Callable[[str], None] | None = None) -> None:
        self._source, self._wanted = source, workers
        self._say = say or (lambda message: print(f"attnscope: {message}", file=sys.stderr))
        self._said: set[str] = set()
        self._workers: list[_Remote] = []
        self._facts: ModelFacts | None = None
        self._identity: dict[str, Any] = {}
        self._failed_starts = self._deaths = 0

    def __enter__(self) -> RayEngine:
        self._ray = ray = import_ray()
        self._own = not ray.is_initialized()
        if self._own:
            _connect(ray, self._wanted)
        try:
            self._count = self._wanted.count or self._room()
            self._fill()
            while self._facts is None:
                self._wait([])
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self._workers:
            with suppress(Exception):
                self._ray.kill(worker.actor)
        self._workers = []
        if self._own:
            self._ray.shutdown()

    @property
    def facts(self) -> ModelFacts:
        assert self._facts is not None
        return self._facts

    @property
    def described(self) -> dict[str, Any]:
        wanted = self._wanted
        return {
            "workers": {
                "engine": "ray",
                "ray": self._ray.__version__,
                "address": wanted.address,
                "count": self._count,
                "cpus": wanted.cpus,
                "gpus": wanted.gpus,
                "deaths": self._deaths,
            }
        }

    def call(self, function: Callable[..., R], *arguments: Any, progress: OnStep | None = None) -> R:
        """Call `function(model, report, *arguments)` on some worker; it reports no steps."""
        for _ in range(RAISED):
            while not (ready := [worker for worker in self._workers if worker.loading is None]):
                self._wait([])
            try:
                answer = self._ray.get(ready[0].actor.call.remote(function, arguments))
            except self._ray.exceptions.RayError as error:
                self._lose(ready[0], error)
                continue
            self._warn(ready[0], answer)
            if answer.error is not None:
                raise answer.error
            result: R = answer.result
            return result
        raise WorkerError(f"{RAISED} workers died while they ran {function.__name__}; see the logs of Ray")

    def run(
        self, work: Work[P, R], blocks: Iterable[Block], progress: OnStep | None = None, begin: Step | None = None
    ) -> Iterator[tuple[int, R | Failure]]:
        """Run the blocks on all workers, and yield them as they are finished."""
        reference = self._ray.put(work)
        waiting, rest = deque[Block](), iter(blocks)
        raised, died = Counter[int](), Counter[int]()
        steps = self.facts.layers * work.plan.forwards
        while True:
            for worker in self._workers:
                while worker.loading is None and len(worker.blocks) < IN_FLIGHT:
                    block = waiting.popleft() if waiting else next(rest, None)
                    if block is None:
                        break
                    worker.blocks[worker.actor.run.remote(reference, block)] = block
            running = {ref: worker for worker in self._workers for ref in worker.blocks}
            if not running and not waiting:
                following = next(rest, None)
                if following is None:
                    return
                waiting.append(following)
            for ref in self._wait(list(running)):
                worker, block = running[ref], running[ref].blocks.get(ref)
                if block is None:  # its worker has died
                    continue
                try:
                    answer = self._ray.get(ref)
                except self._ray.exceptions.RayError as error:
                    first, *others = self._lose(worker, error)
                    died[first.number] += 1
                    waiting.extendleft([*reversed(others)])
                    if died[first.number] < DIED:
                        waiting.appendleft(first)
                    else:
                        yield first.number, Failure(WorkerError(f"its workers died ({_line(error)})"), DIED)
                    continue
                del worker.blocks[ref]
                self._warn(worker, answer)
                if answer.error is None:
                    if begin is not None and progress is not None:
                        begin = begin._replace(done=begin.done + steps * len(block.tokens), window=block.first)
                        progress(begin._replace(doing=f"{self._ready()} workers"))
                    yield block.number, answer.result
                    continue
                raised[block.number] += 1
                if raised[block.number] < RAISED:
                    waiting.append(block)
                else:
                    yield block.number, Failure(answer.error, RAISED)

    def _ready(self) -> int:
        return sum(worker.loading is None for worker in self._workers)

    def _room(self) -> int:
        """How many workers the cluster has room for."""
        resources = self._ray.cluster_resources()
        fits = int(resources.get("CPU", 0) // self._wanted.cpus)
        if self._wanted.gpus:
            fits = min(fits, int(resources.get("GPU", 0) // self._wanted.gpus))
        if fits < 1:
            raise InputError(
                f"no worker of {self._wanted.cpus} cores and {self._wanted.gpus:g} GPUs fits the cluster, which has "
                f"{resources.get('CPU', 0):g} and {resources.get('GPU', 0):g}; use fewer"
            )
        return fits

    def _fill(self) -> None:
        """Start workers for those that are missing; they wait until the cluster has room."""
        threads = str(self._wanted.cpus)
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS")
        variables = {**dict.fromkeys(names, threads), "OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"}
        remote = self._ray.remote(Worker).options(
            num_cpus=self._wanted.cpus,
            num_gpus=self._wanted.gpus,
            max_restarts=0,  # a worker that restarts by itself would have no model
            runtime_env={"env_vars": variables},
        )
        while len(self._workers) < self._count:
            actor = remote.remote(self._wanted.cpus)
            self._workers.append(_Remote(actor, actor.load.remote(self._source)))

    def _wait(self, running: list[Any]) -> list[Any]:
        """Wait until something happens: those of the running blocks that ended. Takes care of new workers itself."""
        loading = {worker.loading: worker for worker in self._workers if worker.loading is not None}
        done, _ = self._ray.wait([*running, *loading], num_returns=1, timeout=None if running else _PATIENCE)
        if not done and not running:
            self._say_once("no worker is ready yet: waiting for room in the cluster, or for models to load")
        for ref in done:
            if ref in loading:
                self._started(loading[ref])
        return [ref for ref in done if ref not in loading]

    def _started(self, worker: _Remote) -> None:
        """A worker has loaded the model, or has failed to."""
        try:
            answer = self._ray.get(worker.loading)
        except self._ray.exceptions.RayError as error:
            self._failed_starts += 1
            if self._failed_starts >= _STARTS and not self._ready():
                raise WorkerError(f"workers die while they load the model ({_line(error)})") from None
            self._lose(worker, error)
            return
        if answer.error is not None:
            self._leave_out(worker, answer.error)
            return
        facts, identity, worker.name = answer.result
        self._warn(worker, answer)
        if identity["attnscope"] != __version__:
            unlike = InputError(f"it runs attnscope {identity['attnscope']}, and this process {__version__}")
            self._leave_out(worker, unlike)
        elif self._facts is not None and identity != self._identity:
            names = ", ".join(name for name in identity if identity[name] != self._identity.get(name))
            self._leave_out(worker, InputError(f"its {names} differ from those of the first worker"))
        else:
            self._facts, self._identity = self._facts or facts, identity
            worker.loading, self._failed_starts = None, 0

    def _leave_out(self, worker: _Remote, error: Exception) -> None:
        """Go on without a worker that cannot take part; if it is the last one, its error ends the run."""
        self._workers.remove(worker)
        self._count -= 1
        with suppress(Exception):
            self._ray.kill(worker.actor)
        if not self._workers:
            raise error
        self._say_once(f"a worker is left out: {_line(error)}")

    def _lose(self, worker: _Remote, error: Exception) -> list[Block]:
        """Replace a worker that has died; returns the blocks that were with it."""
        self._deaths += 1
        if worker in self._workers:
            self._workers.remove(worker)
        with suppress(Exception):
            self._ray.kill(worker.actor)
        self._say(f"worker {worker.name or 'that was loading the model'} died; its blocks are run again")
        self._fill()
        lost, worker.blocks = list(worker.blocks.values()), {}
        return lost

    def _warn(self, worker: _Remote, answer: Answer) -> None:
        for message in answer.warnings:
            if message not in self._said:
                self._said.add(message)
                self._say(f"worker {worker.name}: {message}")

    def _say_once(self, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            self._say(message)


def import_ray() -> Any:
    """The module ray; InputError names the extra if it is not installed."""
    try:
        import ray
    except ImportError:
        raise InputError(
            f"{parameter('workers')} and {parameter('ray')} need Ray, which is not installed; pip install "
            "'attnscope[ray]', or leave them out to run in this process"
        ) from None
    return ray


def _connect(ray: Any, workers: Workers) -> None:
    """Join the cluster at the address, or start one on this machine."""
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if workers.address is None:
        count = workers.count or 1
        options |= {"address": "local", "num_cpus": count * workers.cpus, "include_dashboard": False}
        if workers.gpus:
            options["num_gpus"] = math.ceil(count * workers.gpus)
    else:
        options["address"] = workers.address
    try:
        ray.init(**options)
    except (ConnectionError, OSError, ValueError, RuntimeError) as error:
        where = "on this machine" if workers.address is None else f"at {workers.address}"
        raise InputError(f"cannot use Ray {where}: {_line(error)}") from None


def _line(error: BaseException) -> str:
    """An error in one line."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
