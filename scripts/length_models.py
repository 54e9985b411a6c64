#!/usr/bin/env python3
"""Small language models trained at 256 tokens with each normalizer, and tested at up to 2,048.

    python scripts/length_models.py --out runs/length-models --steps 1000 --seeds 3

A causal model of 4 layers x 4 heads and width 128 on CPython's documentation, with the tokenizer, optimizers and
copied passages of the sample model. The recipe is the same for every normalizer; learned forms are used where they
exist. Decisions:

- Layers with rotary positions that see 4 tokens, and layers without positions that see all, take turns. Rotary
  positions beyond those of training fail by themselves, whatever the normalizer; with these layers no distance is new
  at a longer length, so what changes is the number of keys. With 32 tokens instead of 4 no induction head formed in
  550 steps.
- Windows grow from 32 to 256 tokens, and a part of them are random tokens that repeat after a period, first a short
  one. In 700 steps at 256 tokens alone no induction head formed, and without one there is no recall to be lost.
- The learning rates are the same for all; the parameters of a normalizer learn 10 times faster than other vectors.

Test windows are held-out documents, the same for all models, of 2,048 tokens: loss by position, and the share of
repeated rare pairs that are predicted. A pair of tokens is such if it occurs at most 20 times in the training text and
occurred earlier in the window: a name of the document. Copying is the share of tokens that are predicted in the second
half of a window of random tokens whose halves are the same, for windows of each length. Jacobian norms, weights and
entropies are those of `attnscope.scan` at each length; the states of heads those of `attnscope.diagnose`, or the reason
why there are none.

Each finished model is a line of results.jsonl; the same command goes on after the last. What it can show: whether loss
and recall of such a model hold beyond its training length, and how that depends on the normalizer. What it cannot:
anything about models that are large, trained for long, or on other text.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch.nn import functional
from transformers import SmolLM3Config, SmolLM3ForCausalLM

import attnscope
from attnscope import normalizers as nz
from attnscope.capture.models import Model, load_model
from attnscope.capture.text import Text

sys.path.insert(0, str(Path(__file__).resolve().parent / "sample_model"))
from batches import UNPREDICTABLE, Stage, batch
from corpus import documents, split
from muon import Muon
from train import EMBEDDING_DEVIATION

NORMALIZERS: dict[str, Any] = {
    "softmax": None,
    "ssmax": nz.LearnedSSMax,
    "power_softmax": nz.LearnedPowerSoftmax,
    "entmax15": "entmax15",
    "asentmax": nz.LearnedASEntmax,
    "lipmax": nz.LearnedLipmax,
    "lipmix": nz.LearnedLipmix,
}
LENGTH, LENGTHS = 256, (256, 512, 1024, 2048)
LOCAL = 4  # tokens that a layer with rotary positions sees
TOKENS, WARM_UP = 2048, 40  # of each step; steps
MATRIX_RATE, OTHER_RATE = 8e-3, 2e-3
# Share of the steps, window, share of windows with repeated random tokens, longest period of the repetition.
STAGES = ((0.35, 32, 0.6, 12), (0.15, 64, 0.5, 32), (0.15, 128, 0.3, 64), (0.35, LENGTH, 0.25, LENGTH // 2))
RARE = 20
TESTED = 16  # windows
COPIES = 8  # windows of repeated random tokens


def new_model(vocabulary: int, seed: int) -> Any:
    """The model before training; its output embedding starts at zero."""
    torch.manual_seed(seed)
    config = SmolLM3Config(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=max(LENGTHS),
        attention_bias=True,
        use_sliding_window=True,
        sliding_window=LOCAL,
        layer_types=["sliding_attention", "full_attention"] * 2,
        no_rope_layers=[1, 0] * 2,  # 1: with rotary positions
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
    )
    module = SmolLM3ForCausalLM(config)
    torch.nn.init.normal_(module.model.embed_tokens.weight, std=EMBEDDING_DEVIATION)
    torch.nn.init.zeros_(module.lm_head.weight)
    return module


def encode(tokenizer: Any, texts: dict[str, str]) -> torch.Tensor:
    """The tokens of all texts in one row."""
    return torch.tensor([token for text in texts.values() for token in tokenizer(text)["input_ids"]])


def optimizers(module: Any, learned: list[Any]) -> dict[torch.optim.Optimizer, float]:
    """The optimizers with their learning rates."""
    fast = {id(parameter) for parameter in learned}
    named = [(name, one) for name, one in module.named_parameters() if id(one) not in fast]
    matrices = [one for name, one in named if ".layers." in name and one.ndim == 2]
    others = [one for name, one in named if ".layers." not in name or one.ndim != 2]
    chosen: dict[torch.optim.Optimizer, float] = {
        Muon(matrices, lr=MATRIX_RATE, weight_decay=0.05): MATRIX_RATE,
        torch.optim.AdamW(others, lr=OTHER_RATE, weight_decay=0.01, betas=(0.9, 0.95)): OTHER_RATE,
    }
    if learned:
        chosen[torch.optim.AdamW(learned, weight_decay=0.0, betas=(0.9, 0.95))] = 10 * OTHER_RATE
    return chosen


def train(module: Any, learned: list[Any], tokens: torch.Tensor, steps: int, seed: int) -> float:
    """Train in place; returns the mean loss of the last tenth of the steps."""
    chosen = optimizers(module, learned)
    generator = torch.Generator().manual_seed(seed)
    losses = []
    module.train()
    for share, window, repeated, period in STAGES:
        stage = Stage(0, window, TOKENS, repeated, period, (1, 1), 0, 1)
        count = round(share * steps)
        for step in range(count):
            windows, labels = batch(tokens, module.config.vocab_size, stage, generator)
            logits = module(input_ids=windows, use_cache=False).logits
            loss = functional.cross_entropy(
                logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=UNPREDICTABLE
            )
            loss.backward()
            torch.nn.utils.clip_grad_norm_([*module.parameters(), *learned], 1.0)
            decay = 0.5 * (1 + math.cos(math.pi * step / count)) if window == LENGTH else 1.0
            for optimizer, rate in chosen.items():
                optimizer.param_groups[0]["lr"] = rate * decay * min(1.0, (step + 1) / WARM_UP)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(float(loss.detach()))
    module.eval()
    last = losses[-max(1, steps // 10) :]
    return sum(last) / len(last)


@torch.no_grad()
def copying(module: Any) -> dict[int, float]:
    """For windows of each length, the share of tokens predicted in the second half, which repeats the first."""
    generator = torch.Generator().manual_seed(1)
    found = {}
    for length in LENGTHS:
        half = torch.randint(1, module.config.vocab_size, (COPIES, length // 2), generator=generator)
        windows = torch.cat([half, half], -1)
        guesses = torch.cat([module(input_ids=one[None], use_cache=False).logits.argmax(-1) for one in windows])
        found[length] = float((guesses[:, length // 2 : -1] == half[:, 1:]).double().mean())
    return found


def repeated_rare_pairs(window: list[int], counts: Counter[tuple[int, int]]) -> list[bool]:
    """For each token, whether it ends a pair that is rare in the training text and occurred earlier in the window."""
    seen: set[tuple[int, int]] = set()
    found = [False]
    for pair in pairwise(window):
        found.append(pair in seen and counts[pair] <= RARE)
        seen.add(pair)
    return found


@torch.no_grad()
def test(module: Any, windows: torch.Tensor, counts: Counter[tuple[int, int]]) -> list[dict[str, Any]]:
    """Loss, and recall of repeated rare pairs, in the positions between one length and the next."""
    losses, right, asked = [], [], []
    for window in windows:
        logits = module(input_ids=window[None], use_cache=False).logits[0, :-1].float()
        losses.append(functional.cross_entropy(logits, window[1:], reduction="none"))
        right.append(logits.argmax(-1) == window[1:])
        asked.append(torch.tensor(repeated_rare_pairs(window.tolist(), counts)[1:]))
    loss, hits, names = (torch.stack(one) for one in (losses, right, asked))
    found = []
    for first, last in zip((0, *LENGTHS), LENGTHS, strict=False):
        part = slice(first, last - 1)
        count = int(names[:, part].sum())
        recalled = int((hits[:, part] & names[:, part]).sum()) / count if count else None
        mean = float(loss[:, part].mean())
        found.append({"from": first, "to": last, "loss": mean, "repeated_pairs": count, "recall": recalled})
    return found


def heads(model: Model, text: Text) -> dict[str, Any]:
    """Columns of a scan at each length, medians over heads, and the states of heads at the training length."""
    rows = attnscope.scan(model, text, lengths=list(LENGTHS), top_n=[20], progress=False).rows
    names = ["jacobian_norm", "max_weight", "entropy_ratio", "support"]
    medians = rows.group_by("length").agg(pl.col(names).median()).sort("length").to_dicts()
    try:
        states = attnscope.diagnose(model, text, windows=2, length=LENGTH, progress=False).heads["state"]
        labels: Any = dict(Counter(states.to_list()))
    except attnscope.AttnscopeError as error:
        labels = f"not available: {error}"
    return {"medians": medians, "largest_jacobian_norm": rows["jacobian_norm"].max(), "states": labels}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=list(NORMALIZERS), choices=list(NORMALIZERS))
    chosen = parser.parse_args(arguments)
    chosen.out.mkdir(parents=True, exist_ok=True)
    results = chosen.out / "results.jsonl"
    lines = results.read_text("utf-8").splitlines() if results.is_file() else []
    keys = ("normalizer", "seed", "steps")
    finished = {tuple(json.loads(line)[key] for key in keys) for line in lines}
    tokenizer = load_model(None).tokenizer
    training, held_out = split(documents())
    tokens, tests = encode(tokenizer, training), encode(tokenizer, held_out)
    counts = Counter(zip(tokens[:-1].tolist(), tokens[1:].tolist(), strict=True))
    windows = tests[: len(tests) // max(LENGTHS) * max(LENGTHS)].view(-1, max(LENGTHS))[:TESTED]
    text = Text("\n\n".join(held_out.values()), "held-out documentation")
    for seed in range(chosen.first_seed, chosen.first_seed + chosen.seeds):
        for name in chosen.only:
            if (name, seed, chosen.steps) in finished:
                continue
            started = time.process_time()
            module = new_model(len(tokenizer), seed)
            change = None if NORMALIZERS[name] is None else attnscope.swap(module, NORMALIZERS[name])
            learned = [] if change is None else list(change.parameters)
            loss = train(module, learned, tokens, chosen.steps, seed)
            line = {"normalizer": name, "seed": seed, "steps": chosen.steps}
            line |= {"training_loss": loss, "windows": len(windows), "by_position": test(module, windows, counts)}
            line |= {"copying": copying(module)}
            line |= heads(Model(module, tokenizer, f"{name}-{seed}", None), text)
            line |= {"learned": [parameter.tolist() for parameter in learned]}
            line |= {"processor_seconds": round(time.process_time() - started, 1)}
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
