"""The price of a scan: time and peak memory beside the model's plain forward pass, in one run.

Decisions:

- every subject is timed in a process of its own on the same model and tokens: after a warm-up, plain forwards and the
  subject in turn; each run is divided by the mean of the forwards before and after it, and the median of these ratios
  is reported, so what else happens on the machine meets both alike. What takes seconds is run up to four times as often
  as asked, as single ratios differ by a tenth on a shared machine, and nothing is repeated after a minute;
- `last` and `all` measure the default columns of the last or of all rows, `+bounds` the paper's bounds too;
- peak memory is measured in further processes, one for each subject and one for the plain forward: code is loaded by a
  run on a tiny model, then the model is built, and a single run raises the resident size (`bench/resident.py`);
- `first` is the command `attnscope scan` on the embedded model as on a new machine: no loop has been compiled;
- the naive way asks the model for all its attention matrices and computes the columns of `topn.parquet` and
  `rows.parquet` from their definitions, row block by row block in torch (`bench/naive.py`). All heads of a large model
  would take it many minutes: heads are timed until a minute is spent (`heads_timed`), and the others, whose shapes are
  the same, counted like them. Its peak memory is taken with a single head, without the columns of the others;
- TransformerLens and nnsight, where installed, only capture weights and values (`bench/peers.py`).
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch

from attnscope.bench.memory import refuse_beyond_memory
from attnscope.bench.peers import PACKAGES
from attnscope.bench.resident import resident_peak, run_with_plain_allocator
from attnscope.errors import InputError
from attnscope.planning import whole_number

SUBJECTS = ("last", "last+bounds", "all", "all+bounds", "first", "naive", "transformer_lens", "nnsight")
MODELS = ("random", "sample")
TOP_N = (1, 5, 10, 20, 100)
_FORWARD = "forward"
_TINY = {"length": 160, "layers": 1, "heads": 2, "width": 16}
_IMPORTED = ("transformers.models.gpt2.modeling_gpt2", "attnscope.scanning")
_VOCABULARY = 50257  # of GPT-2
_ENOUGH = 60.0  # seconds after which a subject is not repeated
_LITTLE = 20.0  # seconds up to which it is repeated more often than asked, at most so many times
_MORE = 4


class RandomTokens:
    """Stands in for a tokenizer: random ids of the model's vocabulary."""

    bos_token_id = None

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
    models: Sequence[str] = MODELS,
    shorter: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Time and memory of each subject on a GPT-2-like model with random weights and on the embedded sample.

    `rows` adds a subject that scans so many rows, spread evenly: the one for long contexts. With `shorter`, peak memory
    is also measured at that length, to see how it grows.
    """
    chosen = list(SUBJECTS if subjects is None else subjects) + ([] if rows is None else [f"rows={rows}"])
    _refuse(chosen, models, length, layers, heads, width, rows, repeats, shorter)
    size = {"length": length, "layers": layers, "heads": heads, "width": width}
    results = []
    for model in models:
        place = size | {"sample": int(model == "sample")}
        there = [name for name in chosen if name not in PACKAGES or importlib.util.find_spec(name) is not None]
        progress(f"{model}: memory")
        peaks = {name: _peaks(name, place, shorter) for name in [_FORWARD, *there] if name != "first"}
        for name in chosen:
            if name == "first" and model != "sample":
                continue
            if name not in there:
                results.append({"model": model, "subject": name, "installed": False})
                continue
            progress(f"{model}: {name}")
            if name == "first":
                results.append({"model": model, "subject": name, "installed": True} | _first_scan())
                continue
            version = importlib.metadata.version(PACKAGES[name]) if name in PACKAGES else None
            found = {"model": model, "subject": name, "installed": True, "version": version}
            results.append(found | _alone(_times, name, place, repeats) | _memory(peaks[name], peaks[_FORWARD]))
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
    for name, value in {"length": length, "layers": layers, "heads": heads, "width": width, "repeats": repeats}.items():
        whole_number(f"--{name}", value)
    if length < 2 or (rows is not None and rows < 1) or width % heads:
        raise InputError(
            f"length must be at least 2, layers, heads, rows and repeats positive and width a multiple of heads; "
            f"received {length}, {layers}, {heads}, {rows}, {repeats}, {width}"
        )
    weights = 4 * width * (12 * layers * width + _VOCABULARY + length)
    refuse_beyond_memory(weights, f"a model of {layers} layers, width {width} and {length} positions")
    if shorter is not None and not 2 <= shorter < length:
        raise InputError(f"the shorter length must be from 2 up and below {length}; received {shorter}")


def _naive_over_all(results: list[dict[str, Any]], model: str) -> float | None:
    """How many times longer the naive way takes than our scan of the same rows and columns."""
    seconds = {entry["subject"]: entry.get("seconds") for entry in results if entry["model"] == model}
    naive, ours = seconds.get("naive"), seconds.get("all+bounds")
    return round(naive / ours, 1) if naive and ours else None


def _peaks(name: str, place: dict[str, int], shorter: int | None) -> list[int | None]:
    """Peak memory of a subject at the full length, and at the shorter one."""
    lengths = [place["length"]] if shorter is None else [place["length"], shorter]
    sizes = [place | {"length": length, "name": name, "threads": torch.get_num_threads()} for length in lengths]
    return [run_with_plain_allocator(__name__, size) for size in sizes]


def _memory(own: list[int | None], forward: list[int | None]) -> dict[str, Any]:
    def ratio(above: int | None, below: int | None) -> float | None:
        return None if above is None or not below else round(above / below, 3)

    found = {"peak_bytes": own[0], "forward_peak_bytes": forward[0], "memory_ratio": ratio(own[0], forward[0])}
    if len(own) == 1:
        return found
    return found | {
        "shorter_peak_bytes": own[1],
        "shorter_forward_peak_bytes": forward[1],
        "growth": ratio(*own),
        "forward_growth": ratio(*forward),
    }


def _alone(work: Callable[..., Any], *arguments: Any) -> Any:
    """The answer of a process of its own, with as many threads as this one.

    All are forked from one that has only imported what they need: importing takes longer than many a subject.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["attnscope.bench.scan", *_IMPORTED])
    with context.Pool(1, torch.set_num_threads, (torch.get_num_threads(),)) as process:
        return process.apply(work, arguments)


