"""Run a model on a plan of windows and pass its attention calls to a measurer: the only loop over windows.

`run.py` plans the windows, is the loop over those of a block and merges their results. `blocks.py` groups them: a plan
of independent blocks in, finished parts out, in this process or, with `ray_engine.py`, on the workers of a Ray cluster.
`store.py` keeps finished blocks in memory or on disk, `record.py` describes what was run. Commands differ only in their
measurers.

Requirements: a measurer does not know whether a call comes from a text, from tensors or from a training step. Ray is
never imported unless it was asked for, and a worker gets a description of the work and the model, never a live model.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from attnscope.capture.models import Model, ModelSource, model_source, refuse_options, resolve_model
from attnscope.engine.blocks import Engine, LocalEngine, Workers
from attnscope.errors import InputError, parameter


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
