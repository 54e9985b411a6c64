"""Time of comparing six normalizers in what-if mode, as a ratio to the time of one scan in the same run.

The model has the size of GPT-2 and random weights; one window of 1,024 tokens, six lengths.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers

from attnscope.capture.models import Model
from attnscope.capture.text import Text
from attnscope.scanning import scan
from attnscope.studies.compare.comparing import DEFAULT_NORMALIZERS, compare
from benchmarks.timing import RandomTokens

REPEATS = 3
LENGTH = 1024


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def measure() -> dict[str, Any]:
    torch.manual_seed(0)
    module = transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval()
    model = Model(module, RandomTokens(module.config.vocab_size, LENGTH), "gpt2-sized", None)
    text = Text("x", "random tokens")

    def compare_all() -> None:
        compare(model, text, DEFAULT_NORMALIZERS, modes=["what-if"])

    compare_all()  # warm up
    ratios, one_set_ratios = [], []
    for _ in range(REPEATS):
        default_scan = seconds(lambda: scan(model, text))
        one_set_scan = seconds(lambda: scan(model, text, top_n=[20]))
        comparison = seconds(compare_all)
        ratios.append(comparison / default_scan)
        one_set_ratios.append(comparison / one_set_scan)
    return {
        "benchmark": "compare",
        "model": {"layers": 12, "heads": 12, "length": LENGTH},
        "normalizers": list(DEFAULT_NORMALIZERS),
        "threads": torch.get_num_threads(),
        "what_if_to_scan": round(statistics.median(ratios), 3),
        "what_if_to_scan_of_one_top_set": round(statistics.median(one_set_ratios), 3),
    }
