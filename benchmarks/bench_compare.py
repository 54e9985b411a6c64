"""The price of comparing six normalizers in what-if mode, as a ratio to one scan, in one run.

    python benchmarks/bench_compare.py

Prints one JSON object. A GPT-2-sized model with random weights, one window of 1,024 tokens, six lengths.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import torch
import transformers

from attnscope.capture.models import Model
from attnscope.capture.text import Text
from attnscope.experiments.compare import DEFAULT_NORMALIZERS, compare
from attnscope.scanning import scan

REPEATS = 3
LENGTH = 1024


class RandomTokens:
    """Stands in for a tokenizer: random ids of the model's vocabulary."""

    def __init__(self, vocabulary: int) -> None:
        self.ids = torch.randint(vocabulary, (LENGTH,), generator=torch.Generator().manual_seed(0)).tolist()

    def __call__(self, text: str, **options: object) -> dict[str, list[int]]:
        return {"input_ids": self.ids}


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    torch.manual_seed(0)
    module = transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval()
    model = Model(module, RandomTokens(module.config.vocab_size), "gpt2-sized", None)
    text = Text("x", "random tokens")

    def compared(names: tuple[str, ...]) -> None:
        compare(model, text, names, modes=["what-if"])

    compared(DEFAULT_NORMALIZERS)
    ratios, same = [], []
    for _ in range(REPEATS):
        one = seconds(lambda: scan(model, text))
        one_set = seconds(lambda: scan(model, text, top_n=[20]))
        six = seconds(lambda: compared(DEFAULT_NORMALIZERS))
        ratios.append(six / one)
        same.append(six / one_set)
    print(
        json.dumps(
            {
                "benchmark": "compare",
                "model": {"layers": 12, "heads": 12, "length": LENGTH},
                "normalizers": list(DEFAULT_NORMALIZERS),
                "threads": torch.get_num_threads(),
                "what_if_to_scan": round(statistics.median(ratios), 3),
                "what_if_to_scan_of_one_top_set": round(statistics.median(same), 3),
            }
        )
    )


if __name__ == "__main__":
    main()
