"""Train the embedded sample model from scratch on CPython's documentation.

    python scripts/sample_model/train.py --out src/attnscope/sample

A 6-layer, 6-head GPT-2 with its own byte-level BPE. Decisions:

- Full windows of 1,024 tokens in every step: on a CPU they cost no more than short ones.
- One window in `REPEATED_SHARE` ends in a copy of its first half, which was meant to help induction heads to form.
  It did not: the copy is always at the same distance, and the card's induction scores are zero.
- Muon for the matrices of the blocks, AdamW for embeddings, biases and gains.
  `torch.optim.Muon` orthogonalizes in bfloat16, which on a CPU without such instructions
  takes longer than the step itself; the version here uses float32.
- Half-precision weights on disk: the model fits in a wheel.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from corpus import documents, split
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

SEED = 20250821
VOCABULARY = 4096
CONTEXT = 1024
WINDOWS_PER_STEP = 4
STEPS = 1400
WARMUP_STEPS = 60
REPEATED_SHARE = 6
MATRIX_RATE = 3e-3
OTHER_RATE = 2e-3
END = "<|endoftext|>"
SAMPLE_TEXT_CHARACTERS = 150_000


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer, which can encode any text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=END, eos_token=END, model_max_length=CONTEXT)


def encode(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> torch.Tensor:
    """The tokens of all texts in one row, each text followed by the end token."""
    end: int = tokenizer.eos_token_id
    ids: list[int] = []
    for text in texts:
        ids += [*tokenizer(text)["input_ids"], end]
    return torch.tensor(ids)


def batch(tokens: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Random windows, some of which end in a copy of their first half."""
    starts = torch.randint(len(tokens) - CONTEXT, (WINDOWS_PER_STEP, 1), generator=generator)
    windows = tokens[starts + torch.arange(CONTEXT)]
    repeated = torch.randint(REPEATED_SHARE, (WINDOWS_PER_STEP,), generator=generator) == 0
    windows[repeated, CONTEXT // 2 :] = windows[repeated, : CONTEXT // 2]
    return windows


def rate(step: int) -> float:
    """The factor of the learning rate: linear warm-up, then a cosine decay to 5 %."""
    if step < WARMUP_STEPS:
        return (step + 1) / WARMUP_STEPS
    progress = (step - WARMUP_STEPS) / (STEPS - WARMUP_STEPS)
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress))


class Muon(torch.optim.Optimizer):
    """The Muon optimizer: momentum whose update is replaced by the nearest orthogonal matrix, in float32."""

    def __init__(self, matrices: Sequence[torch.Tensor], lr: float, weight_decay: float) -> None:
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay, "momentum": 0.95})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for matrix in group["params"]:
                momentum = self.state[matrix].setdefault("momentum", torch.zeros_like(matrix))
                momentum.lerp_(matrix.grad, 1 - group["momentum"])
                update = orthogonal(matrix.grad.lerp(momentum, group["momentum"]))
                # The root mean square of an AdamW update is about 0.2: one rate serves both.
                scale = 0.2 * max(matrix.shape) ** 0.5
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                matrix.sub_(update, alpha=group["lr"] * scale)


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """The nearest orthogonal matrix, by five Newton-Schulz steps with the quintic coefficients of Jordan (2024)."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.mT if tall else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.mT if tall else x


def optimizers(model: GPT2LMHeadModel) -> dict[torch.optim.Optimizer, float]:
    """The two optimizers with their base learning rates."""
    matrices = [p for n, p in model.named_parameters() if ".h." in n and p.ndim == 2]
    chosen = set(map(id, matrices))
    others = [p for p in model.parameters() if id(p) not in chosen]
    return {
        Muon(matrices, lr=MATRIX_RATE, weight_decay=0.1): MATRIX_RATE,
        torch.optim.AdamW(others, lr=OTHER_RATE, weight_decay=0.01, betas=(0.9, 0.95)): OTHER_RATE,
    }


@torch.no_grad()
def held_out_loss(model: GPT2LMHeadModel, tokens: torch.Tensor, windows: int) -> float:
    """Mean loss in nats per token over the first full windows."""
    training = model.training
    model.eval()
    losses = [
        model(input_ids=w[None], labels=w[None]).loss.item() for w in tokens[: windows * CONTEXT].view(windows, CONTEXT)
    ]
    model.train(training)
    return sum(losses) / len(losses)


def train(model: GPT2LMHeadModel, tokens: torch.Tensor, held_out: torch.Tensor) -> list[dict[str, float]]:
    """Train the model in place; returns the losses every 100 steps."""
    generator = torch.Generator().manual_seed(SEED)
    chosen = optimizers(model)
    history: list[dict[str, float]] = []
    started = time.monotonic()
    model.train()
    for step in range(STEPS):
        windows = batch(tokens, generator)
        loss = model(input_ids=windows, labels=windows, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, base in chosen.items():
            optimizer.param_groups[0]["lr"] = base * rate(step)
            optimizer.step()
            optimizer.zero_grad()
        if step % 100 == 99 or step == STEPS - 1:
            entry = {
                "step": step + 1,
                "seconds": round(time.monotonic() - started, 1),
                "loss": round(loss.item(), 4),
                "held_out_loss": round(held_out_loss(model, held_out, 8), 4),
            }
            history.append(entry)
            print(json.dumps(entry), flush=True)
    return history


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the model, tokenizer and sample text")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)

    torch.manual_seed(SEED)
    training, held_out = split(documents())
    tokenizer = train_tokenizer(list(training.values()))
    tokens = encode(tokenizer, list(training.values()))
    held_out_tokens = encode(tokenizer, list(held_out.values()))
    print(f"{len(tokens):,} training tokens, {len(held_out_tokens):,} held out", flush=True)

    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(tokenizer),
            n_positions=CONTEXT,
            n_embd=192,
            n_layer=6,
            n_head=6,
            resid_pdrop=0.1,
            embd_pdrop=0.1,
            attn_pdrop=0.0,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )
    started = time.monotonic()
    history = train(model, tokens, held_out_tokens)
    model.half().save_pretrained(out)
    tokenizer.save_pretrained(out)
    (out / "text.txt").write_text(sample_text(held_out), encoding="utf-8")
    record = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "seed": SEED,
        "parameters": sum(p.numel() for p in model.parameters()),
        "training_tokens": len(tokens),
        "tokens_seen": STEPS * WINDOWS_PER_STEP * CONTEXT,
        "seconds": round(time.monotonic() - started),
        "history": history,
    }
    (out / "training.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def sample_text(held_out: dict[str, str]) -> str:
    """Whole held-out documents, topics first, up to `SAMPLE_TEXT_CHARACTERS`."""
    parts: list[str] = []
    for name in sorted(held_out, key=lambda name: (not name.startswith("topic"), name)):
        if sum(map(len, parts)) + len(held_out[name]) <= SAMPLE_TEXT_CHARACTERS:
            parts.append(held_out[name])
    return "\n\n".join(parts)


if __name__ == "__main__":
    main()
