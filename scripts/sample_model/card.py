"""Evaluate the sample model and write its card.

    python scripts/sample_model/card.py src/attnscope/sample

Every number of the card is computed here: the held-out loss against a unigram and a bigram model of the same training
tokens, the matching, previous-token and induction scores of each head, and a diagnosis verified inside the model.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from batches import COPIED_SHARE, STAGES
from corpus import documents, split
from scores import INDUCTION_HALF, copying_loss, induction_scores, matching_scores, previous_token_scores
from train import CONTEXT, MATRIX_RATE, OTHER_RATE, encode, held_out_loss
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

import attnscope
from attnscope.columns import head_name
from attnscope.diagnosis.states import STATES

SCORE_WINDOWS = 8


def unigram_loss(training: torch.Tensor, held_out: torch.Tensor, size: int) -> float:
    """Nats per token of a unigram model with add-one smoothing."""
    counts = torch.bincount(training, minlength=size).double() + 1
    return -(counts / counts.sum()).log()[held_out].mean().item()


def bigram_loss(training: torch.Tensor, held_out: torch.Tensor, size: int) -> tuple[float, float]:
    """Nats per token of an interpolated bigram model, and its mixing weight.

    The weight is chosen on the held-out text itself, in favor of the baseline.
    """
    single = torch.bincount(training, minlength=size).double() + 1
    single /= single.sum()
    pairs = torch.zeros(size, size, dtype=torch.float64)
    pairs.index_put_((training[:-1], training[1:]), torch.ones(1, dtype=torch.float64), accumulate=True)
    counts = pairs.sum(1)
    first, second = held_out[:-1], held_out[1:]
    conditional = torch.where(counts[first] > 0, pairs[first, second] / counts[first].clamp_min(1), single[second])
    losses = [
        (-(weight * conditional + (1 - weight) * single[second]).log().mean().item(), weight)
        for weight in torch.linspace(0.05, 0.95, 19).tolist()
    ]
    return min(losses)


def best_head(scores: torch.Tensor) -> str:
    """The head with the largest score, as text."""
    layer, head = divmod(int(scores.argmax()), scores.shape[1])
    return f"{head_name(layer, head)} ({scores.max():.2f})"


def score_table(scores: torch.Tensor) -> str:
    """The scores as a Markdown table of layers by heads."""
    heads = range(scores.shape[1])
    lines = ["| layer | " + " | ".join(f"head {head}" for head in heads) + " |", "|---|" + "---|" * len(heads)]
    for layer, values in enumerate(scores.tolist()):
        lines.append(f"| {layer} | " + " | ".join(f"{value:.2f}" for value in values) + " |")
    return "\n".join(lines)


def uniform_previous() -> float:
    """The previous-token score of uniform attention."""
    return sum(1 / (position + 1) for position in range(1, CONTEXT)) / (CONTEXT - 1)


def verdict(score: float) -> str:
    """A sentence on whether the best induction score shows an induction head."""
    if score < 10 / (1.5 * INDUCTION_HALF):
        return "No induction head has formed."
    return "It has learned to copy whatever it is given."


def label_table(diagnosis: Mapping[str, Any]) -> str:
    """The states of the heads with the outcome of the verification, as a Markdown table."""
    tested = {one["state"]: one for one in diagnosis["verification"]["predictions"]}
    lines = ["| state | heads | held inside the model | ratio (range over windows) |", "|---|---|---|---|"]
    for state in STATES:
        heads = [head for head in diagnosis["heads"] if state in (head["state"], head["withdrawn"])]
        if not heads:
            continue
        names = ", ".join(head_name(head["layer"], head["head"]) for head in heads)
        one = tested.get(state)
        outcome = "not tested | " if one is None else f"{'yes' if one['held'] else 'no, withdrawn'} | {_ratio(one)}"
        lines.append(f"| {state} | {len(heads)}: {names} | {outcome} |")
    return "\n".join(lines)


def absent_states(diagnosis: Mapping[str, Any]) -> str:
    """The states that no head was given, in words."""
    given = {head["state"] or head["withdrawn"] for head in diagnosis["heads"]}
    return ", ".join(state for state in STATES if state not in given) or "none"


def _ratio(prediction: Mapping[str, Any]) -> str:
    return f"{prediction['ratio']:.1f} ({prediction['ratio_low']:.1f} to {prediction['ratio_high']:.1f})"


def stage_table() -> str:
    """The stages of the training as a Markdown table."""
    lines = [
        "| tokens | window | repeated random tokens | periods up to | learning rates | slow heads |",
        "|---" * 6 + "|",
    ]
    for stage in STAGES:
        first, last = stage.rates
        lines.append(
            f"| {stage.tokens:,} | {stage.window:,} | {stage.random_share:.0%} | {stage.longest_period} | "
            f"{first:g} to {last:g} | {stage.slow_heads} at {stage.slow_rate:g} |"
        )
    return "\n".join(lines)


def evaluate(folder: Path) -> dict[str, Any]:
    """The losses and scores of the model in a folder, by name."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    training_texts, held_out_texts = split(documents())
    training = encode(tokenizer, list(training_texts.values()))
    held_out = encode(tokenizer, list(held_out_texts.values()))
    size = len(tokenizer)
    windows = held_out[: SCORE_WINDOWS * CONTEXT].view(-1, CONTEXT)
    matching, uniform_matching = matching_scores(model, windows)
    bigram, mixing = bigram_loss(training, held_out, size)
    return {
        "loss": held_out_loss(model, held_out, len(held_out) // CONTEXT),
        "unigram": unigram_loss(training, held_out, size),
        "bigram": bigram,
        "mixing": mixing,
        "training_characters": sum(map(len, training_texts.values())),
        "held_out_characters": sum(map(len, held_out_texts.values())),
        "held_out_tokens": len(held_out),
        "size": size,
        "previous": previous_token_scores(model, windows),
        "matching": matching,
        "uniform_matching": uniform_matching,
        "induction": induction_scores(model, SCORE_WINDOWS),
        "copying": copying_loss(model, SCORE_WINDOWS),
        "diagnosis": attnscope.diagnose(folder, folder / "text.txt", verify=True),
    }


def card(record: dict[str, Any], results: dict[str, Any], weights: Path) -> str:
    """The model card as Markdown."""
    before, after = results["copying"]
    agreed, verified = results["diagnosis"]["agreement"], results["diagnosis"]["verification"]
    bits = results["loss"] / math.log(2) * results["held_out_tokens"] / results["held_out_characters"]
    return f"""# The sample model

A small Llama that ships with attnscope, so that everything can be tried without a network. It is a specimen to
measure, not a model to use: it has read only Python's documentation.

| | |
|---|---|
| architecture | `LlamaForCausalLM`, 6 layers x 6 heads of 32 dimensions, rotary positions (base 10,000), biases in attention, context 1,024, {record["parameters"]:,} parameters |
| tokenizer | byte-level BPE of {results["size"]:,} tokens, trained on the same text |
| data | documentation inside CPython {record["python"]}: `pydoc_data.topics` and the docstrings of the standard library, {results["training_characters"]:,} characters ({record["training_tokens"]:,} tokens), repeated paragraphs left out |
| held out | {results["held_out_characters"]:,} characters ({results["held_out_tokens"]:,} tokens): whole modules and topics, chosen by a hash of their names; `text.txt` is a part of it |
| recipe | {record["tokens_seen"]:,} tokens in the stages below; Muon for the blocks' matrices, AdamW for the rest; {COPIED_SHARE:.0%} of the text windows of 64 tokens or more repeat a passage |
| seed | {record["seed"]} |
| training time | {record["seconds"] / 60:.0f} minutes on {record["threads"]} core{"s" if record["threads"] > 1 else ""} of a shared CPU, torch {record["torch"]} |
| weights | half precision, SHA-256 `{hashlib.sha256(weights.read_bytes()).hexdigest()[:16]}...` |
| license | weights: Apache-2.0; `text.txt`: Python Software Foundation License Version 2 |

`make sample-model` rebuilds it and this card. Other Python versions ship other documentation and give another model.

Stages of the training (shares of the windows; learning rates as factors of {MATRIX_RATE:g} and {OTHER_RATE:g}; slow heads: in
each of the last two layers, how many learn their queries and keys at which share of these rates, so that some heads stay broad):

{stage_table()}

## What it has learned

| held-out loss, nats per token | |
|---|---|
| this model | **{results["loss"]:.3f}** ({bits:.2f} bits per character) |
| bigram, interpolated (weight {results["mixing"]:.2f}, the best for this text) | {results["bigram"]:.3f} |
| unigram | {results["unigram"]:.3f} |

Three scores describe what a head attends to. Each is a mean weight; the value of uniform attention is given for comparison.
`L3H5` is head 5 of layer 3, counted from 0.

**Previous token**, held-out text: weight on the previous token. Uniform: {uniform_previous():.3f}. Best: {best_head(results["previous"])},
{results["previous"].max() / uniform_previous():.0f} times uniform.

{score_table(results["previous"])}

**Induction**, {INDUCTION_HALF} random tokens repeated once: weight on the token after the earlier copy. Uniform: {1 / (1.5 * INDUCTION_HALF):.3f}. Best:
{best_head(results["induction"])}. The loss is {before:.2f} on the first copy and {after:.2f} on the second; a model that knows nothing has
{math.log(results["size"]):.2f} on both. {verdict(results["induction"].max().item())}

{score_table(results["induction"])}

**Matching**, held-out text: weight on the tokens that followed earlier copies of the current token, which predict the next
token by repetition. Uniform: {results["uniform_matching"]:.3f}. Best: {best_head(results["matching"])}, {results["matching"].max() / results["uniform_matching"]:.0f} times uniform.

{score_table(results["matching"])}

## Its diagnosis

`attnscope.diagnose(verify=True)` on `text.txt`: {results["diagnosis"]["windows"]} windows of {results["diagnosis"]["length"]:,} tokens for the labels, {verified["windows"]} others to test them inside the model. Labels from
one half of the windows agree with those from the other half for {agreed["share"]:.0%} of the heads (kappa {agreed["kappa"]:.2f}).

{label_table(results["diagnosis"])}

A head is compared with random heads of its layers that have another label. States that no head has: {absent_states(results["diagnosis"])}.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Evaluate the sample model and write its card.")
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    record = json.loads((folder / "training.json").read_text("utf-8"))
    text = card(record, evaluate(folder), folder / "model.safetensors")
    (folder / "README.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
