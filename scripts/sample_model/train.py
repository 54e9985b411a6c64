"""Train the embedded sample model from scratch on CPython's documentation.

    python scripts/sample_model/train.py --out src/attnscope/sample

A Llama of 6 layers x 6 heads with its own byte-level BPE. Decisions:

- Input and output embeddings are separate, and queries, keys and values have biases. Tied, and without biases, models
  of this size had no induction head after 2.8 M tokens of nothing but repeated random tokens; with both, one formed
  within 0.4 M. Tying makes the current token the most likely next one, which training has to undo first; a bias makes
  attention to the previous token a matter of positions alone.
- Windows grow from 32 to 1,024 tokens, in the stages of `batches.py`. The model is saved after each: `--first-stage`
  goes on from there. Each stage has new optimizers, with a warm-up.
- Some heads of the last two layers learn their queries and keys slowly (`Stage.slow_heads`). They start close to
  uniform attention, and the values learn to use that. Where all learned at one rate, every head became sharp (median
  participation 1.1) and none needed many tokens, not even after 3 M tokens more of shuffled text; where all heads of
  both layers were slow to the end, a third of them ended close to the limit between two labels.
- Muon for the matrices of the blocks, AdamW for embeddings, biases and gains.
- Half-precision weights on disk: the model fits in a wheel.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from batches import STAGES, UNPREDICTABLE, Stage, batch
from corpus import documents, split
from muon import Muon
from scores import copying_loss, induction_scores, previous_token_scores
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import attnscope

SEED = 20250821
VOCABULARY = 1024
CONTEXT = 1024
WARMUP_STEPS = 40
MONITOR_EVERY = 20  # steps
MATRIX_RATE = 8e-3
OTHER_RATE = 2e-3
EMBEDDING_DEVIATION = 0.3
QUERIES_AND_KEYS = re.compile(r"layers\.[45]\.self_attn\.[qk]_proj")  # of the last two layers
END = "<|endoftext|>"
SAMPLE_TEXT_CHARACTERS = 150_000

Record = dict[str, Any]
"""How the model was trained: what training.json holds."""


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


def rate(stage: Stage, step: int, done: float) -> float:
    """The factor of the learning rates after a share of a stage; it starts with a linear warm-up."""
    first, last = stage.rates
    return min(1.0, (step + 1) / WARMUP_STEPS) * (first + (last - first) * done)


def new_model(vocabulary: int, end: int) -> LlamaForCausalLM:
    """The model before training; its output embedding starts at zero."""
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=192,
            intermediate_size=512,
            num_hidden_layers=6,
            num_attention_heads=6,
            num_key_value_heads=6,
            max_position_embeddings=CONTEXT,
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
            attention_bias=True,
            tie_word_embeddings=False,
            bos_token_id=end,
            eos_token_id=end,
        )
    )
    torch.nn.init.normal_(model.model.embed_tokens.weight, std=EMBEDDING_DEVIATION)
    torch.nn.init.zeros_(model.lm_head.weight)
    return model


def optimizers(model: LlamaForCausalLM) -> dict[torch.optim.Optimizer, float]:
    """The two optimizers with their base learning rates."""
    matrices = [p for n, p in model.named_parameters() if ".layers." in n and p.ndim == 2]
    chosen = set(map(id, matrices))
    others = [p for p in model.parameters() if id(p) not in chosen]
    return {
        Muon(matrices, lr=MATRIX_RATE, weight_decay=0.05): MATRIX_RATE,
        torch.optim.AdamW(others, lr=OTHER_RATE, weight_decay=0.01, betas=(0.9, 0.95)): OTHER_RATE,
    }


@torch.no_grad()
def step_optimizers(model: LlamaForCausalLM, chosen: Iterable[torch.optim.Optimizer], stage: Stage) -> None:
    """One step, of which the slow heads take a share."""
    slow = [p for name, p in model.named_parameters() if QUERIES_AND_KEYS.search(name)]
    before = [p.clone() for p in slow]
    for optimizer in chosen:
        optimizer.step()
        optimizer.zero_grad()
    rows = stage.slow_heads * (model.config.hidden_size // model.config.num_attention_heads)
    for parameter, earlier in zip(slow, before, strict=True):
        parameter[:rows] = earlier[:rows].lerp(parameter[:rows], stage.slow_rate)


@torch.no_grad()
def held_out_loss(model: LlamaForCausalLM, tokens: torch.Tensor, windows: int) -> float:
    """Mean loss in nats per token over the first full windows."""
    training = model.training
    model.eval()
    losses = [
        model(input_ids=w[None], labels=w[None]).loss.item() for w in tokens[: windows * CONTEXT].view(windows, CONTEXT)
    ]
    model.train(training)
    return sum(losses) / len(losses)


def train(
    model: LlamaForCausalLM,
    tokens: torch.Tensor,
    held_out: torch.Tensor,
    first_stage: int,
    record: Record,
    out: Path,
    monitor: attnscope.Monitor | None,
) -> None:
    """Train the model in place; after each stage, save it and the record with losses and scores."""
    started, earlier = time.monotonic(), record["seconds"]
    model.train()
    for number, stage in enumerate(STAGES[first_stage - 1 :], first_stage):
        generator = torch.Generator().manual_seed(SEED + number)
        chosen = optimizers(model)
        step = used = 0
        while used < stage.tokens:
            windows, labels = batch(tokens, model.config.vocab_size, stage, generator)
            logits = model(input_ids=windows, use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(
                logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=UNPREDICTABLE
            )
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer, base in chosen.items():
                optimizer.param_groups[0]["lr"] = base * rate(stage, step, used / stage.tokens)
            step_optimizers(model, chosen, stage)
            if monitor is not None:
                monitor.step(loss=loss)
            step, used = step + 1, used + windows.numel()
            if step % 200 == 0 or used >= stage.tokens:
                entry = {"stage": number, "tokens": used, "seconds": round(time.monotonic() - started, 1)}
                entry |= {"loss": round(loss.item(), 3)} | progress_scores(model, held_out)
                record["history"].append(entry)
                print(json.dumps(entry), flush=True)
        record["seconds"] = round(earlier + time.monotonic() - started)
        record["tokens_seen"] += used
        save(model, record, out)


def save(model: LlamaForCausalLM, record: Record, out: Path) -> None:
    """Write the weights in half precision, and the record."""
    copy.deepcopy(model).half().save_pretrained(out)
    (out / "training.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def progress_scores(model: LlamaForCausalLM, held_out: torch.Tensor) -> dict[str, float]:
    """What the card is about, on few windows: held-out loss, the best previous-token and induction heads, copying."""
    first, second = copying_loss(model, 2)
    return {
        "held_out_loss": round(held_out_loss(model, held_out, 4), 3),
        "previous_token": round(previous_token_scores(model, held_out[:1024].view(2, 512)).max().item(), 3),
        "induction": round(induction_scores(model, 2).max().item(), 3),
        "first_copy": round(first, 2),
        "second_copy": round(second, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the model, tokenizer and sample text")
    parser.add_argument("--first-stage", type=int, default=1, help="go on with the model in the folder")
    parser.add_argument("--monitor", type=Path, help="watch the training with attnscope.Monitor: the folder of its run")
    arguments = parser.parse_args()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)

    torch.manual_seed(SEED)
    training, held_out = split(documents())
    tokenizer = train_tokenizer(list(training.values()))
    tokens = encode(tokenizer, list(training.values()))
    held_out_tokens = encode(tokenizer, list(held_out.values()))
    print(f"{len(tokens):,} training tokens, {len(held_out_tokens):,} held out", flush=True)

    tokenizer.save_pretrained(out)
    (out / "text.txt").write_text(sample_text(held_out), encoding="utf-8")

    if arguments.first_stage == 1:
        model = new_model(len(tokenizer), tokenizer.eos_token_id)
        record: Record = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "seed": SEED,
            "parameters": sum(p.numel() for p in model.parameters()),
            "training_tokens": len(tokens),
            "tokens_seen": 0,
            "seconds": 0,
            "history": [],
        }
    else:
        model = LlamaForCausalLM.from_pretrained(out, dtype=torch.float32)
        record = json.loads((out / "training.json").read_text("utf-8"))
    folder: Path | None = arguments.monitor
    monitor = attnscope.Monitor(model, every=MONITOR_EVERY, out=folder) if folder else None
    train(model, tokens, held_out_tokens, arguments.first_stage, record, out, monitor)
    if monitor is not None:
        monitor.close()


def sample_text(held_out: dict[str, str]) -> str:
    """Whole held-out documents, topics first, up to `SAMPLE_TEXT_CHARACTERS`."""
    parts: list[str] = []
    for name in sorted(held_out, key=lambda name: (not name.startswith("topic"), name)):
        if sum(map(len, parts)) + len(held_out[name]) <= SAMPLE_TEXT_CHARACTERS:
            parts.append(held_out[name])
    return "\n\n".join(parts)


if __name__ == "__main__":
    main()
