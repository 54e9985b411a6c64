#!/usr/bin/env python3
"""Small language models trained at 256 tokens with each normalizer, and tested at up to 2,048.

    python scripts/length_models.py --out runs/length-models --steps 2000 --seeds 3

A causal model of 4 layers x 4 heads and width 128 on CPython's documentation, with the tokenizer of the sample model,
the same recipe for every normalizer: AdamW, warm-up and cosine decay, 8 windows of 256 tokens in each step. Learned
forms are used where they exist. Decisions:

- No position encoding (`--positions none`): rotary positions beyond those of training fail by themselves, whatever the
  normalizer. With `--positions rope` that can be checked.
- The learning rate is the same for all; the parameters of a normalizer learn 10 times faster than the rest.
- Test windows are held-out documents, the same for all models, of 2,048 tokens: loss by position, and the share of
  repeated rare pairs that are predicted. A pair of tokens is such if it occurs at most 20 times in the training text
  and occurred earlier in the window: a name of the document.
- Jacobian norms, weights and entropies are those of `attnscope.scan` at each length; the states of heads those of
  `attnscope.diagnose`, or the reason why there are none.

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
from corpus import documents, split

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
BATCH, RATE, WARM_UP = 8, 2e-3, 100
RARE = 20
TESTED = 16  # windows


def new_model(vocabulary: int, positions: str, seed: int) -> Any:
    """The model before training."""
    torch.manual_seed(seed)
    config = SmolLM3Config(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=max(LENGTHS),
        no_rope_layers=[int(positions == "rope")] * 4,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return SmolLM3ForCausalLM(config)


def encode(tokenizer: Any, texts: dict[str, str]) -> torch.Tensor:
    """The tokens of all texts in one row."""
    return torch.tensor([token for text in texts.values() for token in tokenizer(text)["input_ids"]])


def train(module: Any, learned: list[Any], tokens: torch.Tensor, steps: int, seed: int) -> float:
    """Train in place; returns the mean loss of the last tenth of the steps."""
    fast = {id(parameter) for parameter in learned}
    slow = [parameter for parameter in module.parameters() if id(parameter) not in fast]
    groups = [{"params": slow, "base": RATE}] + ([{"params": learned, "base": 10 * RATE}] if learned else [])
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), weight_decay=0.01)
    generator = torch.Generator().manual_seed(seed)
    losses = []
    module.train()
    for step in range(steps):
        starts = torch.randint(len(tokens) - LENGTH, (BATCH,), generator=generator)
        batch = torch.stack([tokens[start : start + LENGTH] for start in starts.tolist()])
        decay = min(1.0, (step + 1) / WARM_UP) * 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = group["base"] * decay
        loss = module(input_ids=batch, labels=batch, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([*slow, *learned], 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
    module.eval()
    last = losses[-max(1, steps // 10) :]
    return sum(last) / len(last)


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
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--positions", choices=["none", "rope"], default="none")
    parser.add_argument("--only", nargs="*", default=list(NORMALIZERS), choices=list(NORMALIZERS))
    chosen = parser.parse_args(arguments)
    chosen.out.mkdir(parents=True, exist_ok=True)
    results = chosen.out / "results.jsonl"
    lines = results.read_text("utf-8").splitlines() if results.is_file() else []
    keys = ("normalizer", "seed", "steps", "positions")
    finished = {tuple(json.loads(line)[key] for key in keys) for line in lines}
    tokenizer = load_model(None).tokenizer
    training, held_out = split(documents())
    tokens, tests = encode(tokenizer, training), encode(tokenizer, held_out)
    counts = Counter(zip(tokens[:-1].tolist(), tokens[1:].tolist(), strict=True))
    windows = tests[: len(tests) // max(LENGTHS) * max(LENGTHS)].view(-1, max(LENGTHS))[:TESTED]
    text = Text("\n\n".join(held_out.values()), "held-out documentation")
    for seed in range(chosen.seeds):
        for name in chosen.only:
            if (name, seed, chosen.steps, chosen.positions) in finished:
                continue
            started = time.process_time()
            module = new_model(len(tokenizer), chosen.positions, seed)
            change = None if NORMALIZERS[name] is None else attnscope.swap(module, NORMALIZERS[name])
            learned = [] if change is None else list(change.parameters)
            loss = train(module, learned, tokens, chosen.steps, seed)
            line = {"normalizer": name, "seed": seed, "steps": chosen.steps, "positions": chosen.positions}
            line |= {"training_loss": loss, "windows": len(windows), "by_position": test(module, windows, counts)}
            line |= heads(Model(module, tokenizer, f"{name}-{seed}", None), text)
            line |= {"learned": [parameter.tolist() for parameter in learned]}
            line |= {"processor_seconds": round(time.process_time() - started, 1)}
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
