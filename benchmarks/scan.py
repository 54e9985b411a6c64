"""The cost of a scan: time and peak memory compared with the model's plain forward pass, in one run.

Decisions:

- every subject is timed in its own process on the same model and tokens: after a warm-up, plain forwards and the
  subject alternate; each run is divided by the mean of the forwards before and after it, and the median of these ratios
  is reported, so that other load on the machine affects both alike. Subjects that take seconds are run up to four times
  as often as requested, as single ratios vary by 10% on a shared machine, and nothing is repeated after a minute;
- `last` and `all` measure the default columns of the last or of all rows, `+bounds` the paper's bounds too;
- peak memory is measured in further processes, one for each subject and one for the plain forward: code is loaded by a
  run on a tiny model, then the model is built, and a single run raises the resident size (`resident.py`);
- `first` is the command `attnscope scan` on the embedded model as on a new machine: no loop has been compiled;
- the naive computation asks the model for all its attention matrices and computes the columns of `topn.parquet` and
  `rows.parquet` from their definitions, one block of rows at a time in torch (`naive.py`). All heads of a large
  model would take many minutes: heads are timed for a minute (`heads_timed`), and the others, which have the same
  shapes, are assumed to take as long. Its peak memory is that with a single head, without the columns of the others;
- TransformerLens and nnsight, where installed, only capture weights and values (`peers.py`).
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import torch

from attnscope.errors import InputError, whole_number
from attnscope.options import WholeNumber, Words
from attnscope.progress import Step, reporting
from benchmarks.options import Hidden, Only
from benchmarks.peers import PACKAGES
from benchmarks.resident import resident_peak, run_with_plain_allocator
from benchmarks.timing import (
    ENOUGH,
    TINY,
    built,
    check_size,
    in_own_process,
    plain_forward,
    relative_times,
    run_again,
    seconds_of,
)  # fmt: skip

SUBJECTS = ("last", "last+bounds", "all", "all+bounds", "first", "naive", "transformer_lens", "nnsight")
MODELS = ("random", "sample")
TOP_N = (1, 5, 10, 20, 100)
_FORWARD = "forward"


def measure(
    *,
    length: WholeNumber = 1024,
    layers: WholeNumber = 12,
    heads: WholeNumber = 12,
    width: WholeNumber = 768,
    rows: WholeNumber | None = None,
    repeats: WholeNumber = 3,
    subjects: Only = None,
    models: Words = MODELS,
    shorter: WholeNumber | None = None,
    progress: Hidden = None,
) -> dict[str, Any]:
    """Time scans, the naive way and other capture tools against the model's plain forward pass.

    For example:

    - `python -m benchmarks scan --only last,all`
    - `python -m benchmarks scan --length 16384 --shorter 4096 --layers 4 --rows 64 --only last --models random`

    Parameters
    ----------
    length
        Tokens in the window.
    layers
        Layers of the GPT-2-like model with random weights.
    heads
        Heads of a layer.
    width
        Width of the model.
    rows
        Also scan this many rows, spread evenly.
    repeats
        Repeats of each measurement, up to four times as many where they take seconds; medians are reported.
    subjects
        What to measure: last, last+bounds, all, all+bounds, first, naive, transformer_lens or nnsight, or several of
        them separated by commas. Default: all.
    models
        random: a GPT-2-like model with random weights, of the size given; sample: the embedded model and text.
    shorter
        Also measure peak memory at this length, and report how it grows.
    """
    chosen = list(SUBJECTS if subjects is None else subjects) + ([] if rows is None else [f"rows={rows}"])
    _refuse(chosen, models, length, layers, heads, width, rows, repeats, shorter)
    size = {"length": length, "layers": layers, "heads": heads, "width": width}
    names = {model: [name for name in chosen if name != "first" or model == "sample"] for model in models}
    total = sum(1 + sum(1 if name == "first" else 2 for name in those if _there(name)) for those in names.values())
    numbers = count()
    results: list[dict[str, Any]] = []
    with reporting(progress) as report:
        for model, those in names.items():
            arguments = size | {"sample": int(model == "sample")}

            def step(what: str, model: str = model) -> None:
                report(Step(next(numbers), total, f"{model}: {what}"))

            results += [{"model": model} | line for line in _measure_model(those, arguments, repeats, shorter, step)]
    return {
        "benchmark": "scan",
        "size": size,
        "shorter": shorter,
        "top_n": list(TOP_N),
        "repeats": repeats,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "results": results,
        "naive_over_all": {model: _naive_over_all(results, model) for model in models},
    }


def _there(name: str) -> bool:
    """Whether a subject can be measured: another capture tool must be installed."""
    return name not in PACKAGES or importlib.util.find_spec(name) is not None


def _measure_model(
    names: list[str], arguments: dict[str, int], repeats: int, shorter: int | None, step: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """The result of each subject on one model; `step` is called before each measurement."""
    peaks = {}
    for name in [_FORWARD, *names]:
        if name != "first" and _there(name):
            step(f"memory of {name}")
            peaks[name] = _peaks(name, arguments, shorter)
    for name in names:
        line: dict[str, Any] = {"subject": name, "installed": _there(name)}
        if line["installed"]:
            step(name)
        if name == "first":
            line |= _first_scan()
        elif line["installed"]:
            line["version"] = importlib.metadata.version(PACKAGES[name]) if name in PACKAGES else None
            times = in_own_process(_times, name, arguments, repeats)
            line |= times | _memory(peaks[name], peaks[_FORWARD])
        yield line


def _refuse(
    chosen: list[str],
    models: Sequence[str],
    length: int,
    layers: int,
    heads: int,
    width: int,
    rows: int | None,
    repeats: int,
    shorter: int | None,
) -> None:
    unknown = [name for name in chosen if name not in SUBJECTS and not name.startswith("rows=")]
    if unknown:
        raise InputError(f"no benchmark is named {', '.join(unknown)}: choose from {', '.join(SUBJECTS)}")
    if not models or set(models) - set(MODELS):
        raise InputError(f"models are {' and '.join(MODELS)}; received {', '.join(models) or 'none'}")
    check_size(length, layers, heads, width, repeats)
    if rows is not None:
        whole_number("rows", rows)
    if shorter is not None and not 2 <= shorter < length:
        raise InputError(f"the shorter length must be from 2 up and below {length}; received {shorter}")


def _naive_over_all(results: list[dict[str, Any]], model: str) -> float | None:
    """How many times longer the naive computation takes than our scan of the same rows and columns."""
    seconds = {entry["subject"]: entry.get("seconds") for entry in results if entry["model"] == model}
    naive, ours = seconds.get("naive"), seconds.get("all+bounds")
    return round(naive / ours, 1) if naive and ours else None


def _peaks(name: str, arguments: dict[str, int], shorter: int | None) -> list[int | None]:
    """Peak memory of a subject at the full length, and at the shorter one."""
    lengths = [arguments["length"]] if shorter is None else [arguments["length"], shorter]
    sizes = [arguments | {"length": length, "name": name, "threads": torch.get_num_threads()} for length in lengths]
    return [run_with_plain_allocator(__name__, size) for size in sizes]


def _memory(own: list[int | None], forward: list[int | None]) -> dict[str, Any]:
    def ratio(above: int | None, below: int | None) -> float | None:
        return None if above is None or not below else round(above / below, 3)

    peaks = {"peak_bytes": own[0], "forward_peak_bytes": forward[0], "memory_ratio": ratio(own[0], forward[0])}
    if len(own) == 1:
        return peaks
    return peaks | {
        "shorter_peak_bytes": own[1],
        "shorter_forward_peak_bytes": forward[1],
        "growth": ratio(*own),
        "forward_growth": ratio(*forward),
    }


def _times(name: str, arguments: dict[str, int], repeats: int) -> dict[str, Any]:
    """Time a subject and the plain forward."""
    if name == "naive":
        return _naive_times(arguments)
    _subject(name, *built(TINY))()
    model, ids = built(arguments)
    run, forward = _subject(name, model, ids), _subject(_FORWARD, model, ids)
    forward()
    run()
    forwards = [seconds_of(forward)]
    runs: list[float] = []
    while run_again(runs, repeats):
        runs.append(seconds_of(run))
        forwards.append(seconds_of(forward))
    return relative_times(runs, forwards)


def _naive_times(arguments: dict[str, int]) -> dict[str, Any]:
    """Time the naive computation, on as many heads as a minute allows, and the plain forward."""
    from benchmarks import naive

    tiny, few = built(TINY)
    naive.timed(tiny.module, few, _sizes(few), 0)
    model, ids = built(arguments)
    forward = _subject(_FORWARD, model, ids)
    forward()
    before = seconds_of(forward)
    timing = naive.timed(model.module, ids, _sizes(ids), ENOUGH)
    return relative_times([timing.seconds], [before, seconds_of(forward)]) | {"heads_timed": timing.heads_timed}


def _peak(name: str, arguments: dict[str, int]) -> int | None:
    """Bytes that a subject needs above the loaded model."""
    _subject(name, *built(TINY))()
    return resident_peak(_subject(name, *built(arguments)))


def _first_scan() -> dict[str, Any]:
    """Seconds of the first scan on a machine, including compilation: the cache of compiled loops is empty."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "attnscope.cli", "scan", "--out", f"{folder}/run"]
        environment = os.environ | {"NUMBA_CACHE_DIR": f"{folder}/cache"}
        started = time.perf_counter()
        subprocess.run(command, env=environment, check=True, capture_output=True)
        return {"seconds": round(time.perf_counter() - started, 2)}


def _subject(name: str, model: Any, ids: list[int]) -> Callable[[], object]:
    from attnscope.capture.text import Text
    from attnscope.scanning import scan
    from benchmarks import naive, peers

    text = Text("x", "random tokens")
    if name == _FORWARD:
        return plain_forward(model, ids)
    if name == "transformer_lens":
        return peers.capture_with_transformer_lens(model.module, ids)
    if name == "nnsight":
        return peers.capture_with_nnsight(model.module, ids)
    if name == "naive":
        return lambda: naive.timed(model.module, ids, _sizes(ids), 0)
    which, _, with_bounds = name.partition("+")
    rows: Any = int(which.removeprefix("rows=")) if which.startswith("rows=") else which
    bounds: Any = "paper" if with_bounds else None
    return lambda: scan(model, text, length=len(ids), top_n=_sizes(ids), rows=rows, bounds=bounds, progress=False)


def _sizes(ids: list[int]) -> list[int]:
    return [n for n in TOP_N if n < len(ids)]


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    torch.set_num_threads(arguments.pop("threads"))
    print(json.dumps(_peak(arguments.pop("name"), arguments)))
