"""The numbers that summary and page show: one line for each head, N and length, averaged over windows."""

from __future__ import annotations

import polars as pl

# A top set of this size is shown where only one can be; the nearest measured size stands in.
USUAL_N = 20

HEAD_MEASURES = {
    "separability": "Separability",
    "top_mass": "Weight of the top set",
    "distance_ratio": "Distance / expected for a random set",
    "entropy_ratio": "Entropy / ln length",
    "max_weight": "Largest weight",
    "sink_weight": "Weight of the first key",
    "participation": "Tokens in use (participation)",
    "jacobian_norm": "Jacobian norm",
}


def longest(topn: pl.DataFrame) -> int:
    """The longest position measured, as the length a user asked for."""
    return int(topn["position"].max()) + 1  # type: ignore[arg-type]


def usual_n(topn: pl.DataFrame) -> int:
    """The measured N nearest to the usual one."""
    return min(topn["n"].unique().to_list(), key=lambda n: (abs(n - USUAL_N), n))


def heads(rows: pl.DataFrame, topn: pl.DataFrame) -> pl.DataFrame:
    """One line for each layer and head: the measures at the longest length, mean over windows."""
    at = pl.col("position") == longest(topn) - 1
    keys = ["layer", "head"]
    spread = ["entropy_ratio", "max_weight", "sink_weight", "participation", "jacobian_norm"]
    expected = (pl.col("expected_lower") + pl.col("expected_upper")) / 2
    chosen = topn.filter(at, n=usual_n(topn)).with_columns(distance_ratio=pl.col("distance") / expected)
    sets = ["separability", "top_mass", "distance_ratio"]
    return (
        chosen.group_by(keys)
        .agg(pl.col(sets).mean())
        .join(rows.filter(at).group_by(keys).agg(pl.col(spread).mean()), on=keys)
        .sort(keys)
        .select(*keys, *HEAD_MEASURES)
    )


def by_n(topn: pl.DataFrame) -> pl.DataFrame:
    """One line for each layer, head and N at the longest length, mean over windows."""
    columns = [
        "top_mass",
        "distance",
        "distance_lower",
        "distance_upper",
        "distance_bound_printed",
        "expected_lower",
        "expected_upper",
        "expected_printed",
        "separability",
        "separability_lower",
        "separability_upper",
        "separability_lower_printed",
        "separability_upper_printed",
    ]
    at = topn.filter(position=longest(topn) - 1)
    return at.group_by("layer", "head", "n").agg(pl.col(columns).mean()).sort("layer", "head", "n")


def median_by_n(topn: pl.DataFrame) -> pl.DataFrame:
    """Medians over heads for each N, with the 5% and 95% quantiles of the separability."""
    values = pl.selectors.exclude("layer", "head", "n")
    return (
        by_n(topn)
        .group_by("n")
        .agg(
            values.median(),
            pl.col("separability").quantile(0.05).alias("separability_q05"),
            pl.col("separability").quantile(0.95).alias("separability_q95"),
        )
        .sort("n")
    )


def median_by_length(rows: pl.DataFrame) -> pl.DataFrame:
    """Medians over heads and windows for each length."""
    values = ["entropy_ratio", "max_weight", "sink_weight", "participation", "jacobian_norm"]
    return (
        rows.group_by("position")
        .agg(pl.col("length").median().cast(pl.Int64), pl.col(values).median())
        .sort("position")
        .drop("position")
    )
