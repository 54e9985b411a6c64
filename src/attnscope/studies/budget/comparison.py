"""Methods compared at equal numbers of kept key-value pairs, on text and on a recall task.

A context is run as it is. Then each method drops keys, and the model goes on, with the same number of pairs in every
row and for all methods: its next-token distributions are compared with the unmodified model's, and with the text.

The recall task: a passage of the context comes again after it. The first tokens of a passage are the cue, and each of
the others counts as recalled if the model finds it the most probable.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
import torch
from transformers.cache_utils import DynamicCache

from attnscope.capture.huggingface import observed
from attnscope.intervals import paired_mean
from attnscope.studies.budget.selection import (
    SELECTIONS,
    Context,
    KeptKeys,
    count_kept,
    kept_rule,
    observed_scores,
    oracle_rule,
)
from attnscope.swapping import apply_budget, intervene
from attnscope.swapping.changes import kl_divergence

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from attnscope.capture.attention import AttentionCall
    from attnscope.studies.budget.selection import BudgetSettings
    from attnscope.swapping.changes import WeightRule
    from attnscope.swapping.key_budget import KeyBudget

OWN, OURS, ORACLE, APPLIED = "all keys", "ours", "exact top-k", "as applied"
PASSAGES, PASSAGE, CUE = 4, 24, 8  # of the recall task; length and cue in tokens
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
    """What follows a context, in one or several ways; tokens from `cue` on are asked for."""

    name: str
    pieces: list[list[int]]
    cue: int

    @property
    def asked(self) -> list[int]:
        """The tokens that are asked for, of all pieces."""
        return [token for piece in self.pieces for token in piece[self.cue :]]


def recall_task(context: Sequence[int], longest: int, draw: np.random.Generator) -> Task:
    """Passages of at most `longest` tokens, one from a random place in each part of the context."""
    part = len(context) // PASSAGES
    size = min(PASSAGE, part, longest)
    starts = [part * number + int(draw.integers(part - size + 1)) for number in range(PASSAGES)]
    return Task("recall", [list(context[start : start + size]) for start in starts], size * CUE // PASSAGE)


def compare_window(module: Any, plan: KeptKeys, made: KeyBudget, tokens: list[int], window: int) -> pl.DataFrame:
    """One line for each task and method: the text after the context, and passages to recall.

    `made` is our budget as it is applied to a model, which is one more line: rows of the context too keep only their
    keys, and heads of kind top choose in every row.
    """
    length, pairs = plan.settings.length, plan.settings.length * len(plan.ours.counts)
    draw = np.random.default_rng((plan.settings.seed, window))
    tasks = [Task("text", [tokens[length:]], 1), recall_task(tokens[:length], plan.settings.observed, draw)]
    ids = torch.tensor(tokens[:length], device=module.device)[None]
    with torch.no_grad():
        context, cache, heads = _prefill(module, ids, plan.settings)
        own = [_log_probabilities(module, cache, task) for task in tasks]
        lines = [_line(task, OWN, pairs, each, each) for task, each in zip(tasks, own, strict=True)]
        for name, (kept, rules) in _rules(context, plan, heads, draw).items():
            with intervene(module, dict(enumerate(rules))):  # type: ignore[arg-type]
                for task, each in zip(tasks, own, strict=True):
                    lines.append(_line(task, name, kept, _log_probabilities(module, cache, task), each))
        with apply_budget(module, made):
            cache = DynamicCache()
            module(input_ids=ids, past_key_values=cache, use_cache=True)
            kept = sum(head.kept(length) for head in made.heads)
            for task, each in zip(tasks, own, strict=True):
                lines.append(_line(task, APPLIED, kept, _log_probabilities(module, cache, task), each))
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
        module.base_model(input_ids=ids, past_key_values=cache, use_cache=True)
    return context, cache, heads


def _rules(
    context: Context, plan: KeptKeys, heads: int, draw: np.random.Generator
) -> dict[str, tuple[int, list[WeightRule]]]:
    """The number of pairs that each method keeps, and its rule for each layer."""
    total, even = int(plan.ours.counts.sum()), plan.layers(plan.even)
    rules = {}
    for name, select in SELECTIONS.items():
        choices = select(context, plan, draw)
        rules[name] = count_kept(choices, plan, name), [kept_rule(choice, heads) for choice in choices]
    rules[ORACLE] = total, [oracle_rule(counts, heads) for counts in even]
    return rules


def _log_probabilities(module: Any, cache: DynamicCache, task: Task) -> Float[Tensor, "asked vocabulary"]:
    """Of the tokens that a task asks for; the cache is left as it was."""
    found = []
    for piece in task.pieces:
        ids = torch.tensor(piece, device=module.device)[None]
        logits = module(input_ids=ids, past_key_values=copy.deepcopy(cache), use_cache=True).logits[0]
        found.append(logits[task.cue - 1 : -1].double().log_softmax(-1))
    return torch.cat(found)


def _line(task: Task, method: str, kept: int, found: Tensor, own: Tensor) -> dict[str, Any]:
    wanted = torch.tensor(task.asked, device=found.device)
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
