"""A Ray in this process: actors are objects, and tasks run when somebody waits for them. Workers die on request."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

Dies = Callable[[int, str, tuple[Any, ...]], bool]


class RayError(Exception):
    """A failure of the system: a worker that died."""


class _Task:
    def __init__(self, actor: _Actor, name: str, arguments: tuple[Any, ...]) -> None:
        self.actor, self.name, self.arguments = actor, name, arguments
        self.outcome: Any = None
        self.done = False

    def run(self, ray: FakeRay) -> None:
        if self.done:
            return
        self.done = True
        try:
            if not self.actor.alive or ray.dies(self.actor.number, self.name, self.arguments):
                self.actor.alive = False
                raise RayError("the actor died unexpectedly")
            self.outcome = getattr(self.actor.held, self.name)(*self.arguments)
        except RayError as error:
            self.outcome = error


class _Actor:
    def __init__(self, ray: FakeRay, held: Any) -> None:
        self.ray, self.held, self.alive = ray, held, True
        self.number = len(ray.actors)
        ray.actors.append(self)

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *arguments: _Task(self, name, arguments))


class FakeRay:
    """As much of Ray as the engine uses. `dies(actor, method, arguments)` says whether a worker dies in a call."""

    __version__ = "fake"
    exceptions = SimpleNamespace(RayError=RayError)

    def __init__(self, dies: Dies = lambda *_: False, cpus: float = 4, order: int = 1) -> None:
        self.dies, self.cpus, self.order = dies, cpus, order
        self.waits = 0
        self.actors: list[_Actor] = []
        self.inits: list[dict[str, Any]] = []
        self.options: dict[str, Any] = {}

    def init(self, **options: Any) -> None:
        self.inits.append(options)

    def is_initialized(self) -> bool:
        return bool(self.inits)

    def shutdown(self) -> None:
        self.inits.clear()

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": self.cpus}

    def remote(self, cls: type) -> Any:
        def options(**chosen: Any) -> Any:
            self.options = chosen
            return SimpleNamespace(remote=lambda *arguments: _Actor(self, cls(*arguments)))

        return SimpleNamespace(options=options)

    def put(self, value: Any) -> Any:
        return value

    def wait(self, tasks: list[_Task], num_returns: int, timeout: float | None) -> tuple[list[_Task], list[_Task]]:
        self.waits += 1
        task = tasks[self.order * self.waits % len(tasks)]  # each in its turn
        task.run(self)
        return [task], [other for other in tasks if other is not task]

    def get(self, task: _Task) -> Any:
        task.run(self)
        if isinstance(task.outcome, RayError):
            raise task.outcome
        return task.outcome

    def kill(self, actor: _Actor) -> None:
        actor.alive = False
