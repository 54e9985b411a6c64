"""Which keys each head should keep when only a share of all keys can be stored, and whether that is better than others.

| file | contents |
|---|---|
| `running` | `budget`: settings, windows, measuring, comparing; `BudgetResult` |
| `selection` | settings, checked; which keys each of the compared methods keeps |
| `allocation` | the error of every head by kind and number of keys, the budgets with the smallest; for other programs |
| `comparison` | the methods in the model, on fresh text and on a recall task; paired intervals |
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnscope.store.kinds import Description, Kind, Verb


def describe(folder: Path, budget: Mapping[str, Any]) -> Description:
    """One budget as a line of a list; its verdict says which methods it is better than."""
    settings = budget["settings"]
    size = f"key budget of {settings['keep']:g}: {settings['windows']:,} x {settings['length']:,} tokens"
    compared = [line for line in budget["comparison"] if "kl_gain" in line]
    better = sum(line["kl_gain"]["verdict"] == "better" for line in compared)
    verdict = f"better than {better} of {len(compared)} other methods by KL divergence"
    return Description(budget["model"], budget["text"]["source"], size, verdict)


KINDS = (
    Kind(
        "budget",
        load="attnscope.studies.budget.running:BudgetResult.load",
        describe="attnscope.studies.budget:describe",
        record="budget.json",
        needs=(("comparison.parquet",),),
        written=(
            *("budget.json", "full_attention_heads.tsv", "config.json", "layers.json", "comparison.parquet"),
            "report.html",
        ),
        verbs=(Verb("budget", "attnscope.studies.budget.verb:budget", "Decide"),),
    ),
)
