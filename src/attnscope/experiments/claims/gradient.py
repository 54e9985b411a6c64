"""Section 3.3: the claims on gradient sensitivity (Figure 4)."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import polars as pl

from attnscope.studies.paper.evidence import ROUNDING, UNIT, Claim, Evidence, Measure, Measurement, Range
from attnscope.studies.paper.settings import SHARPNESS_TEMPERATURES, STEPS

LOW_T = 0.1
NEAR = (0.9, 1.1)


def maxima(e: Evidence, direction: str, reading: str = "scaled") -> pl.DataFrame:
    """The largest g over heads for each window, row, T and eps, with its printed and its exact bound."""
    return e.once(("largest g", direction, reading), lambda: _maxima(e, direction, reading))


def _maxima(e: Evidence, direction: str, reading: str) -> pl.DataFrame:
    bounds = {"printed": pl.first("bound_printed"), "exact": pl.first("bound_exact")}
    table = e.table("gradient").filter(reading=reading)
    return (
        table.group_by(*UNIT, "temperature", "step")
        .agg(g=pl.max(direction), **bounds)
        .sort("temperature", "step", *UNIT)
    )


def _for_each_step(
    e: Evidence, name: str, table: pl.DataFrame, statistic: pl.Expr, accepted: Range
) -> list[Measurement]:
    return [
        one
        for step in STEPS
        for one in e.measure(name, table.filter(step=step), statistic, accepted, f"eps = {step:g}")
    ]


def _slopes(direction: str) -> Measure:
    def measured(e: Evidence) -> list[Measurement]:
        table = maxima(e, direction).filter(pl.col("temperature") < LOW_T * 1.001)
        t, g = pl.col("temperature").log(), pl.col("g").log()
        slope = pl.cov(t, g) / t.var()
        return _for_each_step(e, f"slope of ln g in ln T for T <= {LOW_T}", table, slope, (-1.1, -0.9))

    return measured


def _at(table: pl.DataFrame, temperature: float) -> pl.DataFrame:
    return table.filter((pl.col("temperature").log() - math.log(temperature)).abs() < 1e-6)


def _at_step(temperature: float) -> dict[float, pl.Expr]:
    """Expressions for g at one T, by eps."""
    near = (pl.col("temperature").log() - math.log(temperature)).abs() < 1e-6
    return {step: pl.col("g").filter(near & (pl.col("step") == step)).first() for step in STEPS}


def _smaller_larger(direction: str) -> Measure:
    def measured(e: Evidence) -> list[Measurement]:
        g = _at_step(0.01)
        name = "g over that at the next larger eps, T = 0.01"
        return [
            one
            for small, large in pairwise(STEPS)
            for one in e.measure(name, maxima(e, direction), g[small] / g[large], (1.001, np.inf), f"eps = {small:g}")
        ]

    return measured


def _collapse(direction: str) -> Measure:
    def measured(e: Evidence) -> list[Measurement]:
        return [
            one
            for temperature in (1.0, 10.0)
            for one in e.measure(
                "largest over smallest g of the three eps",
                _at(maxima(e, direction), temperature),
                pl.max("g") / pl.min("g"),
                (1.0, 1.1),
                f"T = {temperature:g}",
            )
        ]

    return measured


def _two_orders(direction: str) -> Measure:
    def measured(e: Evidence) -> list[Measurement]:
        cold, warm = _at_step(0.01), _at_step(1.0)
        return [
            one
            for step in STEPS
            for one in e.measure(
                "g at T = 0.01 over g at T = 1",
                maxima(e, direction),
                cold[step] / warm[step],
                (100.0, np.inf),
                f"eps = {step:g}",
            )
        ]

    return measured


def _below(bound: str) -> Measure:
    def measured(e: Evidence) -> list[Measurement]:
        holds = pl.col("g") <= pl.col(bound) * (1 + ROUNDING)
        return e.every_row("share of points (T, eps) below the bound", maxima(e, "worst"), holds)

    return measured


def _near_limit(direction: str, bound: str) -> Measure:
    def measured(e: Evidence) -> list[Measurement]:
        table = maxima(e, direction).filter(pl.col("temperature") < LOW_T * 0.999)
        ratio = (pl.col("g") / pl.col(bound)).median()
        return _for_each_step(e, f"median of g / bound for T < {LOW_T}", table, ratio, (0.5, 1 + ROUNDING))

    return measured


def _follows(factor: float) -> Measure:
    """The ratio of the largest Jacobian norm over heads to 1 / (factor T)."""

    def measured(e: Evidence) -> list[Measurement]:
        largest = pl.max("jacobian_norm") * factor * pl.first("temperature")
        return [
            one
            for temperature in SHARPNESS_TEMPERATURES
            for one in e.measure(
                f"largest Jacobian norm times {factor:g} T",
                _at(e.table("sharpness"), temperature),
                largest,
                NEAR,
                f"T = {temperature:g}",
            )
        ]

    return measured


_WORST = "in the worst direction"
CLAIMS = [
    Claim(
        "one-over-t",
        "Section 3.3, Fig. 4; section 5",
        "for T < 0.1 the curves follow 1/T",
        "slope of ln g in ln T between -1.1 and -0.9 for each eps",
        _slopes("random"),
        _slopes("worst"),
        _WORST,
    ),
    Claim(
        "smaller-step-larger",
        "Section 3.3",
        "smaller eps yield larger gradients",
        "g at T = 0.01 grows as eps falls",
        _smaller_larger("random"),
        _smaller_larger("worst"),
        _WORST,
    ),
    Claim(
        "collapse-above-one",
        "Section 3.3, Fig. 4",
        "once T >= 1 all curves collapse",
        "g for the three eps within 10% of each other at T = 1 and 10",
        _collapse("random"),
        _collapse("worst"),
        _WORST,
    ),
    Claim(
        "two-orders",
        "Section 3.3, Fig. 4",
        "once T >= 1 all curves drop by two orders of magnitude",
        "g at T = 0.01 at least 100 times g at T = 1, for each eps",
        _two_orders("random"),
        _two_orders("worst"),
        _WORST,
    ),
    Claim(
        "dashed-bound-holds",
        "Fig. 4, Corollary 3",
        "g stays below min{1/(4T), sqrt 2}",
        "every point (T, eps) of every window below the bound; the "
        "printed bound is judged on the worst direction, which it speaks of",
        _below("printed"),
        _below("exact"),
        "(sqrt 2 / eps) tanh(eps / (2 sqrt 2 T))",
    ),
    Claim(
        "near-the-limit",
        "Section 4",
        "the model operates close to the theoretical limit when T < 0.1",
        "median of g / bound between 0.5 and 1 for each eps",
        _near_limit("random", "printed"),
        _near_limit("worst", "exact"),
        "the worst direction against the exact supremum",
    ),
    Claim(
        "jacobian-law",
        "Section 5",
        "the empirical Jacobian norm tracks the theoretical 1/(4T) law",
        "largest norm over heads within 10% of the law at every T from 0.05 to 5",
        _follows(4),
        _follows(2),
        "the law 1/(2T), the exact supremum of the norm",
    ),
]
