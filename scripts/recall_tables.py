#!/usr/bin/env python3
"""Print the tables of docs/recall.md, as Markdown, from finished runs.

    python scripts/recall_tables.py runs/recall runs/positions
    python scripts/recall_tables.py --models runs/length-models

Numbers are means over seeds with half their 95% interval. A star: the difference to the best of the column, seed by
seed, has an interval that contains zero.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import polars as pl

from attnscope.studies.recall.running import half_width, summarize

_SETTING = ("task", "position_encoding", "qk_norm", "length_ratio", "length")


def recall_tables(table: pl.DataFrame) -> Iterator[str]:
    """A table for each task, position encoding and length: a line for each normalizer, a column for each budget."""
    for keys, part in summarize(table).group_by(_SETTING, maintain_order=True):
        task, encoding, qk_norm, ratio, length = keys
        words = f"`{task}` at {length:,} ({ratio} times)" if ratio != 1 else f"`{task}` at {length:,}, as in training"
        words += "" if encoding == "none" else f", {encoding} positions"
        words += "" if qk_norm else ", no QK-norm"
        budgets = part["budget"].unique(maintain_order=True).to_list()
        heading = ["", *("no budget" if one is None else f"K = {one:g}" for one in budgets)]
        lines = [
            [str(name), *map(_accuracy, lines.to_dicts())]
            for (name,), lines in part.group_by(["normalizer"], maintain_order=True)
        ]
        yield f"{words}:\n\n{_markdown(heading, lines)}"


def _accuracy(line: dict[str, float]) -> str:
    half = line["accuracy_high"] - line["accuracy"]
    return f"{100 * line['accuracy']:.1f} ± {100 * half:.1f}{'*' if line['among_best'] else ''}"


def model_tables(models: list[dict[str, Any]]) -> Iterator[str]:
    """Tables of the models of scripts/length_models.py: a line for each normalizer, a column for each length."""
    lengths = [part["to"] for part in models[0]["by_position"]]

    def by_position(name: str) -> Callable[[dict[str, Any], int], float]:
        return lambda model, length: next(part[name] for part in model["by_position"] if part["to"] == length)

    def median(name: str) -> Callable[[dict[str, Any], int], float]:
        return lambda model, length: next(line[name] for line in model["medians"] if line["length"] == length)

    yield "Copying, percent:\n\n" + _comparison(models, lengths, lambda model, at: 100 * model["copying"][str(at)], 1)
    recall = by_position("recall")
    yield "Recall of names, percent:\n\n" + _comparison(models, lengths, lambda model, at: 100 * recall(model, at), 1)
    yield "Loss, nats:\n\n" + _comparison(models, lengths, by_position("loss"), 3, best=min)
    for name in ("jacobian_norm", "max_weight", "support"):
        yield f"Median of `{name}`:\n\n" + _comparison(models, lengths, median(name), 3, best=None)
    yield "Heads:\n\n" + _markdown(
        ["", "states of 16 heads, mean over seeds", "largest Jacobian norm"], _states(models)
    )


def _comparison(
    models: list[dict[str, Any]],
    lengths: list[int],
    value: Callable[[dict[str, Any], int], float],
    digits: int,
    best: Callable[..., Any] | None = max,
) -> str:
    names = list(dict.fromkeys(model["normalizer"] for model in models))
    lines = {name: [name] for name in names}
    for length in lengths:
        values = {name: [value(model, length) for model in models if model["normalizer"] == name] for name in names}
        leader = None if best is None else best(values.values(), key=mean)
        for name, own in values.items():
            half = half_width(stdev(own), len(own))
            star = leader is not None and _same([a - b for a, b in zip(own, leader, strict=True)])
            lines[name].append(f"{mean(own):.{digits}f} ± {half:.{digits}f}{'*' if star else ''}")
    return _markdown(["", *(f"{length:,}" for length in lengths)], list(lines.values()))


def _same(differences: list[float]) -> bool:
    return abs(mean(differences)) <= half_width(stdev(differences), len(differences)) + 1e-12


def _states(models: list[dict[str, Any]]) -> list[list[str]]:
    lines = []
    for name in dict.fromkeys(model["normalizer"] for model in models):
        own = [model for model in models if model["normalizer"] == name]
        states: Counter[str] = Counter()
        for model in own:
            states.update(model["states"])
        words = ", ".join(f"{count / len(own):.1f} {state}" for state, count in states.most_common())
        lines.append([name, words, f"{max(model['largest_jacobian_norm'] for model in own):.2f}"])
    return lines


def _markdown(heading: list[str], lines: list[list[str]]) -> str:
    rows = [heading, ["---"] * len(heading), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, help="folders of attnscope recall")
    parser.add_argument("--models", nargs="*", type=Path, default=[], help="folders of scripts/length_models.py")
    chosen = parser.parse_args()
    for run in chosen.runs:
        print(*recall_tables(pl.read_parquet(run / "recall.parquet")), sep="\n\n", end="\n\n")
    lines = [line for folder in chosen.models for line in (folder / "results.jsonl").read_text("utf-8").splitlines()]
    if lines:
        print(*model_tables([json.loads(line) for line in lines]), sep="\n\n")


if __name__ == "__main__":
    main()
