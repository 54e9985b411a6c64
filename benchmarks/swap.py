"""Time and memory of a swapped normalizer, as ratios to the model's own attention in the same run.

The model has the size of GPT-2, random weights and no vocabulary projection; one window of
1,024 tokens. Time is the median of paired ratios to the eager forward; memory is the peak of allocated tensors, and the
peak of resident memory, both as ratios to the sdpa forward.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from attnscope.normalizers import parse
from attnscope.studies.compare.comparing import peak_bytes
from attnscope.swapping import first_key, intervene, swap

REPEATS = 3
LENGTH = 1024
SUBJECTS = ("softmax", "ssmax", "entmax15", "sparsemax", "topk", "lipmax", "softmax1")


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def paired(subject: Callable[[], object], base: Callable[[], object]) -> float:
    subject()
    base()
    ratios = []
    for _ in range(REPEATS):
        against = seconds(base)
        ratios.append(seconds(subject) / against)
    return round(statistics.median(ratios), 3)


def resident_peak(work: Callable[[], object]) -> int:
    """Peak resident memory of the process during `work`, in KiB."""
    Path("/proc/self/clear_refs").write_text("5")  # reset the high-water mark
    work()
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def measure() -> dict[str, Any]:
    torch.manual_seed(0)
    models = {}
    for name in ("eager", "sdpa"):
        config = transformers.GPT2Config()
        config._attn_implementation = name
        models[name] = transformers.GPT2Model(config).eval()
    models["eager"].load_state_dict(models["sdpa"].state_dict())
    ids = torch.randint(50257, (1, LENGTH), generator=torch.Generator().manual_seed(0))

    def forward(name: str) -> Callable[[], object]:
        return lambda: models[name](input_ids=ids, use_cache=False)

    results: list[dict[str, Any]] = []
    with torch.no_grad():
        plain, resident = peak_bytes(forward("sdpa")), resident_peak(forward("sdpa"))
        for subject in SUBJECTS:
            with swap(models["sdpa"], parse(subject)):
                results.append(
                    {
                        "normalizer": subject,
                        "time_to_eager": paired(forward("sdpa"), forward("eager")),
                        "peak_to_sdpa": round(peak_bytes(forward("sdpa")) / plain, 3),
                        "resident_to_sdpa": round(resident_peak(forward("sdpa")) / resident, 3),
                    }
                )
        baselines = {
            "sdpa_time_to_eager": paired(forward("sdpa"), forward("eager")),
            "eager_peak_to_sdpa": round(peak_bytes(forward("eager")) / plain, 3),
        }
        with intervene(models["sdpa"], {(5, 3): first_key}):
            baselines["one_head_intervened_to_eager"] = paired(forward("sdpa"), forward("eager"))
    return {
        "benchmark": "swap",
        "model": {"layers": 12, "heads": 12, "length": LENGTH},
        "threads": torch.get_num_threads(),
        **baselines,
        "results": results,
    }
