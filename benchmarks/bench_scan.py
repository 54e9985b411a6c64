"""The price of a scan: time and memory as ratios to the model's plain forward pass, in one run.

    python benchmarks/bench_scan.py

Prints one JSON object. A GPT-2-sized model with random weights, one window of 1,024 tokens, the last rows of
six lengths, five N, all columns.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import torch
import transformers

from attnscope.capture.huggingface import observed
from attnscope.capture.models import Model
from attnscope.capture.text import Text
from attnscope.scanning import scan

REPEATS = 5
LENGTH = 1024


class RandomTokens:
    """Stands in for a tokenizer: random ids of the model's vocabulary."""

    def __init__(self, vocabulary: int) -> None:
        self.ids = torch.randint(vocabulary, (LENGTH,), generator=torch.Generator().manual_seed(0)).tolist()

    def __call__(self, text: str, **options: object) -> dict[str, list[int]]:
        return {"input_ids": self.ids}

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [f"t{index}" for index in ids]

    def batch_decode(self, batch: list[list[int]], **options: object) -> list[str]:
        return [f" t{ids[0]}" for ids in batch]


def median_seconds(work: Callable[[], object]) -> float:
    work()
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def main() -> None:
    torch.manual_seed(0)
    module = transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval()
    tokens = RandomTokens(module.config.vocab_size)
    model = Model(module, tokens, "gpt2-sized", None)
    ids = torch.tensor([tokens.ids])
    with torch.no_grad():
        forward = median_seconds(lambda: module.base_model(input_ids=ids, use_cache=False))
        with observed(module, lambda call: None):
            seen = median_seconds(lambda: module.base_model(input_ids=ids, use_cache=False))
    scanned = median_seconds(lambda: scan(model, Text("x", "random tokens")))
    result = {
        "benchmark": "scan",
        "model": {"layers": 12, "heads": 12, "length": LENGTH},
        "threads": torch.get_num_threads(),
        "plain_forward_seconds": round(forward, 4),
        "observed_forward_ratio": round(seen / forward, 3),
        "scan_ratio": round(scanned / forward, 3),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
