"""Timing relative to the model's plain forward, in a separate process, and the models of the benchmarks."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

from attnscope.errors import InputError, parameter, whole_number

TINY = {"length": 160, "layers": 1, "heads": 2, "width": 16}
ENOUGH = 60.0  # seconds after which a subject is not repeated
_LITTLE = 20.0  # seconds up to which it is repeated more often than requested, and how many times at most
_MORE = 4
_VOCABULARY = 50257  # of GPT-2
_IMPORTED = ("transformers.models.gpt2.modeling_gpt2", "attnscope.scanning")


def check_size(length: int, layers: int, heads: int, width: int, repeats: int) -> None:
    """Raise InputError for a GPT-2-like model that cannot be built, or that does not fit into memory."""
    for name, value in {"length": length, "layers": layers, "heads": heads, "width": width, "repeats": repeats}.items():
        whole_number(name, value, 2 if name == "length" else 1)
    if width % heads:
        raise InputError(
            f"{parameter('width')} must be a multiple of {parameter('heads')}; received {width} and {heads}"
        )
    weights = 4 * width * (12 * layers * width + _VOCABULARY + length)
    refuse_beyond_memory(weights, f"a model of {layers} layers, width {width} and {length} positions")


def refuse_beyond_memory(needed: int, what: str) -> None:
    """Raise InputError if `what` needs more memory than this machine has, if that is known."""
    try:
        present = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return
    if needed > present:
        raise InputError(
            f"{what} would need {needed / 2**30:,.1f} GiB of memory, but only {present / 2**30:,.1f} GiB exist: choose "
            "smaller numbers"
        )


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


def built(place: dict[str, int]) -> tuple[Any, list[int]]:
    """A model and its tokens: the sample, or GPT-2-like with random weights."""
    from attnscope.capture.models import Model, load_model
    from attnscope.capture.text import read_text, tokenize

    if place.get("sample"):
        sample = load_model(None)
        tokens: Any = RandomTokens(2, 1)
        tokens.ids = tokenize(sample.tokenizer, read_text(None))[: min(place["length"], sample.positions or 2**62)]
        return Model(sample.module, tokens, sample.name, None), tokens.ids
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_positions=place["length"], n_layer=place["layers"], n_head=place["heads"], n_embd=place["width"]
    )
    module = transformers.GPT2LMHeadModel(config).eval()
    tokens = RandomTokens(config.vocab_size, place["length"])
    return Model(module, tokens, "gpt2-sized", None), tokens.ids


def plain_forward(model: Any, ids: list[int]) -> Callable[[], object]:
    """The model without its language head on these tokens."""
    inputs = torch.tensor([ids])

    def forward() -> object:
        with torch.no_grad():
            return model.module.base_model(input_ids=inputs, use_cache=False)

    return forward


def in_own_process(work: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function in a separate process with as many threads as this one.

    All processes are forked from one that has only imported what they need: importing takes longer than many subjects.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.scan", *_IMPORTED])
    with context.Pool(1, torch.set_num_threads, (torch.get_num_threads(),)) as process:
        return process.apply(work, arguments)


def run_again(runs: list[float], repeats: int) -> bool:
    """Whether a subject that took these seconds is run once more."""
    if len(runs) < repeats:
        return not runs or sum(runs) < ENOUGH
    return len(runs) < _MORE * repeats and sum(runs) < _LITTLE


def relative_times(runs: list[float], forwards: list[float]) -> dict[str, Any]:
    """Runs and the forwards before, between and after them."""
    around = [(before + after) / 2 for before, after in pairwise(forwards)]
    ratios = [round(own / other, 3) for own, other in zip(runs, around, strict=True)]
    return {
        "seconds": round(statistics.median(runs), 6),
        "forward_seconds": round(statistics.median(forwards), 6),
        "time_ratio": round(statistics.median(ratios), 3),
        "time_ratios": ratios,
    }


def seconds_of(call: Callable[[], object]) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