def _times(name: str, place: dict[str, int], repeats: int) -> dict[str, Any]:
    """A subject beside the plain forward."""
    if name == "naive":
        return _naive_times(place)
    _subject(name, *_built(_TINY))()
    model, ids = _built(place)
    run, forward = _subject(name, model, ids), _subject(_FORWARD, model, ids)
    forward()
    run()
    forwards = [_time(forward)]
    runs: list[float] = []
    while _again(runs, repeats):
        runs.append(_time(run))
        forwards.append(_time(forward))
    return _beside(runs, forwards)


def _naive_times(place: dict[str, int]) -> dict[str, Any]:
    """The naive way, on as many heads as a minute allows, beside the plain forward."""
    from attnscope.bench import naive

    tiny, few = _built(_TINY)
    naive.timed(tiny.module, few, _sizes(few), 0)
    model, ids = _built(place)
    forward = _subject(_FORWARD, model, ids)
    forward()
    before = _time(forward)
    found = naive.timed(model.module, ids, _sizes(ids), _ENOUGH)
    return _beside([found.seconds], [before, _time(forward)]) | {"heads_timed": found.heads_timed}


def _beside(runs: list[float], forwards: list[float]) -> dict[str, Any]:
    """Runs and the forwards before, between and after them."""
    around = [(before + after) / 2 for before, after in pairwise(forwards)]
    ratios = [round(own / other, 3) for own, other in zip(runs, around, strict=True)]
    return {
        "seconds": round(statistics.median(runs), 4),
        "forward_seconds": round(statistics.median(forwards), 4),
        "time_ratio": round(statistics.median(ratios), 3),
        "time_ratios": ratios,
    }


def _again(runs: list[float], repeats: int) -> bool:
    """Whether a subject that took these seconds is run once more."""
    if len(runs) < repeats:
        return not runs or sum(runs) < _ENOUGH
    return len(runs) < _MORE * repeats and sum(runs) < _LITTLE


def _peak(name: str, place: dict[str, int]) -> int | None:
    """Bytes that a subject needs above the loaded model."""
    _subject(name, *_built(_TINY))()
    return resident_peak(_subject(name, *_built(place)))


def _first_scan() -> dict[str, Any]:
    """Seconds of the first scan on a machine: compiling included, with an empty cache of compiled loops."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "attnscope.cli", "scan", "--out", f"{folder}/run"]
        environment = os.environ | {"NUMBA_CACHE_DIR": f"{folder}/cache"}
        started = time.perf_counter()
        subprocess.run(command, env=environment, check=True, capture_output=True)
        return {"seconds": round(time.perf_counter() - started, 2)}


def _built(place: dict[str, int]) -> tuple[Any, list[int]]:
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


def _subject(name: str, model: Any, ids: list[int]) -> Callable[[], object]:
    from attnscope.bench import naive, peers
    from attnscope.capture.text import Text
    from attnscope.scanning import scan

    text = Text("x", "random tokens")
    if name == _FORWARD:
        inputs = torch.tensor([ids])

        def forward() -> object:
            with torch.no_grad():
                return model.module.base_model(input_ids=inputs, use_cache=False)

        return forward
    if name == "transformer_lens":
        return peers.capture_with_transformer_lens(model.module, ids)
    if name == "nnsight":
        return peers.capture_with_nnsight(model.module, ids)
    if name == "naive":
        return lambda: naive.timed(model.module, ids, _sizes(ids), 0)
    which, _, with_bounds = name.partition("+")
    rows: Any = int(which.removeprefix("rows=")) if which.startswith("rows=") else which
    bounds: Any = "paper" if with_bounds else None
    return lambda: scan(model, text, length=len(ids), top_n=_sizes(ids), rows=rows, bounds=bounds)


def _sizes(ids: list[int]) -> list[int]:
    return [n for n in TOP_N if n < len(ids)]


def _time(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    torch.set_num_threads(arguments.pop("threads"))
    print(json.dumps(_peak(arguments.pop("name"), arguments)))
