"""Choose the engine that was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attnscope.capture.models import Model, ModelSource, model_source, refuse_options, resolve_model
from attnscope.engine.blocks import Engine
from attnscope.engine.local import LocalEngine
from attnscope.errors import InputError, shown
from attnscope.parameters import parameter
from attnscope.planning import whole_number


@dataclass(frozen=True)
class Workers:
    """The workers of a Ray cluster: how many, where, and what each of them owns.

    Attributes
    ----------
    count
        How many; None for as many as the cluster has room for.
    address
        Of the cluster, as `ray.init` takes it; None to start one on this machine.
    cpus, gpus
        Cores (and threads) and devices of each worker.
    """

    count: int | None = None
    address: str | None = None
    cpus: int = 1
    gpus: float = 0

    def __post_init__(self) -> None:
        if self.count is not None:
            whole_number("workers", self.count)
        whole_number("worker_cpus", self.cpus)
        if not isinstance(self.gpus, int | float) or isinstance(self.gpus, bool) or not 0 <= self.gpus < 1024:
            raise InputError(f"{parameter('worker_gpus')} takes a number from 0 up; received {shown(self.gpus)}")


def chosen_workers(
    workers: int | None, ray: str | None, worker_cpus: int | None, worker_gpus: float | None
) -> Workers | None:
    """The workers that the arguments ask for; None for this process."""
    if workers is None and ray is None:
        for name, value in {"worker_cpus": worker_cpus, "worker_gpus": worker_gpus}.items():
            if value is not None:
                raise InputError(
                    f"{parameter(name, value)} is for workers; add {parameter('workers')} or {parameter('ray')}, or "
                    "leave it out"
                )
        return None
    return Workers(workers, ray, 1 if worker_cpus is None else worker_cpus, worker_gpus or 0)


@contextmanager
def opened(model: Any, workers: Workers | None = None, **loading: Any) -> Iterator[Engine]:
    """An engine for a model, given in any form that `load_model` takes or as a `Model`."""
    if workers is None:
        yield LocalEngine(resolve_model(model, **loading))
        return
    from attnscope.engine.ray_engine import RayEngine

    with RayEngine(_description(model, **loading), workers) as engine:
        yield engine


def _description(model: Any, tokenizer: Any = None, **loading: Any) -> ModelSource:
    """How a worker loads the model; the path of a file or folder is made absolute."""
    if isinstance(model, Model):
        refuse_options(f"the Model {model.name}", **loading)
    source = model.source if isinstance(model, Model) else None
    if isinstance(model, str | Path | None):
        source = model_source(model, **loading)
    if source is None or tokenizer is not None:
        raise InputError("workers load the model themselves: give the name or folder of a model, not an object")
    if source.name is None or not Path(source.name).exists():
        return source
    return replace(source, name=str(Path(source.name).resolve()))
