"""Find the setting of a normalizer that changes a model least: the smallest KL divergence from the unmodified model.

One value for the whole model is found by a coarse search on a logarithmic grid, refined by golden section between
the neighbors of its best point. Values for single heads start there and are learned by Adam, through the swapped
model. Neither uses the windows that are evaluated later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import polars as pl
import torch
from torch import nn

from attnscope.normalizers import LearnedEntmax, LearnedLipmax, LearnedSSMax, Normalizer, Tempered
from attnscope.swapping import swap
from attnscope.swapping.changes import mean_divergence, next_token_logits

if TYPE_CHECKING:
    from torch import Tensor

Scope = Literal["global", "head"]
COMPARED = 0.95  # means over a smaller share of the rows are not compared: they would be about different rows


@dataclass(frozen=True)
class Knob:
    """The setting of a normalizer that is calibrated, its range, and its learnable form."""

    name: str
    low: float
    high: float
    learned: Callable[[Normalizer], Callable[[int], nn.Module]] | None = None


class LearnedTemperature(nn.Module):
    """Any normalizer at a temperature learned for each head: weights(z / T)."""

    def __init__(self, heads: int, inner: Normalizer, temperature: float = 1.0) -> None:
        super().__init__()
        self.inner = inner
        self.log_temperature = nn.Parameter(torch.full((heads,), math.log(temperature)))

    def forward(self, logits: Tensor, visible: Tensor) -> Tensor:
        """Weights of the logits (..., heads, query, key)."""
        scale = (-self.log_temperature).exp()[:, None, None]
        return self.inner.weights(torch.where(visible, logits, 0.0) * scale, visible)


# What is calibrated if a normalizer has a setting of its own; all others get a temperature.
KNOBS = {
    "ssmax": Knob("s", 0.02, 2.0, lambda n: _ssmax(n)),
    "entmax": Knob("alpha", 1.01, 2.0, lambda n: lambda heads: LearnedEntmax(heads, _inside(_setting(n, "alpha")))),
    "lipmax": Knob("kappa", 0.05, 8.0, lambda n: _lipmax(n)),
    "asentmax": Knob("beta", 0.01, 4.0),
}
TEMPERATURE = Knob("temperature", 0.05, 8.0)


def _inside(alpha: float) -> float:
    """A learned alpha lies strictly between 1 and 2."""
    return min(max(alpha, 1.01), 1.99)


@dataclass(frozen=True)
class Calibrated:
    """A normalizer at its best setting, and what the search found."""

    normalizer: Any  # what to pass to swap: a Normalizer, or a mapping of layers to learned modules
    parameter: str
    value: float | None  # None where each head has its own
    before: float
    after: float
    evaluations: int


def knob_of(normalizer: Normalizer) -> Knob:
    """What is calibrated in this normalizer."""
    return TEMPERATURE if isinstance(normalizer, Tempered) else KNOBS.get(normalizer.name, TEMPERATURE)


def with_setting(normalizer: Normalizer, knob: Knob, value: float) -> Normalizer:
    """The same normalizer with another value of its calibrated setting."""
    if knob is not TEMPERATURE or "temperature" in _names(normalizer):
        return replace(normalizer, **{knob.name: value})  # type: ignore[type-var]
    return Tempered(normalizer.inner if isinstance(normalizer, Tempered) else normalizer, value)


def calibrate(
    module: Any, normalizer: Normalizer, windows: Sequence[Tensor], scope: Scope = "global", steps: int = 20
) -> Calibrated:
    """The setting with the smallest divergence from the model itself on these windows."""
    with torch.no_grad():
        reference = [next_token_logits(module, ids) for ids in windows]
    calibrated = _calibrate_global(module, normalizer, windows, reference)
    return calibrated if scope == "global" else _calibrate_heads(module, calibrated, windows, reference, steps)


def _calibrate_global(module: Any, normalizer: Normalizer, windows: Sequence[Tensor], own: list[Tensor]) -> Calibrated:
    knob = knob_of(normalizer)
    seen: dict[float, float] = {}

    def divergence(log_value: float) -> float:
        if log_value not in seen:
            seen[log_value] = _divergence(module, with_setting(normalizer, knob, math.exp(log_value)), windows, own)
        return seen[log_value]

    before = _divergence(module, normalizer, windows, own)
    best = bounded_minimum(divergence, math.log(knob.low), math.log(knob.high))
    if before <= seen[best]:  # the given value is the best
        value = float(getattr(normalizer, knob.name, 1.0))
        return Calibrated(normalizer, knob.name, value, before, before, len(seen) + 1)
    value = math.exp(best)
    return Calibrated(with_setting(normalizer, knob, value), knob.name, value, before, seen[best], len(seen) + 1)


def _divergence(module: Any, normalizer: Any, windows: Sequence[Tensor], own: list[Tensor]) -> float:
    with torch.no_grad(), swap(module, normalizer):
        value = float(mean_divergence(module, windows, own))
    return value if math.isfinite(value) else math.inf


def bounded_minimum(
    function: Callable[[float], float], low: float, high: float, grid: int = 7, steps: int = 6
) -> float:
    """Minimize a function of one variable: the best point of a grid, refined by golden section."""
    points = [low + (high - low) * i / (grid - 1) for i in range(grid)]
    best = min(range(grid), key=lambda i: function(points[i]))
    a, b = points[max(best - 1, 0)], points[min(best + 1, grid - 1)]
    ratio = (math.sqrt(5) - 1) / 2
    left, right = b - ratio * (b - a), a + ratio * (b - a)
    candidates = {points[best]: function(points[best])}
    for _ in range(steps):
        candidates |= {left: function(left), right: function(right)}
        if candidates[left] <= candidates[right]:
            b, right = right, left
            left = b - ratio * (b - a)
        else:
            a, left = left, right
            right = a + ratio * (b - a)
    return min(candidates, key=lambda point: candidates[point])


def _calibrate_heads(
    module: Any, start: Calibrated, windows: Sequence[Tensor], own: list[Tensor], steps: int
) -> Calibrated:
    """Optimize one number per head with Adam, the rest of the model fixed, and return the best values seen."""
    normalizer: Normalizer = start.normalizer
    knob = knob_of(normalizer)
    if knob.learned is not None:
        factory: Callable[[int], nn.Module] = knob.learned(normalizer)
    else:
        plain, value = (
            (normalizer.inner, normalizer.temperature)
            if isinstance(normalizer, Tempered)
            else (replace(normalizer, temperature=1.0), normalizer.temperature)  # type: ignore[type-var, attr-defined]
            if "temperature" in _names(normalizer)
            else (normalizer, 1.0)
        )
        factory = lambda heads: LearnedTemperature(heads, plain, value)  # noqa: E731
    trainable = {p: p.requires_grad for p in module.parameters()}
    for parameter in trainable:
        parameter.requires_grad_(False)
    change = swap(module, factory)
    try:
        learned = change.parameters
        optimizer = torch.optim.Adam(learned, lr=0.05)
        best, best_values = math.inf, [p.detach().clone() for p in learned]
        for _ in range(steps + 1):
            optimizer.zero_grad()
            loss = mean_divergence(module, windows, own)
            if float(loss.detach()) < best:
                best, best_values = float(loss.detach()), [p.detach().clone() for p in learned]
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            for parameter, value in zip(learned, best_values, strict=True):
                parameter.copy_(value)
        modules = list(change.rules.values())
    finally:
        change.undo()
        for parameter, wanted in trainable.items():
            parameter.requires_grad_(wanted)
    evaluations = start.evaluations + steps + 1
    if best >= start.after:  # one number for all heads was the best
        return replace(start, evaluations=evaluations)
    from attnscope.swapping.replacement import sites

    by_layer = {site.layer: rule for site, rule in zip(sites(module), modules, strict=True)}
    parameter = knob.name if knob.learned is not None else TEMPERATURE.name
    return Calibrated(by_layer, parameter, None, start.before, best, evaluations)


def _names(normalizer: Normalizer) -> list[str]:
    return [field.name for field in fields(normalizer)] if is_dataclass(normalizer) else []


def _setting(normalizer: Normalizer, name: str) -> float:
    return float(getattr(normalizer, name))


def _ssmax(normalizer: Any) -> Callable[[int], nn.Module]:
    return lambda heads: LearnedSSMax(heads, float(normalizer.s), float(normalizer.b) or None)


def _lipmax(normalizer: Any) -> Callable[[int], nn.Module]:
    return lambda heads: LearnedLipmax(heads, float(normalizer.kappa), float(normalizer.cap), float(normalizer.alpha))


def comparable(table: pl.DataFrame) -> pl.DataFrame:
    """The lines of a comparison whose separability is defined in enough rows (the share `defined`) to be compared."""
    return table.filter(pl.col("defined") >= COMPARED)


def named(table: pl.DataFrame) -> pl.DataFrame:
    """A comparison with a column `name`: the normalizer with its calibrated setting, spelled as `-n` takes it."""
    columns = ("normalizer", "calibration", "parameter", "value")
    names = [_spelled(*line) for line in table.select(columns).iter_rows()]
    return table.with_columns(name=pl.Series(names, dtype=pl.String))


def _spelled(normalizer: str, calibration: str, parameter: str, value: float | None) -> str:
    if calibration == "none":
        return normalizer
    if value is None:
        return f"{normalizer}, {parameter} per head"
    name, *settings = normalizer.split(":")
    others = [setting for setting in settings if setting.partition("=")[0] != parameter]
    return ":".join([name, *others, f"{parameter}={value:.3g}"])
