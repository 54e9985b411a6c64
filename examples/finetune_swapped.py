"""Fine-tune the embedded model with another normalizer swapped in: loss and capacity before and after.

    python examples/finetune_swapped.py --steps 40

Learnable forms are used where they exist (ssmax learns s and lipmax learns kappa, one number per head); entmax15 has no
parameters. The model's weights are trained as well. A few windows, spread over the text, are held out, and all results
are measured on them. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from typing import Any

import torch

import attnscope
from attnscope.capture.models import load_model
from attnscope.capture.text import Text, read_text, tokenize
from attnscope.normalizers import LearnedLipmax, LearnedSSMax
from attnscope.store.tables import within_support

SUBJECTS: dict[str, Any] = {"softmax": None, "ssmax": LearnedSSMax, "entmax15": "entmax15", "lipmax": LearnedLipmax}


def held_out_loss(module: Any, windows: list[torch.Tensor]) -> float:
    """The mean loss over the held-out windows."""
    module.eval()
    with torch.no_grad():
        return sum(float(module(input_ids=w[None], labels=w[None]).loss) for w in windows) / len(windows)


def capacity(model: Any, text: Text, length: int) -> dict[str, Any]:
    """Mean separability of the top 20 at the end of a held-out window, in the rows where 20 keys have weight."""
    result = attnscope.scan(model, text, lengths=[length], top_n=[20])
    separability = within_support(result.rows, result.topn)["separability"]
    return {"separability": separability.mean(), "defined": separability.count() / len(separability)}


def finetune(subject: str, steps: int, length: int, rate: float, seed: int, held_out: int = 4) -> dict[str, Any]:
    """Train the model with one normalizer swapped in, and measure it before and after."""
    torch.manual_seed(seed)
    draws = random.Random(seed)
    model = load_model()
    module: Any = model.module
    content = read_text(None)
    tokens = tokenize(model.tokenizer, content)
    windows = [torch.tensor(tokens[i : i + length]) for i in range(0, len(tokens) - length + 1, length)]
    held_out_indices = sorted({(2 * i + 1) * len(windows) // (2 * held_out) for i in range(held_out)})
    held_out_windows = [windows[i] for i in held_out_indices]
    training_windows = [window for i, window in enumerate(windows) if i not in held_out_indices]
    held_out_text = Text(model.tokenizer.decode(torch.cat(held_out_windows)), "windows of the sample text")
    normalizer = SUBJECTS[subject]
    change = None if normalizer is None else attnscope.swap(module, normalizer)

    def measures() -> dict[str, Any]:
        return {"loss": held_out_loss(module, held_out_windows), **capacity(model, held_out_text, length)}

    before = measures()
    new = [] if change is None else change.parameters
    old = [p for p in module.parameters() if not any(p is q for q in new)]
    groups = [{"params": old, "lr": rate}] + ([{"params": new, "lr": 30 * rate}] if new else [])
    optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
    started = time.perf_counter()
    for _ in range(steps):
        module.train()
        batch = torch.stack(draws.sample(training_windows, min(4, len(training_windows))))
        optimizer.zero_grad()
        module(input_ids=batch, labels=batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
    seconds = time.perf_counter() - started
    learned = [float(x) for p in new for x in p.detach().flatten()]
    return {
        "normalizer": subject,
        "before": before,
        "after": measures(),
        "learned_range": [min(learned), max(learned)] if learned else None,
        "train_seconds": round(seconds, 1),
    }


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    """Fine-tune with each normalizer and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=list(SUBJECTS), choices=list(SUBJECTS))
    chosen = parser.parse_args(arguments)
    results = []
    for subject in chosen.only:
        print(f"  {subject}", file=sys.stderr)
        results.append(finetune(subject, chosen.steps, chosen.length, chosen.rate, chosen.seed))
    print(json.dumps({"steps": chosen.steps, "length": chosen.length, "results": results}))
    return results


if __name__ == "__main__":
    main()
