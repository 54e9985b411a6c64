"""Means over seeds with intervals, which normalizers cannot be told from the best, and the picture of them.

The lower row has the weight of the answer, for tasks with one answer, and as frontier the largest weight that Theorem S
leaves to any permutation-equivariant rule with this budget on the same logits. No theorem limits the accuracy itself,
because a class can be read from a small weight if the others cancel: its upper line is the best reader.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from attnscope.intervals import student_deviations
from attnscope.show.figure_files import FigureStyle, draw_into
from attnscope.show.figures import (
    BLACK,
    BLUE,
    GRAY,
    GREEN,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    Figure,
    Mark,
    Panel,
    linear_range,
    log_axis,
)

KEYS = ("task", "position_encoding", "qk_norm", "budget", "length", "length_ratio", "normalizer")


def half_width(deviation: float, seeds: int) -> float:
    """Half the 95% interval of a mean over seeds, from their standard deviation."""
    return student_deviations(seeds - 1) * deviation / math.sqrt(seeds)


def summarize(table: pl.DataFrame) -> pl.DataFrame:
    """One line for each setting and length: the mean over seeds, its 95% interval, and whether it is among the best.

    `among_best` is whether, over the same seeds and test examples, the interval of the difference to the normalizer
    with the highest mean contains zero.
    """
    means = table.group_by(KEYS, maintain_order=True).agg(
        pl.len().alias("seeds"),
        pl.col("accuracy").mean(),
        pl.col("accuracy").std().alias("deviation"),
        pl.col("ceiling").mean(),
        pl.col("jacobian_norm").max(),
        pl.col("answer_weight").mean(),
        pl.col("answer_weight_limit").mean(),
        pl.col("accuracy").alias("by_seed"),
    )
    lines = means.to_dicts()
    best: dict[tuple[object, ...], list[float]] = {}
    for line in sorted(lines, key=lambda line: line["accuracy"]):
        best[tuple(line[key] for key in KEYS[:-1])] = line["by_seed"]
    for line in lines:
        half = half_width(line.pop("deviation"), line["seeds"])
        line["accuracy_low"], line["accuracy_high"] = line["accuracy"] - half, line["accuracy"] + half
        differences = [b - a for a, b in zip(line.pop("by_seed"), best[tuple(line[k] for k in KEYS[:-1])], strict=True)]
        mean = sum(differences) / len(differences)
        deviation = math.sqrt(sum((d - mean) ** 2 for d in differences) / (len(differences) - 1))
        line["among_best"] = mean <= half_width(deviation, len(differences)) + 1e-12
    return pl.DataFrame(lines, schema_overrides={"budget": pl.Float64, "answer_weight": pl.Float64,
                                                 "answer_weight_limit": pl.Float64})  # fmt: skip


RATIO = 16
NAME = "budget"
PICTURE = f"{NAME}.svg"
_COLORS = (BLUE, SKY, PURPLE, GREEN, GRAY, ORANGE, RED, "#6b4226")
_SHAPES = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross")
_BEST = Mark("best reader", BLACK, line=1, dash=(2, 2))
_FRONTIER = Mark("limit of Theorem S", BLACK, line=1.2, dash=(5, 3))


def draw_picture(folder: Path, summary: pl.DataFrame) -> list[str]:
    """Write the picture as SVG, PDF, PNG and its data; nothing if fewer than two budgets were run at 16 times."""
    figure = budget_figure(summary)
    return [] if figure is None else draw_into(folder, {NAME: figure}, FigureStyle())


def budget_figure(summary: pl.DataFrame) -> Figure | None:
    """The figure; None if fewer than two budgets were run at 16 times the training length."""
    points = summary.filter(pl.col("budget").is_not_null(), length_ratio=RATIO, qk_norm=True).sort("budget")
    budgets = points["budget"].unique().to_list()
    if len(budgets) < 2:
        return None
    marks = normalizer_marks(points["normalizer"].unique(maintain_order=True).to_list())
    tasks = points.select("task", "position_encoding").unique(maintain_order=True).to_dicts()
    upper = [_accuracy(points.filter(**task), marks, task["task"]) for task in tasks]
    lower = [_weight(part, marks) for task in tasks if _has_limit(part := points.filter(**task))]
    notes = [
        "mean over seeds with 95% intervals",
        "the frontier is the largest mean weight of the answer that Theorem S allows on the logits of any model",
    ]
    title = f"Accuracy at {RATIO} times the training length against the Jacobian budget"
    return Figure(title, notes, [upper, lower] if lower else [upper], points)


def normalizer_marks(names: Sequence[str]) -> dict[str, Mark]:
    """A color and shape for each normalizer."""
    return {
        name: Mark(name, _COLORS[i % len(_COLORS)], point=_SHAPES[i % len(_SHAPES)], bar=1)
        for i, name in enumerate(names)
    }


def _has_limit(part: pl.DataFrame) -> bool:
    return part["answer_weight_limit"].is_not_null().any()


def _accuracy(part: pl.DataFrame, marks: dict[str, Mark], task: str) -> Panel:
    columns = part.select("normalizer", x="budget", value="accuracy", low="accuracy_low", high="accuracy_high")
    clipped = columns.with_columns(pl.col("low", "high").clip(0, 1))
    series = [(mark, clipped.filter(normalizer=name)) for name, mark in marks.items()]
    best = part.group_by("budget", maintain_order=True).agg(value=pl.col("ceiling").max()).rename({"budget": "x"})
    return Panel(task, _budgets(part), linear_range("value", "Accuracy", 0, 1), [*series, (_BEST, best)])


def _weight(part: pl.DataFrame, marks: dict[str, Mark]) -> Panel:
    columns = part.select("normalizer", x="budget", value="answer_weight", low="answer_weight", high="answer_weight")
    series = [(mark, columns.filter(normalizer=name)) for name, mark in marks.items()]
    limit = part.group_by("budget", maintain_order=True).agg(value=pl.col("answer_weight_limit").max())
    return Panel(
        f"{part['task'][0]}: weight of the answer",
        _budgets(part),
        linear_range("value", "Answer weight", 0, 1),
        [*series, (_FRONTIER, limit.rename({"budget": "x"}))],
    )


def _budgets(part: pl.DataFrame) -> dict[str, object]:
    return log_axis("x", "Jacobian budget K", part["budget"].to_list())
