"""Sections 3.2 and 4: the claims on separability, several heads, and entropy (Figure 3)."""

from __future__ import annotations

import numpy as np
import polars as pl

from attnscope.studies.paper.evidence import ROUNDING, UNIT, Claim, Evidence, Measure, Measurement
from attnscope.studies.paper.settings import SATURATION_N, SEPARABILITY_N

CEILING = 0.85
EARLIER = 4  # changes are measured from at most a quarter of the longest length


def _falls(e: Evidence) -> list[Measurement]:
    mean = {n: pl.col("separability").filter(pl.col("n") == n).mean() for n in (2, SATURATION_N)}
    name = f"mean separability at N = {SATURATION_N} less that at 2"
    return e.measure(name, e.longest("topn"), mean[SATURATION_N] - mean[2], (-1.0, -0.05))


def _at_each_n(
    e: Evidence, name: str, statistic: pl.Expr, accepted: tuple[float, float], least: int
) -> list[Measurement]:
    table = e.longest("topn")
    return [
        one
        for n in SEPARABILITY_N
        if n >= least
        for one in e.measure(name, table.filter(n=n), statistic, accepted, f"N = {n}")
    ]


def _plateau(e: Evidence) -> list[Measurement]:
    return _at_each_n(e, "median separability", pl.median("separability"), (0.70, 0.85), SATURATION_N)


def _ceiling(e: Evidence) -> list[Measurement]:
    high = pl.col("separability").quantile(0.95)
    return _at_each_n(e, "separability that 5% of the heads exceed", high, (0.0, CEILING), SATURATION_N)


def _tracks(column: str) -> Measure:
    def measured(e: Evidence) -> list[Measurement]:
        gap = pl.col(column).max() - pl.col("separability").max()
        return _at_each_n(e, "largest bound less largest separability", gap, (-0.05, 0.05), 2)

    return measured


def _holds(condition: pl.Expr, side: str) -> Measure:
    def measured(e: Evidence) -> list[Measurement]:
        return e.every_row(f"share of rows {side} bound", e.longest("topn"), condition)

    return measured


def _upper_holds(column: str) -> Measure:
    return _holds(pl.col("separability") <= pl.col(column) + ROUNDING, "below the upper")


def _lower_holds(column: str) -> Measure:
    return _holds(pl.col("separability") >= pl.col(column) - ROUNDING, "above the lower")


def _three_heads(column: str, name: str) -> Measure:
    def measured(e: Evidence) -> list[Measurement]:
        table = e.table("coverage").filter(heads=3)
        return e.measure(f"{name}, three heads of a layer", table, pl.mean(column), (0.985, 1.0))

    return measured


def _entropy(e: Evidence) -> list[Measurement]:
    return e.measure(
        "rank correlation over heads of entropy and separability", _joined(e), _rank_correlation(), (-1.0, -0.3)
    )


def _entropy_change(e: Evidence) -> list[Measurement]:
    """Rank correlation over heads between the changes of entropy and of separability with L."""
    lengths = e.table("rows")["prefix"].unique().to_list()
    early = max((length for length in lengths if length <= max(lengths) / EARLIER), default=None)
    if early is None:
        return []
    both = _joined(e).join(_joined(e, early), on=[*UNIT, "layer", "head"], suffix="_early")
    changes = [(pl.col(name) - pl.col(f"{name}_early")).alias(name) for name in ("entropy_ratio", "separability")]
    if both.is_empty():
        return []
    changed = both.select(*UNIT, *changes)
    return e.measure("rank correlation over heads of the changes with L", changed, _rank_correlation(), (-1.0, -0.3))


def _joined(e: Evidence, prefix: int | None = None) -> pl.DataFrame:
    """Entropy and separability of each head at a length (default: the longest)."""
    keys = [*UNIT, "layer", "head"]
    rows, topn = e.table("rows"), e.table("topn").filter(n=SATURATION_N)
    at = pl.col("prefix") == (rows["prefix"].max() if prefix is None else prefix)
    return rows.filter(at).select(*keys, "entropy_ratio").join(topn.filter(at).select(*keys, "separability"), on=keys)


