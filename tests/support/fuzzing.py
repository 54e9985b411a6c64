"""Load mutated checkpoints: each ends in an `AttnscopeError`, or in a model whose weights are all its files'.

Run for a few seconds by tests/hostile/test_fuzzed_checkpoints.py, longer by scripts/fuzz_checkpoints.
"""

from __future__ import annotations

import random
import resource
import shutil
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from checkpoints import mutate_gguf, mutate_json, mutate_safetensors, write_gguf
from models import build, byte_tokenizer

import attnscope
from attnscope.capture.models import load_model
from attnscope.errors import AttnscopeError

TEXT = "The quick brown fox jumps over the lazy dog; 0123456789. " * 3
MUTATIONS = {
    "config.json": mutate_json,
    "model.safetensors": mutate_safetensors,
    "model.safetensors.index.json": mutate_json,
    "tokenizer.json": mutate_json,
    "tokenizer_config.json": mutate_json,
    "model.gguf": mutate_gguf,
}
MOST_SECONDS = 20.0  # for one checkpoint; a loop over a count in a file would take hours
MOST_BYTES = 2**30  # by which the process may grow


def write_originals(folder: Path) -> dict[str, Path]:
    """Intact checkpoints by name: three folders and a GGUF file."""
    originals = {}
    for name, family, options in (
        ("gpt2", "gpt2", {}),
        ("llama", "llama-gqa", {}),
        ("bert", "bert", {}),
        ("shards", "gpt2", {"max_shard_size": "40KB"}),
    ):
        originals[name] = folder / name
        build(family).save_pretrained(originals[name], **options)
        byte_tokenizer(special=family == "bert").save_pretrained(originals[name])
    (folder / "gguf").mkdir()
    write_gguf(folder / "gguf" / "model.gguf")
    return originals | {"gguf": folder / "gguf"}


def fuzz(work: Path, seed: int, seconds: float = float("inf"), most: int | None = None) -> Counter[str]:
    """Try mutations until the time or the number is used up; counts how they ended. A failure names its seed."""
    originals = write_originals(work / "originals")
    ends: Counter[str] = Counter()
    started, memory, number = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 0
    while time.monotonic() - started < seconds and (most is None or number < most):
        rng = random.Random(f"{seed}-{number}")
        original = originals[rng.choice(sorted(originals))]
        folder = work / "mutated"
        shutil.copytree(original, folder)
        file = rng.choice([name for name in MUTATIONS if (folder / name).is_file()])
        (folder / file).write_bytes(MUTATIONS[file]((folder / file).read_bytes(), rng))
        begun = time.monotonic()
        try:
            ends[_end(folder)] += 1
        except BaseException as error:
            error.add_note(f"seed {seed}, number {number}: {original.name}/{file}")
            raise
        taken = time.monotonic() - begun
        assert taken < MOST_SECONDS, f"seed {seed}, number {number}: {original.name}/{file} took {taken:.0f} s"
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) * 1024
        assert grown < MOST_BYTES, f"seed {seed}, number {number}: {original.name}/{file} took {grown} bytes"
        shutil.rmtree(folder)
        number += 1
    return ends


def _end(folder: Path) -> str:
    name = str(folder / "model.gguf") if (folder / "model.gguf").is_file() else str(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of transformers, about settings that it repairs
        message = ""
        try:
            once, again = (_weights(name, seed) for seed in (1, 2))
            attnscope.scan(name, TEXT, length=8, top_n=[2])
        except AttnscopeError as error:
            message = str(error)
    if message:
        assert "\n" not in message, message
        return "refused"
    random_weights = [key for key in once if not torch.equal(once[key].nan_to_num(), again[key].nan_to_num())]
    assert not random_weights, f"{random_weights[0]} is random"
    return "loaded"


def _weights(name: str, seed: int) -> dict[str, Any]:
    """The weights after loading under a seed: those that are not read from the files differ by seed."""
    torch.manual_seed(seed)
    model = load_model(name)
    missing = set(model.unused_weights)
    return {key: tensor for key, tensor in model.module.state_dict().items() if key not in missing}
