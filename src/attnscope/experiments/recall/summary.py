"""Means over seeds with their intervals, and which normalizers cannot be told from the best."""

from __future__ import annotations

import math

import polars as pl

from attnscope.experiments.intervals import student_deviations

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
