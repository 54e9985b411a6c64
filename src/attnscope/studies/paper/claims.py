"""The paper's empirical claims, evaluated on the tables of a reproduction: `claims.json`.

The line of a table is a head's mean over rows. The expectation is known by its proved range E1, so the corrected form
of a claim on it is judged at both ends. No verdict is stored here: each claim is a statistic and an accepted range.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import torch

from attnscope.intervals import proportion
from attnscope.studies.paper.every_n import LEVEL
from attnscope.studies.paper.evidence import (
    ROUNDING,
    Claim,
    Evidence,
    Measure,
    Measurement,
    Range,
    answer_claim,
    both_ends,
    readings,
    window_values,
)
from attnscope.studies.paper.settings import FIXED_N, SATURATION_N, SEPARABILITY_N, STEPS
from attnscope.theory.gradient import finite_difference_bound, softmax_bound_printed

if TYPE_CHECKING:
    from collections.abc import Callable

DISTANCE, TESTS, CRITICAL = "protocol_distance", "protocol_tests", "protocol_critical"
SEPARABILITY, ROWS, GRADIENT = "protocol_separability", "protocol_rows", "protocol_gradient"
LINEAR, EQUAL, NEAR = (0.9, 1.1), (1 / 1.1, 1.1), (0.9, 1.1)
LATE_N, KNEE_N = 100, 20
SHARE, ABOUT = 0.06, (0.05, 0.07)  # of the tokens, for the critical N
PROPORTION = 8  # "N grows proportionally to L" is measured at N = L / 8
CEILING = 0.85
FLAT = 0.1  # how far separability may move from N = 16 on and still be called saturated
EARLIER = 4  # changes are measured from at most a quarter of the longest length
LOW_T = 0.1
LAW_T = (0.05, 5.0)  # where the law of the Jacobian norm is checked
ENDS = ("lower", "upper")  # of the proved range E1 of the expectation
IN_AVERAGES = "share of heads' averages"


def answer(tables: dict[str, pl.DataFrame], first_key: str = "kept") -> list[dict[str, Any]]:
    """Every claim with its place in the paper, rule, measurements and verdicts, ready for JSON."""
    evidence = {name: readings(tables, name) for name in dict.fromkeys(claim.table for claim in CLAIMS)}
    return [answer_claim(claim, evidence[claim.table], first_key) for claim in CLAIMS]


def _each(
    e: Evidence, name: str, cases: Sequence[tuple[str, pl.DataFrame]], statistic: pl.Expr, accepted: Range
) -> list[Measurement]:
    """A statistic measured in several cases: what it is measured at, and the lines."""
    return [one for at, table in cases for one in e.measure(name, table, statistic, accepted, at)]


def _ends(name: str, measure: Callable[[Evidence, str, str], list[Measurement]]) -> Measure:
    """A measure at both ends of the proved range of the expectation."""
    return lambda e: [one for end in ENDS for one in measure(e, f"expected_{end}", f"{name}, E1 {end}")]


# Figure 2: distance, expectation, critical N


def _exponent(e: Evidence, column: str, name: str) -> list[Measurement]:
    return e.exponent(name, e.table(DISTANCE).filter(n=FIXED_N), pl.median(column), LINEAR)


def _converged(e: Evidence, column: str, name: str) -> list[Measurement]:
    ratio = (pl.col("distance") / pl.col(column)).median()
    return e.measure(name, e.longest(DISTANCE).filter(n=LATE_N), ratio, EQUAL)


def _over_sum(e: Evidence, column: str, name: str) -> list[Measurement]:
    ratio = (pl.col(column) / pl.col("scaled_sum")).median()
    return e.measure(name, e.longest(DISTANCE).filter(n=FIXED_N), ratio, EQUAL)


def _below_bound(e: Evidence) -> list[Measurement]:
    holds = pl.col("distance") <= pl.col("bound_printed") * (1 + ROUNDING)
    return e.every_line(f"{IN_AVERAGES} with the distance below the bound", e.table(DISTANCE), holds)


def _in_printed_range(e: Evidence) -> list[Measurement]:
    """Whether the proved range of the expectation, E1, meets the printed one."""
    low, high = pl.col("expected_printed"), pl.col("expected_printed") + pl.col("epsilon_printed")
    meets = (pl.col("expected_upper") >= low * (1 - ROUNDING)) & (pl.col("expected_lower") <= high * (1 + ROUNDING))
    return e.every_line(f"{IN_AVERAGES} where E1 meets the printed range", e.table(DISTANCE), meets)


def _plateau(e: Evidence) -> list[Measurement]:
    median = {n: pl.col("distance").filter(pl.col("n") == n).median() for n in (KNEE_N, LATE_N)}
    name = f"median distance at N = {LATE_N} over that at {KNEE_N}"
    return e.measure(name, e.longest(DISTANCE), median[LATE_N] / median[KNEE_N], EQUAL)


def _tightens(e: Evidence) -> list[Measurement]:
    slack = pl.col("bound_printed") / pl.col("distance")
    late, early = (slack.filter(pl.col("n") == n).median() for n in (LATE_N, FIXED_N))
    name = f"bound / distance at N = {LATE_N} over that at {FIXED_N}"
    return e.measure(name, e.longest(DISTANCE), late / early, (-np.inf, 0.95))


def criticals(e: Evidence, expectation: str, kind: str = "first") -> pl.DataFrame:
    """The critical N by window and length, `n`; the length itself, and `none`, where no N is accepted."""
    n = pl.col(kind)
    table = e.table(CRITICAL).filter(expectation=expectation)
    return table.with_columns(none=n.is_null(), n=n.fill_null(pl.col("length")).cast(pl.Float64))


def _critical_share(accepted: Range, every_length: bool, *expectations: str) -> Measure:
    def measured(e: Evidence) -> list[Measurement]:
        measurements = []
        for expectation, suffix in _suffixes(expectations):
            table = criticals(e, expectation)
            lengths = table["length"].unique().sort().to_list()
            cases = [(f"L = {one}", table.filter(length=one)) for one in (lengths if every_length else lengths[-1:])]
            share = (pl.col("n") / pl.col("length")).first()
            measurements += _each(e, f"critical N / L{suffix}", cases, share, accepted)
        return measurements

    return measured


def _critical_exponent(*expectations: str) -> Measure:
    def measured(e: Evidence) -> list[Measurement]:
        measurements = []
        for expectation, suffix in _suffixes(expectations):
            # Where most windows have no critical N, its median is the length put in instead of it.
            table = criticals(e, expectation).filter(pl.mean("none").over("length") < 0.5)
            name = f"exponent b of critical N = c L^b{suffix}"
            measurements += e.exponent(name, table, pl.first("n"), (-np.inf, 0.999))
        return measurements

    return measured


def _suffixes(expectations: Sequence[str]) -> Iterator[tuple[str, str]]:
    yield from ((one, "" if one == "printed" else f", E1 {one}") for one in expectations)


def _accepted_at_100(e: Evidence) -> list[Measurement]:
    table = e.longest(TESTS).filter(n=LATE_N, expectation="printed")
    passed = window_values(table, (pl.col("p") >= LEVEL).mean())
    if not len(passed):
        return []
    estimate = proportion(float(passed.sum()), len(passed))
    return [Measurement(f"share of windows where KS accepts at N = {LATE_N}", estimate, (0.5, 1.0))]


def _uniform_mass(e: Evidence) -> list[Measurement]:
    name = f"weight of the top {LATE_N} over its uniform share N/L"
    return e.measure(name, e.longest(DISTANCE).filter(n=LATE_N), pl.median("top_mass_ratio"), (0.5, 2.0))


def _collapse(per_token: bool, accepted: Range) -> Measure:
    def measured(e: Evidence) -> list[Measurement]:
        wanted = pl.col("n") == pl.col("length") // PROPORTION
        table = e.table(TESTS).filter(pl.col("expectation") == "printed", wanted)
        each = pl.col("distance") / (pl.col("length") - pl.col("n") if per_token else 1)
        name = f"exponent of the distance{' of a token' if per_token else ''} in L at N = L/{PROPORTION}"
        return e.exponent(name, table, each.first(), accepted)

    return measured


def _vanishing(accepted: Range) -> Measure:
    name = "exponent of the median max weight in L"
    return lambda e: e.exponent(name, e.table(ROWS), pl.median("max_weight"), accepted)


# Figure 3: separability, several heads, entropy


def _at_each_n(e: Evidence, name: str, statistic: pl.Expr, accepted: Range, least: int) -> list[Measurement]:
    cases = [(f"N = {n}", e.longest(SEPARABILITY).filter(n=n)) for n in SEPARABILITY_N if n >= least]
    return _each(e, name, cases, statistic, accepted)


def _falls(e: Evidence) -> list[Measurement]:
    mean = {n: pl.col("separability").filter(pl.col("n") == n).mean() for n in (2, SATURATION_N)}
    name = f"mean separability at N = {SATURATION_N} less that at 2"
    return e.measure(name, e.longest(SEPARABILITY), mean[SATURATION_N] - mean[2], (-1.0, -0.05))


def _flat(e: Evidence) -> list[Measurement]:
    middle = {n: pl.col("separability").filter(pl.col("n") == n).median() for n in SEPARABILITY_N}
    name = f"median separability less that at N = {SATURATION_N}"
    return [
        one
        for n in SEPARABILITY_N
        if n > SATURATION_N
        for one in e.measure(name, e.longest(SEPARABILITY), middle[n] - middle[SATURATION_N], (-FLAT, FLAT), f"N = {n}")
    ]


def _saturated(e: Evidence) -> list[Measurement]:
    return _at_each_n(e, "median separability", pl.median("separability"), (0.70, 0.85), SATURATION_N)


def _ceiling(e: Evidence) -> list[Measurement]:
    high = pl.col("separability").quantile(0.95)
    return _at_each_n(e, "separability that 5% of the heads exceed", high, (0.0, CEILING), SATURATION_N)


def _tracks(e: Evidence) -> list[Measurement]:
    gap = pl.col("upper_printed").max() - pl.col("separability").max()
    return _at_each_n(e, "largest bound less largest separability", gap, (-0.05, 0.05), 2)


def _below_upper(e: Evidence) -> list[Measurement]:
    holds = pl.col("separability") <= pl.col("upper_printed") + ROUNDING
    return e.every_line(f"{IN_AVERAGES} below the upper bound", e.longest(SEPARABILITY), holds)


def _above_lower(e: Evidence) -> list[Measurement]:
    holds = pl.col("separability") >= pl.col("lower_printed") - ROUNDING
    return e.every_line(f"{IN_AVERAGES} above the lower bound", e.longest(SEPARABILITY), holds)


def _three_heads(column: str, name: str) -> Measure:
    words = f"{name}, three heads of a layer"
    return lambda e: e.measure(words, e.table("coverage").filter(heads=3), pl.mean(column), (0.985, 1.0))


def _entropy(e: Evidence) -> list[Measurement]:
    name = "rank correlation over heads of entropy and separability"
    return e.measure(name, _with_entropy(e), _rank_correlation(), (-1.0, -0.3))


def _entropy_change(e: Evidence) -> list[Measurement]:
    """Rank correlation over heads between the changes of entropy and of separability with L."""
    lengths = e.table(ROWS)["length"].unique().to_list()
    early = max((length for length in lengths if length <= max(lengths) / EARLIER), default=None)
    if early is None:
        return []
    both = _with_entropy(e).join(_with_entropy(e, early), on=["window", "layer", "head"], suffix="_early")
    if both.is_empty():
        return []
    changes = [(pl.col(name) - pl.col(f"{name}_early")).alias(name) for name in ("entropy_ratio", "separability")]
    name = "rank correlation over heads of the changes with L"
    return e.measure(name, both.select("window", *changes), _rank_correlation(), (-1.0, -0.3))


def _with_entropy(e: Evidence, length: int | None = None) -> pl.DataFrame:
    """Entropy and separability of each head at a length (default: the longest)."""
    keys = ["window", "layer", "head"]
    rows, sets = e.table(ROWS), e.table(SEPARABILITY).filter(n=SATURATION_N)
    at = pl.col("length") == (rows["length"].max() if length is None else length)
    return rows.filter(at).select(*keys, "entropy_ratio").join(sets.filter(at).select(*keys, "separability"), on=keys)


def _rank_correlation() -> pl.Expr:
    return pl.corr("entropy_ratio", "separability", method="spearman")


def _sharpness(cold: float, warm: float, column: str, accepted: Range, name: str) -> Measure:
    mean = {t: pl.col(column).filter((pl.col("temperature") - t).abs() < 1e-9).mean() for t in (cold, warm)}
    words = f"{name} at T = {cold} less that at {warm}"
    return lambda e: e.measure(words, e.table("sharpness"), mean[cold] - mean[warm], accepted)


def _too_sharp(e: Evidence) -> list[Measurement]:
    separability = _sharpness(0.05, 0.1, "separability", (-1.0, 0.01), "mean separability")(e)
    return separability + _sharpness(0.05, 0.1, "jacobian_norm", (np.nextafter(0, 1), np.inf), "mean Jacobian norm")(e)


# Figure 4: gradient sensitivity


def maxima(e: Evidence, direction: str) -> pl.DataFrame:
    """The largest g over heads for each window, T and eps, with its printed and its exact bound."""

    def largest() -> pl.DataFrame:
        bounded = ("temperature", "step")
        of_heads = e.table(GRADIENT).filter(direction=direction).group_by("window", *bounded)
        table = of_heads.agg(pl.max("g")).sort(*bounded)
        temperature, step = (torch.tensor(table[name].to_list(), dtype=torch.float64) for name in bounded)
        printed, exact = softmax_bound_printed(temperature), finite_difference_bound(temperature, step)
        return table.with_columns(printed=pl.Series(printed.tolist()), exact=pl.Series(exact.tolist()))

    return e.once(("largest g", direction), largest)


def _at_each_step(e: Evidence, name: str, table: pl.DataFrame, statistic: pl.Expr, range_: Range) -> list[Measurement]:
    return _each(e, name, [(f"eps = {step:g}", table.filter(step=step)) for step in STEPS], statistic, range_)


def _near(temperature: float) -> pl.Expr:
    return (pl.col("temperature").log() - math.log(temperature)).abs() < 1e-6


def _at_step(temperature: float) -> dict[float, pl.Expr]:
    """Expressions for g at one T, by eps."""
    return {step: pl.col("g").filter(_near(temperature) & (pl.col("step") == step)).first() for step in STEPS}


def _slopes(direction: str) -> Measure:
    t, g = pl.col("temperature").log(), pl.col("g").log()
    name, cold = f"slope of ln g in ln T for T <= {LOW_T}", pl.col("temperature") < LOW_T * 1.001
    return lambda e: _at_each_step(e, name, maxima(e, direction).filter(cold), pl.cov(t, g) / t.var(), (-1.1, -0.9))


def _excess(direction: str) -> Measure:
    name, ratio = "largest g / min{1/(4T), sqrt 2} over T", (pl.col("g") / pl.col("printed")).max()
    return lambda e: _at_each_step(e, name, maxima(e, direction), ratio, (-np.inf, 1 + ROUNDING))


def _smaller_larger(direction: str) -> Measure:
    g, name = _at_step(0.01), "g over that at the next larger eps, T = 0.01"
    return lambda e: [
        one
        for small, large in pairwise(STEPS)
        for one in e.measure(name, maxima(e, direction), g[small] / g[large], (1.001, np.inf), f"eps = {small:g}")
    ]


def _alike_when_warm(direction: str) -> Measure:
    name, ratio = "largest over smallest g of the three eps", pl.max("g") / pl.min("g")
    return lambda e: _each(
        e, name, [(f"T = {t:g}", maxima(e, direction).filter(_near(t))) for t in (1.0, 10.0)], ratio, (1.0, 1.1)
    )


def _two_orders(direction: str) -> Measure:
    cold, warm, name = _at_step(0.01), _at_step(1.0), "g at T = 0.01 over g at T = 1"
    return lambda e: [
        one
        for step in STEPS
        for one in e.measure(name, maxima(e, direction), cold[step] / warm[step], (100.0, np.inf), f"eps = {step:g}")
    ]


def _below(bound: str) -> Measure:
    holds = pl.col("g") <= pl.col(bound) * (1 + ROUNDING)
    return lambda e: e.every_line("share of points (T, eps) below the bound", maxima(e, "worst"), holds)


def _near_limit(direction: str, bound: str) -> Measure:
    name, ratio = f"median of g / bound for T < {LOW_T}", (pl.col("g") / pl.col(bound)).median()
    cold = pl.col("temperature") < LOW_T * 0.999
    return lambda e: _at_each_step(e, name, maxima(e, direction).filter(cold), ratio, (0.5, 1 + ROUNDING))


def _follows(factor: float) -> Measure:
    """The largest Jacobian norm over heads (g of the smallest eps in the worst direction) over 1/(factor T)."""

    def measured(e: Evidence) -> list[Measurement]:
        table = maxima(e, "worst").filter(step=min(STEPS))
        cases = [(f"T = {t:.2g}", table.filter(_near(t)))
                 for t in table["temperature"].unique().sort() if LAW_T[0] <= t <= LAW_T[1]]  # fmt: skip
        ratio = pl.first("g") * factor * pl.first("temperature")
        return _each(e, f"largest Jacobian norm times {factor:g} T", cases, ratio, NEAR)

    return measured


_BOTH: dict[str, Any] = {"corrected_as": "at both ends of the proved range of E", "corrected_rule": both_ends}
_WORST = "in the worst direction"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        "distance-linear", "2a", DISTANCE, "Section 3.1 (i), Fig. 2a",
        "for N << L the distance scales linearly with sequence length",
        "exponent of the median distance at N = 5 between 0.9 and 1.1",
        lambda e: _exponent(e, "distance", "exponent of the median distance in L"),
    ),
    Claim(
        "expectation-linear", "2a", DISTANCE, "Fig. 2a", "the expectation grows roughly linearly in L",
        "exponent of the median expectation at N = 5 between 0.9 and 1.1",
        lambda e: _exponent(e, "expected_printed", "exponent of the median expectation in L, as printed"),
        _ends("exponent of the median expectation in L", _exponent), **_BOTH,
    ),
    Claim(
        "bound-safe", "2a", DISTANCE, "Fig. 2a", "the upper bound is safe",
        "every head's average below that of the bound", _below_bound,
    ),
    Claim(
        "plateau-beyond-20", "2b", DISTANCE, "Fig. 2b; section 4",
        "increasing N beyond 20 yields diminishing returns: the distance plateaus",
        "median distance changes by less than 10% from N = 20 to 100", _plateau,
    ),
    Claim(
        "bound-tightens", "2b", DISTANCE, "Section 3.1 (ii), Fig. 2b", "the bound tightens as N grows",
        "bound / distance falls by at least 5% from N = 5 to 100", _tightens,
    ),
    Claim(
        "converge-at-100", "2b", DISTANCE, "Section 3.1 (ii)",
        "as N approaches 100, the true and expected distances converge",
        "median over heads of distance / expectation at N = 100 within 10% of 1",
        lambda e: _converged(e, "expected_printed", "distance / printed expectation"),
        _ends("distance / expectation", _converged), **_BOTH,
    ),
    Claim(
        "critical-below-6-percent", "2c", CRITICAL, "Caption of Fig. 2",
        "fewer than 6% of the tokens are selected before distance and expectation become indistinguishable",
        "first N that the KS test accepts at most 0.06 of the longest L (no such N counts as L)",
        _critical_share((-np.inf, SHARE), False, "printed"),
        _critical_share((-np.inf, SHARE), False, *ENDS), **_BOTH,
    ),
    Claim(
        "critical-share", "2c", CRITICAL, "Section 3.1 (iii), Fig. 2c; section 4", "the critical N is about 0.06 L",
        "first N that the KS test accepts, over L, between 0.05 and 0.07 at every L (no such N counts as L)",
        _critical_share(ABOUT, True, "printed"), _critical_share(ABOUT, True, *ENDS),
        "against both ends of the proved range of E", both_ends,
    ),
    Claim(
        "critical-sublinear", "2c", CRITICAL, "Section 3.1 (iii)", "the critical N grows sub-linearly in L",
        "exponent b of critical N = c L^b below 1, over the lengths where more than half of the windows have one",
        _critical_exponent("printed"), _critical_exponent(*ENDS),
        "against both ends of the proved range of E", both_ends,
    ),
    Claim(
        "separability-falls", "3", SEPARABILITY, "Section 3.2",
        "the share of distinguishable tokens declines up to N of about 16",
        "mean separability at N = 16 at least 0.05 below that at N = 2", _falls,
    ),
    Claim(
        "separability-flat", "3", SEPARABILITY, "Section 3.2, Fig. 3", "from N of about 16 on it saturates",
        f"median over heads at every larger N within {FLAT} of that at N = {SATURATION_N}", _flat,
    ),
    Claim(
        "separability-plateau", "3", SEPARABILITY, "Section 3.2, Fig. 3", "it then saturates between 0.70 and 0.85",
        "median over heads within 0.70 to 0.85 at every N from 16 up", _saturated,
    ),
    Claim(
        "at-most-80-percent", "3", SEPARABILITY, "Section 3.2; section 4; section 5",
        "softmax attention cannot separate more than about four-fifths of its tokens",
        "the separability that 5% of the heads exceed is at most 0.85 at every N from 16 up", _ceiling,
    ),
    Claim(
        "upper-bound-tracks", "3", SEPARABILITY, "Section 3.2, Fig. 3",
        "the upper bound tracks the empirical maxima closely",
        "largest bound over heads within 0.05 of the largest separability at every N from 2 up", _tracks,
    ),
    Claim(
        "upper-bound-holds", "3", SEPARABILITY, "Theorem 2, Fig. 3", "separability stays below the upper bound",
        "every head's average below that of the bound", _below_upper,
    ),
    Claim(
        "lower-bound-holds", "3", SEPARABILITY, "Theorem 2, Fig. 3", "separability stays above the lower bound",
        "every head's average above that of the bound", _above_lower,
    ),
    Claim(
        "one-over-t", "4", GRADIENT, "Section 3.3, Fig. 4; section 5", "for T < 0.1 the curves follow 1/T",
        "slope of ln g in ln T between -1.1 and -0.9 for each eps", _slopes("random"), _slopes("worst"), _WORST,
    ),
    Claim(
        "below-dashed-curve", "4", GRADIENT, "Fig. 4", "the curves stay below the dashed bound min{1/(4T), sqrt 2}",
        "largest g / bound over T at most 1, for each eps", _excess("random"), _excess("worst"), _WORST,
    ),
    Claim(
        "smaller-step-larger", "4", GRADIENT, "Section 3.3", "smaller eps yield larger gradients",
        "g at T = 0.01 grows as eps falls", _smaller_larger("random"), _smaller_larger("worst"), _WORST,
    ),
    Claim(
        "collapse-above-one", "4", GRADIENT, "Section 3.3, Fig. 4", "once T >= 1 all curves collapse",
        "g for the three eps within 10% of each other at T = 1 and 10",
        _alike_when_warm("random"), _alike_when_warm("worst"), _WORST,
    ),
    Claim(
        "two-orders", "4", GRADIENT, "Section 3.3, Fig. 4",
        "once T >= 1 all curves drop by two orders of magnitude",
        "g at T = 0.01 at least 100 times g at T = 1, for each eps",
        _two_orders("random"), _two_orders("worst"), _WORST,
    ),
    Claim(
        "near-the-limit", "4", GRADIENT, "Section 4",
        "the model operates close to the theoretical limit when T < 0.1",
        "median of g / bound between 0.5 and 1 for each eps",
        _near_limit("random", "printed"), _near_limit("worst", "exact"),
        "the worst direction against the exact supremum",
    ),
    Claim(
        "vanishing-attention", None, ROWS, "Section 1; section 4",
        "attention weights collapse toward 1/L; the peak value drops as the context grows",
        "the max weight falls like 1/L: exponent -1.1 to -0.9; corrected: it falls at all, exponent below -0.05",
        _vanishing((-1.1, -0.9)), _vanishing((-np.inf, -0.05)), "the peak falls with L, at whatever rate",
    ),
    Claim(
        "corollary-2i", None, DISTANCE, "Section 3.1 (i)",
        "exactly as Corollary 2(i) predicts: E is about the sum of |alpha_i x_i|",
        "median over heads of E / sum |alpha_i x_i| at N = 5 within 10% of 1",
        lambda e: _over_sum(e, "expected_printed", "printed main term / sum of |alpha x|"),
        _ends("expectation / sum of |alpha x|", _over_sum), **_BOTH,
    ),
    Claim(
        "expectation-formula", None, DISTANCE, "Theorem 1(2); caption of Fig. 2",
        "the expectation is the main term of Theorem 1(2) and a rest between 0 and its bound",
        "the proved range E1 of every head's average meets the range from the main term to main term + bound",
        _in_printed_range,
    ),
    Claim(
        "uniform-selection", None, TESTS, "Abstract; section 3.1 (iii)",
        "beyond the critical N attention behaves as if weights were uniform",
        "printed: KS accepts at N = 100 in more than half of the windows; corrected: the weight of the top 100 is "
        "within a factor 2 of its uniform share N/L, in the median over heads",
        _accepted_at_100, _uniform_mass, "the weight of the top 100",
    ),
    Claim(
        "collapse-proportional", None, TESTS, "Section 1; section 4; section 5",
        "the distance collapses once N grows proportionally to L",
        "exponent of the distance at N = L/8 in L at most 0; corrected: that of the distance of one token below -0.1",
        _collapse(False, (-np.inf, 0.0)), _collapse(True, (-np.inf, -0.1)), "the distance of one token",
    ),
    Claim(
        "three-heads-99-percent", None, "coverage", "Section 4", "three heads cover 99% of the top tokens",
        "printed: 1 - (1 - p)^3 with each layer's p at least 0.985; corrected: the share that three of its heads "
        "cover; both in the last row of the window",
        _three_heads("independent", "1 - (1 - p)^3"), _three_heads("coverage", "measured coverage"),
        "tokens distinguishable in at least one of three heads, counted",
    ),
    Claim(
        "entropy-early-sign", None, SEPARABILITY, "Section 4, guideline 2; section 5",
        "rising entropy is an early sign that a head has saturated",
        "printed: rank correlation over heads of entropy / ln L and separability at N = 16 at most -0.3; corrected: "
        "the same of their changes from a quarter of the longest length to the longest",
        _entropy, _entropy_change, "changes of each head with L",
    ),
    Claim(
        "sharper-separates", None, "sharpness", "Section 3.3", "sharper softmax improves token separability",
        "mean separability at N = 16 in the last row at least 0.02 higher at T = 0.2 than at the model's own T = 1",
        _sharpness(0.2, 1.0, "separability", (0.02, np.inf), "mean separability"),
    ),
    Claim(
        "too-sharp", None, "sharpness", "Section 4, guideline 3; section 5",
        "T below 0.1 raises Jacobian norms without raising separability",
        "in the last row, from T = 0.1 to 0.05, mean separability rises by at most 0.01 and the mean Jacobian norm "
        "rises",
        _too_sharp,
    ),
    Claim(
        "dashed-bound-holds", None, GRADIENT, "Fig. 4, Corollary 3", "g stays below min{1/(4T), sqrt 2}",
        "every point (T, eps) of every window below the bound; the printed bound is judged on the worst direction, "
        "which it speaks of",
        _below("printed"), _below("exact"), "(sqrt 2 / eps) tanh(eps / (2 sqrt 2 T))",
    ),
    Claim(
        "jacobian-law", None, GRADIENT, "Section 5", "the empirical Jacobian norm tracks the theoretical 1/(4T) law",
        "largest norm over heads within 10% of the law at every T from 0.05 to 5",
        _follows(4), _follows(2), "the law 1/(2T), the exact supremum of the norm",
    ),
)  # fmt: skip
