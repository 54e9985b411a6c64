"""Section 3.3: the claims on gradient sensitivity (Figure 4)."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import polars as pl
import torch

from attnscope.experiments.claims.evidence import UNIT, Claim, Evidence, Measure, Measurement
from attnscope.experiments.critical import bootstrap
from attnscope.experiments.settings import STEPS
from attnscope.theory.gradient import finite_difference_bound, softmax_bound_printed

LOW_T = 0.1


def maxima(e: Evidence, direction: str, reading: str = "scaled") -> pl.DataFrame:
    """The largest g over heads for each window, row, T and eps, with the printed and the exact bound."""
    return e.once(("largest g", direction, reading), lambda: _maxima(e, direction, reading))


def _maxima(e: Evidence, direction: str, reading: str) -> pl.DataFrame:
    table = e.table("gradient").filter(reading=reading)
    found = table.group_by(*UNIT, "temperature", "step").agg(g=pl.max(direction)).sort("temperature", "step", *UNIT)
    temperature, step = (torch.tensor(found[name].to_numpy()) for name in ("temperature", "step"))
    return found.with_columns(
        printed=pl.Series(softmax_bound_printed(temperature).numpy()),
        exact=pl.Series(finite_difference_bound(temperature, step).numpy()),
    )


def _slopes(direction: str) -> Measure:
    def measured(e: Evidence) -> list[Measurement]:
        found = []
        for step in STEPS:
            table = maxima(e, direction).filter(pl.col("step") == step, pl.col("temperature") < LOW_T * 1.001)
            slopes = [
                np.polyfit(np.log(one["temperature"].to_numpy()), np.log(one["g"].to_numpy()), 1)[0]
                for _, one in table.group_by(UNIT, maintain_order=True)
            ]
            name = f"slope of ln g in ln T for T <= {LOW_T}, eps = {step:g}"
            found.append(Measurement(name, bootstrap(np.array(slopes)), (-1.1, -0.9)))
        return found

    return measured


def _ratio_of_steps(
    small: float, large: float, temperature: float, direction: str, accepted: tuple[float, float]
) -> Measure:
    def measured(e: Evidence) -> list[Measurement]:
        g = {s: pl.col("g").filter(pl.col("step") == s).first() for s in (small, large)}
        name = f"g at eps = {small:g} over g at eps = {large:g}, T = {temperature:g}"
        return e.measure(name, _at(maxima(e, direction), temperature), g[small] / g[large], accepted)

    return measured


def _at(table: pl.DataFrame, temperature: float) -> pl.DataFrame:
    return table.filter((pl.col("temperature").log() - math.log(temperature)).abs() < 1e-6)


def _smaller_larger(direction: str) -> Measure:
    def measured(e: Evidence) -> list[Measurement]:
        pairs = pairwise(STEPS)
        return [
            one for small, large in pairs for one in _ratio_of_steps(small, large, 0.01, direction, (1.001, np.inf))(e)
        ]

    return measured


def _collapse(direction: str) -> Measure:
    def measured(e: Evidence) -> list[Measurement]:
        spread = pl.max("g") / pl.min("g")
        return [
            one
            for temperature in (1.0, 10.0)
            for one in e.measure(
                f"largest over smallest g of the three eps, T = {temperature:g}",
                _at(maxima(e, direction), temperature),
                spread,
                (1.0, 1.1),
            )
        ]

    return measured


def _two_orders(direction: str) -> Measure:
    def measured(e: Evidence) -> list[Measurement]:
        found = []
        for step in STEPS:
            table = maxima(e, direction).filter(step=step)
            cold, warm = (_at(table, t).sort(UNIT)["g"].to_numpy() for t in (0.01, 1.0))
            found.append(
                Measurement(f"g at T = 0.01 over g at T = 1, eps = {step:g}", bootstrap(cold / warm), (100.0, np.inf))
            )
        return found

    return measured


def _below(direction: str, bound: str) -> Measure:
    def measured(e: Evidence) -> list[Measurement]:
        held = (pl.col("g") <= pl.col(bound) * (1 + 1e-9)).mean()
        return e.measure("share of points (T, eps) below the bound", maxima(e, direction), held, (1.0, 1.0))

    return measured


def _near_limit(direction: str, bound: str) -> Measure:
    def measured(e: Evidence) -> list[Measurement]:
        return [
            one
            for step in STEPS
            for one in e.measure(
                f"median of g / bound for T < {LOW_T}, eps = {step:g}",
                maxima(e, direction).filter(pl.col("step") == step, pl.col("temperature") < LOW_T * 0.999),
                (pl.col("g") / pl.col(bound)).median(),
                (0.5, 1.0),
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
        "g for the three eps within 10 % of each other at T = 1 and 10",
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
        _below("worst", "printed"),
        _below("worst", "exact"),
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
]
