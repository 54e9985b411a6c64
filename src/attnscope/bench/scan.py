"""The price of a scan: time and peak memory beside the model's plain forward pass, in one run.

Decisions:

- every subject runs in a process of its own on the same model and tokens: after one warm-up, rounds of a plain forward
  and then the subject; the median of these paired ratios is reported, so what else runs meets both alike;
- peak memory is what the process's high-water mark (VmHWM in /proc/self/status, reset through /proc/self/clear_refs)
  rises above its size just before, in a single run after the warm-up; it is missing where the system has no such files;
- the naive way asks the model for all its attention matrices and computes the columns of `topn.parquet` and
  `rows.parquet` from their definitions, row block by row block in torch (`bench/naive.py`);
- TransformerLens and nnsight, where installed, only capture weights and values; they compute no column.
"""

from __future__ import annotations

import gc
import importlib
import importlib.metadata
import importlib.util
import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from attnscope.errors import InputError

SUBJECTS = ("last", "all", "naive", "transformer_lens", "nnsight")
PACKAGES = {"transformer_lens": "transformer-lens", "nnsight": "nnsight"}
TOP_N = (1, 5, 10, 20, 100)
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class RandomTokens:
    """Stands in for a tokenizer: random ids of the model's vocabulary."""

    def __init__(self, vocabulary: int, length: int) -> None:
        self.ids = torch.randint(vocabulary, (length,), generator=torch.Generator().manual_seed(0)).tolist()

    def __call__(self, text: str, **options: object) -> dict[str, list[int]]:
        """The same ids, whatever the text."""
        return {"input_ids": self.ids}

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        """Names for the report."""
        return [f"t{index}" for index in ids]

    def batch_decode(self, batch: list[list[int]], **options: object) -> list[str]:
        """Texts for the report."""
        return [f" t{ids[0]}" for ids in batch]


def measure(
    length: int = 1024,
    layers: int = 12,
    heads: int = 12,
    width: int = 768,
    rows: int | None = None,
    repeats: int = 3,
    subjects: Sequence[str] | None = None,
    sample: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Time and memory of each subject on a GPT-2-like model with random weights, or on the embedded sample.

    `rows` adds a subject that scans so many rows, spread evenly: the one for long contexts.
    """
    chosen = list(SUBJECTS if subjects is None else subjects) + ([] if rows is None else [f"rows={rows}"])
    unknown = [name for name in chosen if name not in SUBJECTS and not name.startswith("rows=")]
    if unknown:
        raise InputError(f"no benchmark is named {', '.join(unknown)}: choose from {', '.join(SUBJECTS)}")
    if min(length - 1, layers, heads, repeats, 1 if rows is None else rows) < 1 or width % heads:
        raise InputError(
            f"length must be at least 2, layers, heads, rows and repeats positive and width a multiple of heads; "
            f"received {length}, {layers}, {heads}, {rows}, {repeats}, {width}"
        )
    size = {"length": length, "layers": layers, "heads": heads, "width": width}
    results = []
    for name in chosen:
        if name in PACKAGES and importlib.util.find_spec(name) is None:
            results.append({"subject": name, "installed": False})
            continue
        progress(name)
        with multiprocessing.get_context("spawn").Pool(1) as process:
            results.append(process.apply(_measure_one, (name, size, sample, repeats)))
    return {
        "benchmark": "scan",
        "model": "sample" if sample else size,
        "top_n": list(TOP_N),
        "repeats": repeats,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "results": results,
    }


def _measure_one(name: str, size: dict[str, int], sample: bool, repeats: int) -> dict[str, Any]:
    """In a process of its own: a subject beside the plain forward."""
    from attnscope.capture.models import Model, load_model
    from attnscope.capture.text import read_text, tokenize

    if sample:
        model = load_model(None)
        length = min(size["length"], model.positions or size["length"])
        tokens: Any = RandomTokens(2, 1)
        tokens.ids = tokenize(model.tokenizer, read_text(None))[:length]
    else:
        import transformers

        torch.manual_seed(0)
        config = transformers.GPT2Config(
            n_positions=size["length"], n_layer=size["layers"], n_head=size["heads"], n_embd=size["width"]
        )
        module = transformers.GPT2LMHeadModel(config).eval()
        tokens = RandomTokens(module.config.vocab_size, size["length"])
        model = Model(module, tokens, "gpt2-sized", None)
    model = Model(model.module, tokens, model.name, None)
    run = _subject(name, model, tokens.ids)
    inputs = torch.tensor([tokens.ids])

    def forward() -> None:
        with torch.no_grad():
            model.module.base_model(input_ids=inputs, use_cache=False)

    forward()
    run()
    forwards, runs = [], []
    for _ in range(repeats):
        forwards.append(_time(forward))
        runs.append(_time(run))
    memory, forward_memory = _peak(run), _peak(forward)
    return {
        "subject": name,
        "installed": True,
        "version": importlib.metadata.version(PACKAGES[name]) if name in PACKAGES else None,
        "seconds": round(statistics.median(runs), 4),
        "forward_seconds": round(statistics.median(forwards), 4),
        "time_ratio": round(statistics.median(a / b for a, b in zip(runs, forwards, strict=True)), 3),
        "peak_bytes": memory,
        "forward_peak_bytes": forward_memory,
        "memory_ratio": None if not (memory and forward_memory) else round(memory / forward_memory, 3),
    }


def _subject(name: str, model: Any, ids: list[int]) -> Callable[[], object]:
    from attnscope.bench import naive
    from attnscope.capture.text import Text
    from attnscope.scanning import scan

    text = Text("x", "random tokens")
    top_n = [n for n in TOP_N if n < len(ids)]
    if name == "transformer_lens":
        return naive.capture_with_transformer_lens(model.module, ids)
    if name == "nnsight":
        return naive.capture_with_nnsight(model.module, ids)
    if name == "naive":
        return lambda: naive.scan_all(model.module, ids, top_n)
    rows: Any = int(name.removeprefix("rows=")) if name.startswith("rows=") else name
    return lambda: scan(model, text, length=len(ids), top_n=top_n, rows=rows)


def _time(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _peak(call: Callable[[], object]) -> int | None:
    """Bytes by which a call raises the process's resident size at its highest."""
    if not (_STATUS.exists() and _CLEAR.exists()):
        return None
    gc.collect()
    _CLEAR.write_text("5")
    before = _status("VmRSS")
    call()
    return max(0, _status("VmHWM") - before)


def _status(field: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(f"{field}:"))
    return 1024 * int(line.split()[1])
