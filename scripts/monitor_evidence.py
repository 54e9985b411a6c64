"""How early do alarms come? Small models trained with three provoked failures, and without; one JSON object.

    python scripts/monitor_evidence.py --seeds 5 --every 10

A GPT-2 of 4 layers x 4 heads learns the bytes of the embedded text. The failures:

- `query-weights`: at step 50, the query weights of one head, chosen by the seed, are multiplied by 30;
- `learning-rate`: 0.1 instead of 0.002, from the start;
- `temperature`: softmax at temperature 0.01, from the start.

The loss shows a failure in two ways. It has risen when its mean over 5 steps exceeds the lowest such mean so far by
0.3; this is all that the person who trains can see. It is behind when its mean over 20 steps exceeds that of the
healthy run with the same seed by 0.1.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from importlib import resources
from statistics import fmean
from typing import Any

import polars as pl
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import attnscope

LAYERS, HEADS, WIDTH, TOKENS, ITEMS = 4, 4, 64, 128, 8
STEPS, RATE, CHANGE_AT = 300, 2e-3, 50
RISE, RISE_MEAN = 0.3, 5
BEHIND, BEHIND_MEAN = 0.1, 20
FAILURES = ("query-weights", "learning-rate", "temperature")


def new_model(seed: int) -> GPT2LMHeadModel:
    torch.manual_seed(seed)
    config = GPT2Config(
        n_layer=LAYERS, n_head=HEADS, n_embd=WIDTH, n_positions=TOKENS, vocab_size=256, bos_token_id=0, eos_token_id=0
    )
    return GPT2LMHeadModel(config).train()


def chosen_head(seed: int) -> tuple[int, int]:
    """The head that goes wrong: layer, head."""
    drawn = torch.randint(LAYERS * HEADS, (), generator=torch.Generator().manual_seed(seed)).item()
    return divmod(int(drawn), HEADS)


def multiply_queries(model: GPT2LMHeadModel, layer: int, head: int) -> None:
    size = WIDTH // HEADS
    with torch.no_grad():
        block: Any = model.transformer.h[layer]
        projection = block.attn.c_attn
        for parameter in (projection.weight, projection.bias):
            parameter[..., head * size : (head + 1) * size] *= 30


def train(seed: int, failure: str | None, every: int) -> tuple[list[float], attnscope.Monitor]:
    """The loss of every step, and the monitor."""
    data = torch.tensor(list((resources.files("attnscope") / "sample" / "text.txt").read_bytes()))
    model = new_model(seed)
    if failure == "temperature":
        attnscope.swap(model, "softmax:temperature=0.01")
    rate = 0.1 if failure == "learning-rate" else RATE
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.1)
    generator = torch.Generator().manual_seed(seed)
    losses = []
    monitor = attnscope.Monitor(model, every=every)
    for step in range(1, STEPS + 1):
        if failure == "query-weights" and step == CHANGE_AT:
            multiply_queries(model, *chosen_head(seed))
        starts = torch.randint(len(data) - TOKENS, (ITEMS, 1), generator=generator)
        windows = data[starts + torch.arange(TOKENS)]
        loss = model(input_ids=windows, labels=windows).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        monitor.step()
    monitor.close()
    return losses, monitor


def first_step(losses: list[float], count: int, over: Callable[[int, float], bool]) -> int | None:
    """The first step at which the mean of the last `count` losses is over a limit; steps count from 1."""
    means = [fmean(losses[max(0, step - count) : step]) for step in range(1, len(losses) + 1)]
    return next((step for step, mean in enumerate(means, 1) if step >= count and over(step, mean)), None)


def risen(losses: list[float]) -> int | None:
    lowest = float("inf")

    def over(step: int, mean: float) -> bool:
        nonlocal lowest
        lowest = min(lowest, mean)
        return mean > lowest + RISE

    return first_step(losses, RISE_MEAN, over)


def behind(losses: list[float], healthy: list[float]) -> int | None:
    def over(step: int, mean: float) -> bool:
        return mean > fmean(healthy[max(0, step - BEHIND_MEAN) : step]) + BEHIND

    return first_step(losses, BEHIND_MEAN, over)


def extremes(monitor: attnscope.Monitor) -> dict[str, Any]:
    """The numbers that the thresholds are about."""
    keys = ["layer", "head"]
    table = monitor.heads.sort(*keys, "step").with_columns(
        growth=pl.col("logit_std") / pl.col("logit_std").shift(1).over(keys),
        before=pl.col("entropy_ratio").shift(1).over(keys),
    )
    return {
        "max_logit": table["max_logit"].max(),
        "jacobian_norm": table["jacobian_norm"].max(),
        "growth of logit_std to 3 or more": table.filter(pl.col("logit_std") >= 3)["growth"].max(),
        "logit_std after growing 8 times": table.filter(pl.col("growth") >= 8)["logit_std"].max(),
        "entropy_ratio before falling to 0.1": table.filter(pl.col("entropy_ratio") <= 0.1)["before"].max(),
    }


def run(seed: int, failure: str, every: int, healthy: list[float]) -> dict[str, Any]:
    losses, monitor = train(seed, failure, every)
    alarms = monitor.alarms
    first = None if alarms.is_empty() else alarms.row(0, named=True)
    record: dict[str, Any] = {
        "seed": seed,
        "alarm_step": None if first is None else first["step"],
        "alarm_kind": None if first is None else first["kind"],
        "alarms": alarms.height,
        "loss_risen": risen(losses),
        "loss_behind": behind(losses, healthy),
        "last_loss": fmean(losses[-20:]),
        "healthy_last_loss": fmean(healthy[-20:]),
    }
    if failure == "query-weights":
        named = set(alarms.select("layer", "head").iter_rows())
        record |= {"head": chosen_head(seed), "only_that_head": named == {chosen_head(seed)}}
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--every", type=int, default=10)
    arguments = parser.parse_args()
    report: dict[str, Any] = {"steps": STEPS, "every": arguments.every, "healthy": [], "failures": {}}
    healthy = {}
    for seed in range(arguments.seeds):
        healthy[seed], monitor = train(seed, None, arguments.every)
        counts = {"seed": seed, "false_alarms": monitor.alarms.height, "loss_risen": risen(healthy[seed])}
        report["healthy"].append(counts | extremes(monitor))
    for failure in FAILURES:
        report["failures"][failure] = [run(seed, failure, arguments.every, healthy[seed]) for seed in healthy]
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