def _rank_correlation() -> pl.Expr:
    return pl.corr("entropy_ratio", "separability", method="spearman")


def _sharpness(cold: float, warm: float, column: str, accepted: tuple[float, float], name: str) -> Measure:
    def measured(e: Evidence) -> list[Measurement]:
        mean = {t: pl.col(column).filter((pl.col("temperature") - t).abs() < 1e-9).mean() for t in (cold, warm)}
        return e.measure(
            f"{name} at T = {cold} less that at {warm}", e.table("sharpness"), mean[cold] - mean[warm], accepted
        )

    return measured


def _too_sharp(e: Evidence) -> list[Measurement]:
    separability = _sharpness(0.05, 0.1, "separability", (-1.0, 0.01), "mean separability")(e)
    return separability + _sharpness(0.05, 0.1, "jacobian_norm", (np.nextafter(0, 1), np.inf), "mean Jacobian norm")(e)


CLAIMS = [
    Claim(
        "separability-falls",
        "Section 3.2",
        "the share of distinguishable tokens declines up to N of about 16",
        "mean separability at N = 16 at least 0.05 below that at N = 2",
        _falls,
    ),
    Claim(
        "separability-plateau",
        "Section 3.2, Fig. 3",
        "it then saturates between 0.70 and 0.85",
        "median over heads within 0.70 to 0.85 at every N from 16 up",
        _plateau,
    ),
    Claim(
        "at-most-80-percent",
        "Section 3.2; section 4; section 5",
        "softmax attention cannot separate more than about four-fifths of its tokens",
        "the separability that 5% of the heads exceed is at most 0.85 at every N from 16 up",
        _ceiling,
    ),
    Claim(
        "upper-bound-tracks",
        "Section 3.2, Fig. 3",
        "the upper bound tracks the empirical maxima closely",
        "largest bound over heads within 0.05 of the largest separability at every N from 2 up",
        _tracks("separability_upper_printed"),
        _tracks("separability_upper"),
        "T2a",
    ),
    Claim(
        "upper-bound-holds",
        "Theorem 2, Fig. 3",
        "separability stays below the upper bound",
        "every row of every window below the bound",
        _upper_holds("separability_upper_printed"),
        _upper_holds("separability_upper"),
        "T2a",
    ),
    Claim(
        "lower-bound-holds",
        "Theorem 2, Fig. 3",
        "separability stays above the lower bound",
        "every row of every window above the bound",
        _lower_holds("separability_lower_printed"),
        _lower_holds("separability_lower"),
        "T2a",
    ),
    Claim(
        "three-heads-99-percent",
        "Section 4",
        "three heads cover 99% of the top tokens",
        "printed: 1 - (1 - p)^3 with each layer's p at least 0.985; corrected: the share that three of its heads cover",
        _three_heads("independent", "1 - (1 - p)^3"),
        _three_heads("coverage", "measured coverage"),
        "tokens distinguishable in at least one of three heads, counted",
    ),
    Claim(
        "entropy-early-sign",
        "Section 4, guideline 2; section 5",
        "rising entropy is an early sign that a head has saturated",
        "printed: rank correlation over heads of entropy / ln L and separability at N = 16 at most -0.3; corrected: "
        "the same of their changes from a quarter of the longest length to the longest",
        _entropy,
        _entropy_change,
        "changes of each head with L",
    ),
    Claim(
        "sharper-separates",
        "Section 3.3",
        "sharper softmax improves token separability",
        "mean separability at N = 16 at least 0.02 higher at T = 0.2 than at the model's own T = 1",
        _sharpness(0.2, 1.0, "separability", (0.02, np.inf), "mean separability"),
    ),
    Claim(
        "too-sharp",
        "Section 4, guideline 3; section 5",
        "T below 0.1 raises Jacobian norms without raising separability",
        "from T = 0.1 to 0.05 mean separability rises by at most 0.01 and the mean Jacobian norm rises",
        _too_sharp,
    ),
]
