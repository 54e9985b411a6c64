"""The speed of the normalizers: time as a ratio to torch.softmax, and to the `entmax` package.

Decisions:

- in every repeat each normalizer runs right after torch.softmax on the same logits, and the median of
  these paired ratios is reported, so that other load on the machine affects both alike;
- every length has the same number of logits, so that reading and writing them is the same amount of work;
- the `entmax` package, where it is installed, is timed against ours on a sixteenth of the rows, because
  it needs several times the memory;
- the error is the largest difference to `_oracle.py`, which computes each definition in float64 by bisection and
  shares no code with the normalizers;
- every call returns a new tensor, as for users, and the system maps large ones again each time: the times of both sides
  include that. Before the first measurement, torch.softmax fills and frees as much memory as any subject will need, so
  that the first subject does not pay for memory that the process never had before.

The peer is optional: it is only imported here, when a benchmark runs, and its column stays empty without it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from attnscope.errors import InputError, parameter, whole_number
from attnscope.normalizers import Normalizer, parse
from attnscope.options import WholeNumber, WholeNumbers
from attnscope.progress import Step, reporting
from attnscope.studies.recall.measuring import against_softmax, paired
from benchmarks._oracle import ORACLES
from benchmarks.options import Hidden, Only
from benchmarks.timing import refuse_beyond_memory

PEER = "entmax"
_PEER_SHARE = 16
_CHECKED_ROWS = 251
_TENSORS = 6
_MEMORY = (
    "every call returns a new tensor on both sides; torch maps small pages, attnscope large ones for large results"
)

# Every normalizer, as `attnscope.normalizers.parse` reads it.
SUBJECTS = (
    "softmax",
    "ssmax",
    "power_softmax",
    "logn:n_train=512",
    "softmax1",
    "sink_softmax:sink=0.5",
    "sigmoid",
    "topk:k=64",
    "sparsemax",
    "entmax15",
    "entmax:alpha=1.2",
    "entmax:alpha=1.6",
    "entmax:alpha=1.9",
    "lipmax",
    "lipmix",
    "asentmax",
    "adaptive_temperature",
    "f_normalizer",
    "sa_softmax",
)


@dataclass(frozen=True)
class Result:
    """One normalizer at one length; ratios are to torch.softmax, `peer_speedup` to the peer's forward."""

    normalizer: str
    length: int
    rows: int
    forward_seconds: float
    forward_ratio: float
    total_seconds: float
    total_ratio: float
    peer_speedup: float | None
    largest_error: float


def measure(
    *,
    rows: WholeNumber = 147_456,
    lengths: WholeNumbers = (128, 1024, 8192),
    repeats: WholeNumber = 5,
    subjects: Only = None,
    progress: Hidden = None,
) -> dict[str, Any]:
    """Time every normalizer against torch.softmax, and against the entmax package where it is installed.

    For example:

    - `python -m benchmarks normalizers`
    - `python -m benchmarks normalizers --only sparsemax,entmax:alpha=1.2 --repeats 3`

    Parameters
    ----------
    rows
        Rows at length 1,024; other lengths get as many as make the same number of logits.
    lengths
        Row lengths to measure, e.g. 128,1024.
    repeats
        Repeats of each measurement; medians are reported.
    subjects
        The normalizers to measure, e.g. sparsemax,entmax:alpha=1.2. Default: all.
    """
    chosen = list(SUBJECTS) if subjects is None else list(subjects)
    unknown = [label for label in chosen if label not in SUBJECTS]
    if unknown:
        raise InputError(f"no benchmark is named {', '.join(unknown)}: choose from {', '.join(SUBJECTS)}")
    for name, values in {"rows": [rows], "repeats": [repeats], "lengths": lengths}.items():
        for value in values:
            whole_number(name, value, most=2**62)
    # Logits, gradients, weights and the results of both passes.
    needed = max(max(1, rows * 1024 // length) * length for length in lengths) * 4 * _TENSORS
    refuse_beyond_memory(needed, f"{parameter('rows', rows)} and {parameter('lengths')} up to {max(lengths)}")
    results: list[Result] = []
    with reporting(progress) as report:
        for length in lengths:
            generator = torch.Generator().manual_seed(length)
            z = torch.randn(max(1, rows * 1024 // length), length, generator=generator)
            g = torch.randn(z.shape, generator=generator)
            x = z.detach().requires_grad_()
            torch.autograd.grad(torch.softmax(x, dim=-1), x, g)
            for label in chosen:
                report(Step(len(results), len(chosen) * len(lengths), f"{label}, length {length:,}"))
                results.append(_measure_one(label, parse(label), z, g, repeats))
    return {
        "benchmark": "normalizers",
        "rows_at_1024": rows,
        "repeats": repeats,
        "memory": _MEMORY,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "peer": None if _peer() is None else f"{PEER} {importlib.metadata.version(PEER)}",
        "results": [asdict(result) for result in results],
    }


def _measure_one(label: str, normalizer: Normalizer, z: Tensor, g: Tensor, repeats: int) -> Result:
    forward, total = against_softmax(normalizer, z, g, repeats)
    peer = _peer_function(label)
    speedup = None
    if peer is not None:
        share = z[: max(1, len(z) // _PEER_SHARE)]
        speedup = 1 / paired(lambda: normalizer(share), lambda: peer(share), min(repeats, 3))[1]
    return Result(
        normalizer=label,
        length=z.shape[-1],
        rows=z.shape[0],
        forward_seconds=round(forward[0], 7),
        forward_ratio=round(forward[1], 3),
        total_seconds=round(total[0], 7),
        total_ratio=round(total[1], 3),
        peer_speedup=None if speedup is None else round(speedup, 3),
        largest_error=_largest_error(label, normalizer, z),
    )


def _largest_error(label: str, normalizer: Normalizer, z: Tensor) -> float:
    rows = z[:: -(-len(z) // _CHECKED_ROWS)]
    exact = torch.from_numpy(ORACLES[label](rows.double().numpy()))
    return float((normalizer(rows).double() - exact).abs().max())


def _peer() -> Any:
    try:
        return importlib.import_module(PEER)
    except ImportError:
        return None


def _peer_function(label: str) -> Callable[[Tensor], Tensor] | None:
    """The peer's own forward of the same map, if it has one."""
    peer = _peer()
    if peer is None:
        return None
    if label == "sparsemax":
        return lambda x: peer.sparsemax(x, dim=-1)
    if label == "entmax15":
        return lambda x: peer.entmax15(x, dim=-1)
    if label.startswith("entmax:alpha="):
        alpha = float(label.removeprefix("entmax:alpha="))
        return lambda x: peer.entmax_bisect(x, alpha=alpha, dim=-1)
    return None
