"""The cost of the paper's protocol: each of its algorithms, compared with the plain forward and the paper's own times.

Every algorithm runs alone, over all rows of one window of a GPT-2-like model with random weights, in both readings and
with value vectors, in its own process (`timing.py`). Its time includes the forward. Peak memory is measured in
another process, above the loaded model (`resident.py`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import torch
from cyclopts import Parameter

from attnscope.errors import InputError
from attnscope.options import WholeNumber, WholeNumbers
from attnscope.progress import Step, reporting
from attnscope.studies.paper.settings import FIXED_N, PAPER_N, SEPARABILITY_N, plan
from benchmarks.options import Hidden
from benchmarks.resident import resident_peak, run_with_plain_allocator
from benchmarks.timing import (
    TINY,
    built,
    check_size,
    in_own_process,
    plain_forward,
    relative_times,
    run_again,
    seconds_of,
)

PAPER_MACHINE = "Apple M1 Pro, 10 cores"


class Algorithm(NamedTuple):
    """What an algorithm measures, and the time that the paper states for it."""

    measures: str
    paper_minutes: float


ALGORITHMS = {
    1: Algorithm("distance and expectation, N = 5, every length", 24),
    2: Algorithm("distance and expectation at the longest length, N = 1, 5, 10, 20, 100", 37),
    3: Algorithm("distance and expectation at every N, every length", 1024),
    4: Algorithm("separability at the longest length, N = 1, 2, 4, ... 512", 7),
    5: Algorithm("responses to random and worst steps, 13 temperatures, 3 steps", 1),
}


def measure(
    *,
    length: WholeNumber = 1024,
    layers: WholeNumber = 12,
    heads: WholeNumber = 12,
    width: WholeNumber = 768,
    repeats: WholeNumber = 3,
    algorithms: Annotated[WholeNumbers, Parameter(name="--only")] = tuple(ALGORITHMS),
    progress: Hidden = None,
) -> dict[str, Any]:
    """Time each algorithm of the paper's protocol, against the plain forward pass and the paper's own time.

    For example:

    - `python -m benchmarks protocol --only 1,2,4,5`
    - `python -m benchmarks protocol --repeats 1 --json`

    Parameters
    ----------
    length
        Tokens in the window, which is the longest length.
    layers
        Layers of the GPT-2-like model with random weights.
    heads
        Heads of a layer.
    width
        Width of the model.
    repeats
        Repeats of each measurement, up to four times as many where they take seconds; medians are reported.
    algorithms
        The algorithms to measure, e.g. 1,3.
    """
    unknown = [number for number in algorithms if number not in ALGORITHMS]
    if unknown:
        raise InputError(f"the protocol has the algorithms 1 to {len(ALGORITHMS)}; received {unknown[0]}")
    plan(None, length=length)  # refuse invalid lengths
    check_size(length, layers, heads, width, repeats)
    size = {"length": length, "layers": layers, "heads": heads, "width": width}
    results: list[dict[str, Any]] = []
    with reporting(progress) as report:
        for number in algorithms:
            about = ALGORITHMS[number]
            report(Step(len(results), len(algorithms), f"algorithm {number}"))
            times = in_own_process(_times, number, size, repeats)
            arguments = size | {"number": number, "threads": torch.get_num_threads()}
            results.append(
                {"algorithm": number, "measures": about.measures}
                | times
                | {"paper_seconds": 60 * about.paper_minutes}
                | {"times_faster": round(60 * about.paper_minutes / times["seconds"], 1)}
                | {"peak_bytes": run_with_plain_allocator(__name__, arguments)}
            )
    return {
        "benchmark": "protocol",
        "size": size,
        "repeats": repeats,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "paper_machine": PAPER_MACHINE,
        "results": results,
    }


def _times(number: int, size: dict[str, int], repeats: int) -> dict[str, Any]:
    """Time an algorithm between plain forwards, after a run on a tiny model that compiles its loops."""
    _algorithm(number, *built(TINY))()
    model, ids = built(size)
    run, forward = _algorithm(number, model, ids), plain_forward(model, ids)
    forward()
    forwards, runs = [seconds_of(forward)], list[float]()
    while run_again(runs, repeats):
        runs.append(seconds_of(run))
        forwards.append(seconds_of(forward))
    return relative_times(runs, forwards)


def _algorithm(number: int, model: Any, ids: list[int]) -> Callable[[], object]:
    """One algorithm on one window."""
    from attnscope.engine.run import plan_windows, run_windows
    from attnscope.studies.paper.measuring import ProtocolMeasurer

    settings = plan(len(ids), length=len(ids), windows=1)
    sizes: dict[int, Sequence[int]] = {}
    if number == 1:
        sizes = dict.fromkeys(settings.lengths, (FIXED_N,))
    elif number in (2, 4):
        sizes = {settings.longest: PAPER_N if number == 2 else SEPARABILITY_N}
    fitting = {length: [n for n in wanted if n < length] for length, wanted in sizes.items()}
    measurer = ProtocolMeasurer(settings, fitting, every_n=number == 3, gradient=number == 5)
    window = plan_windows(model, settings.lengths, settings.positions).window(0, ids)
    return lambda: list(run_windows(model, [window], measurer))


def _peak(number: int, size: dict[str, int]) -> int | None:
    _algorithm(number, *built(TINY))()
    return resident_peak(_algorithm(number, *built(size)))


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    torch.set_num_threads(arguments.pop("threads"))
    print(json.dumps(_peak(arguments.pop("number"), arguments)))
