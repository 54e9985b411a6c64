"""Methods compared at equal numbers of kept key-value pairs, on text and on a recall task.

A context is run as it is. Then each method drops keys, and the model goes on: its next-token distributions are compared
with those of the unmodified model, and with the text. All keys after the context are kept by every method.

The recall task: some passages of the context come again after it, in another order. The first tokens of a passage are
the cue, and each of the others counts as recalled if the model finds it the most probable.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
import torch
from transformers.cache_utils import DynamicCache

from attnscope.capture.huggingface import observed
from attnscope.divergence import kl_divergence
from attnscope.experiments.budget.selection import (
    SELECTIONS,
    Context,
    Plan,
    count_kept,
    kept_rule,
    observed_scores,
    oracle_rule,
)
from attnscope.experiments.intervals import paired_mean
from attnscope.swapping import intervene

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from attnscope.capture.attention import AttentionCall
    from attnscope.experiments.budget.settings import BudgetSettings
    from attnscope.swapping.interventions import WeightRule

OWN, OURS, ORACLE = "all keys", "ours", "exact top-k"
PASSAGES, PASSAGE, CUE = 4, 24, 8  # of the recall task; the latter two in tokens
SCHEMA = pl.Schema(
    {
        "task": pl.String,  # text or recall
        "window": pl.Int32,
        "method": pl.String,
        "kept_pairs": pl.Int64,
        "all_pairs": pl.Int64,
        "kl": pl.Float64,  # nats per token, from the unmodified model
        "loss": pl.Float64,  # nats per token
        "accuracy": pl.Float64,  # share of tokens that are the most probable ones
    }
)
# What is compared: column, task, and whether more is better.
MEASURES = {"kl": ("text", False), "loss": ("text", False), "accuracy": ("recall", True)}


class Task(NamedTuple):
    """The tokens that follow a context, and which of them are asked for."""

    name: str
    tokens: list[int]
    asked: list[int]


def recall_task(context: Sequence[int], draw: np.random.Generator) -> Task:
    """Passages from random places in each part of the context, one after the other in random order."""
    part = len(context) // PASSAGES
    size, cue = min(PASSAGE, part // 2), min(CUE, part // 4)
    starts = [part * number + int(draw.integers(part - size + 1)) for number in draw.permutation(PASSAGES)]
    tokens = [token for start in starts for token in context[start : start + size]]
    return Task("recall", tokens, [place for place in range(len(tokens)) if place % size >= cue])


def compare_window(module: Any, plan: Plan, tokens: list[int], window: int) -> pl.DataFrame:
    """One line for each task and method: the text after the context, and passages to recall."""
    length, pairs = plan.settings.length, plan.settings.length * len(plan.ours.counts)
    draw = np.random.default_rng((plan.settings.seed, window))
    tasks = [
        Task("text", tokens[length:], list(range(1, len(tokens) - length))),
        recall_task(tokens[:length], draw),
    ]
    with torch.no_grad():
        context, cache, heads = _prefill(module, torch.tensor(tokens[:length]), plan.settings)
        own = [_log_probabilities(module, cache, task) for task in tasks]
        lines = [_line(task, OWN, pairs, each, each) for task, each in zip(tasks, own, strict=True)]
        for name, (kept, rules) in _rules(context, plan, heads, draw).items():
            with intervene(module, dict(enumerate(rules))):  # type: ignore[arg-type]
                for task, each in zip(tasks, own, strict=True):
                    lines.append(_line(task, name, kept, _log_probabilities(module, cache, task), each))
    numbers = {"window": window, "all_pairs": pairs}
    return pl.DataFrame([line | numbers for line in lines], schema=SCHEMA)


def _prefill(module: Any, ids: Tensor, settings: BudgetSettings) -> tuple[Context, DynamicCache, int]:
    """Run the unmodified model on a context: what methods choose by, its cache, and the number of heads."""
    context, cache, heads = Context([], []), DynamicCache(config=module.config), 0

    def collect(call: AttentionCall) -> None:
        nonlocal heads
        heads = call.heads
        context.scores.append(observed_scores(call, settings))
        context.norms.append(call.key[0].double().norm(dim=-1))

    with observed(module, collect):
        module.base_model(input_ids=ids[None].to(module.device), past_key_values=cache, use_cache=True)
    return context, cache, heads


def _rules(
    context: Context, plan: Plan, heads: int, draw: np.random.Generator
) -> dict[str, tuple[int, list[WeightRule]]]:
    """The number of pairs that each method keeps, and its rule for each layer."""
    total, even = int(plan.ours.counts.sum()), plan.layers(plan.even)
    rules = {}
    for name, select in SELECTIONS.items():
        masks = select(context, plan, draw)
        rules[name] = count_kept(masks, total, name), [kept_rule(mask, heads) for mask in masks]
    rules[ORACLE] = total, [oracle_rule(counts, heads, plan.settings.length) for counts in even]
    return rules


def _log_probabilities(module: Any, cache: DynamicCache, task: Task) -> Float[Tensor, "asked vocabulary"]:
    """Of the tokens that a task asks for; the cache is left as it was."""
    ids = torch.tensor(task.tokens, device=module.device)
    logits = module(input_ids=ids[None], past_key_values=cache, use_cache=True).logits[0]
    cache.crop(-len(ids))
    found: Tensor = logits[[place - 1 for place in task.asked]].double().log_softmax(-1)
    return found


def _line(task: Task, method: str, kept: int, found: Tensor, own: Tensor) -> dict[str, Any]:
    wanted = torch.tensor([task.tokens[place] for place in task.asked], device=found.device)
    return {
        "task": task.name,
        "method": method,
        "kept_pairs": kept,
        "kl": float(kl_divergence(own, found).mean()),
        "loss": float(-found.gather(1, wanted[:, None]).mean()),
        "accuracy": float((found.argmax(-1) == wanted).double().mean()),
    }


def summarize(table: pl.DataFrame) -> list[dict[str, Any]]:
    """One line per method: its means, and ours minus it with paired 95% intervals over windows and a verdict."""
    lines = []
    for method in table["method"].unique(maintain_order=True):
        pairs = table.filter(method=method).select("kept_pairs", "all_pairs").sum().row(0)
        line: dict[str, Any] = {"method": method, "kept_share": pairs[0] / pairs[1]}
        for measure, (task, more) in MEASURES.items():
            rows = table.filter(task=task).sort("window")
            mine, theirs = (rows.filter(method=name)[measure].to_numpy() for name in (OURS, method))
            line[measure] = float(theirs.mean())
            if method not in (OURS, OWN):
                gain = paired_mean((mine - theirs) if more else (theirs - mine))
                verdict = "no gain" if gain.low <= 0 <= gain.high else "better" if gain.low > 0 else "worse"
                line[f"{measure}_gain"] = {"mean": gain.value, "low": gain.low, "high": gain.high, "verdict": verdict}
        line["perplexity"] = math.exp(line["loss"])
        lines.append(line)
    return lines
