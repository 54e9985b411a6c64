"""A recall run in the terminal: a table of accuracies for each task and budget, within 80 columns."""

from __future__ import annotations

import polars as pl
from rich.console import Console, RenderableType
from rich.text import Text

from attnscope.report.terminal import paragraph, tables, titled

_GROUP = ("task", "position_encoding", "qk_norm", "budget")


def print_recall(console: Console, summary: pl.DataFrame) -> None:
    """Print accuracy by length for each normalizer, with half the 95% interval, and a star on the best ones."""
    for position, (keys, part) in enumerate(summary.group_by(_GROUP, maintain_order=True)):
        if position:
            console.print()
        console.print(_block(setting_words(*keys), part, console.width))
    console.print()
    seeds = int(summary["seeds"][0])
    console.print(
        paragraph(
            f"Percent right, mean over {seeds} seeds, with half its 95% interval. *: the difference to the best, "
            "seed by seed, has an interval that contains 0. J: largest Jacobian norm that was measured. "
            "Best reader: who knows the task and has the same examples.",
            style="dim",
        )
    )


def setting_words(task: object, encoding: object, qk_norm: object, budget: object) -> str:
    """The setting of a table: "needle: Jacobian norm at most 3, rope positions"."""
    words = "no budget" if budget is None else f"Jacobian norm at most {budget:g}"
    details = [] if encoding == "none" else [f"{encoding} positions"]
    details += [] if qk_norm else ["no QK-norm"]
    return ", ".join([f"{task}: {words}", *details])


def _block(title: str, part: pl.DataFrame, width: int) -> RenderableType:
    lengths = part.select("length", "length_ratio", "ceiling").unique(maintain_order=True).sort("length").to_dicts()
    headings = ["Normalizer", *(f"{one['length']:,} (x{one['length_ratio']})" for one in lengths), "J"]
    rows: list[list[str | Text]] = []
    for (name,), lines in part.group_by(["normalizer"], maintain_order=True):
        cells = [accuracy_words(line) for line in lines.sort("length").to_dicts()]
        norms = [line["jacobian_norm"] for line in lines.to_dicts()]
        rows.append([str(name), *cells, f"{max(norms):.2g}"])
    if any(one["ceiling"] < 1 for one in lengths):
        rows.append(["best reader", *(f"{100 * one['ceiling']:.1f}      " for one in lengths), ""])
    return titled(title, *tables(headings, rows, width))


def accuracy_words(line: dict[str, float]) -> str:
    """An accuracy with half its interval, in percent, and a star if it is among the best."""
    half = line["accuracy_high"] - line["accuracy"]
    return f"{100 * line['accuracy']:.1f} ±{100 * half:4.1f}{'*' if line['among_best'] else ' '}"
