"""From the means of each window to predictions with intervals, and to verdicts: holds, thins, diluted or undecided.

Errors are differences of logarithms, because a mass of 0.02 for 0.01 is as wrong as one of 0.2 for 0.1; only the
entropy ratio, which is 0 in a head that picks one key, is compared as it is.

An interval is for the mean over as many other windows of the same text, at that length. It has three parts. Other
windows would have given another prediction, and others still another measurement: a bootstrap over windows for each.
And the method errs: the back-test predicts the window's length from a quarter of it, in every head, and the 90th
percentile over heads of its errors is taken to hold for longer lengths too.

Verdicts depend on what the head keeps of its top-5 mass at the base length (256 tokens) at the last length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import polars as pl

from attnscope.errors import parameter
from attnscope.intervals import window_bootstrap_deviation
from attnscope.show.numbers import counted
from attnscope.store.tables import OWN
from attnscope.studies.horizon.extended_row import MEASURES
from attnscope.studies.horizon.measuring import Curves, HorizonRecord, reach_distances

if TYPE_CHECKING:
    from jaxtyping import Float
    from numpy.typing import NDArray

    from attnscope.engine.run import Head
    from attnscope.studies.horizon.measuring import HorizonSettings

INTERVAL_LEVEL = 0.9
SMALLEST = 1e-9  # of a measure, for its logarithm
TOP5 = MEASURES.index("top5")
_LINEAR = np.array([measure == "entropy_ratio" for measure in MEASURES])
_SUPPRESSED = 0.1  # of the largest weight that a key gets at any distance


@dataclass(frozen=True, eq=False)
class Stack:
    """Measures of all heads in all windows by length, (windows, heads, measures), for one normalizer."""

    heads: list[Head]
    by_length: dict[int, NDArray[np.float64]]

    def mean(self, length: int) -> Float[np.ndarray, "heads measures"]:
        """Means over windows."""
        found: NDArray[np.float64] = self.by_length[length].mean(0)
        return found


def stacked(records: Sequence[dict[int, Curves]], label: str, heads: Sequence[Head]) -> Stack:
    """The means of every window, of one batch of windows after the other, for the given heads."""
    layers = sorted({layer for layer, _ in heads})
    lengths = records[0][layers[0]][label]
    index = {layer: [head for at, head in heads if at == layer] for layer in layers}
    by_length = {
        length: np.concatenate(
            [
                np.concatenate([record[layer][label][length][:, index[layer]] for layer in layers], 1)
                for record in records
            ]
        )
        for length in lengths
    }
    return Stack(list(heads), by_length)


@dataclass(frozen=True, eq=False)
class Prediction:
    """One normalizer: what the windows measured, what follows for longer inputs, and the method's own back-test."""

    settings: HorizonSettings
    measured: Stack
    predicted: Stack
    back_test: Stack

    def back_test_error(self) -> Float[np.ndarray, "heads measures"]:
        """Predicted less measured in the back-test."""
        length = self.settings.length
        return scaled(self.back_test.mean(length)) - scaled(self.measured.mean(length))

    def half_width(self, length: int, level: float = INTERVAL_LEVEL) -> Float[np.ndarray, "heads measures"]:
        """Half the width of the interval on the measure's scale; only sampling for lengths that the windows have."""
        z = NormalDist().inv_cdf((1 + level) / 2)
        if length in self.measured.by_length:
            return z * window_bootstrap_deviation(self.measured.by_length[length], scaled)
        method = _upper_quantile(np.abs(self.back_test_error()), level)
        of_prediction = window_bootstrap_deviation(self.predicted.by_length[length], scaled)
        of_measuring = window_bootstrap_deviation(self.measured.by_length[self.settings.length], scaled)
        return np.sqrt(method**2 + (z * of_prediction) ** 2 + (z * of_measuring) ** 2)

    def at(self, length: int) -> Float[np.ndarray, "heads measures"]:
        """Means over windows: measured up to the window's length, predicted beyond."""
        return (self.measured if length in self.measured.by_length else self.predicted).mean(length)

    def interval(self, length: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Lower and upper ends of the 90% intervals, (heads, measures), within what the measures can be."""
        value, half = self.at(length), self.half_width(length)
        # Weights with sinks or without a sum of one can lie outside.
        least = np.minimum(np.array([0.0, 1.0, 0.0, 0.0]), value)
        most = np.maximum(np.array([1.0, float(length), 1.0, 1.0]), value)
        lower, upper = (unscaled(scaled(value) + change) for change in (-half, half))
        return np.clip(lower, least, most), np.clip(upper, least, most)

    def power_law(self, length: int, start: int, end: int) -> Float[np.ndarray, "heads measures"]:
        """A baseline: the power law through the measures at two lengths of the windows, at another length."""
        first, last = scaled(self.measured.mean(start)), scaled(self.measured.mean(end))
        exponent = (last - first) / np.log(end / start)
        return unscaled(last + exponent * np.log(length / end))


def scaled(values: Float[np.ndarray, "*some measures"]) -> Float[np.ndarray, "*some measures"]:
    """The measures on the scales on which they are compared: logarithms, but for the entropy ratio."""
    return np.where(_LINEAR, values, np.log(np.maximum(values, SMALLEST)))


def unscaled(values: Float[np.ndarray, "*some measures"]) -> Float[np.ndarray, "*some measures"]:
    """The inverse of `scaled`."""
    return np.where(_LINEAR, values, np.exp(np.where(_LINEAR, 0.0, values)))


def _upper_quantile(values: Float[np.ndarray, "heads measures"], level: float) -> Float[np.ndarray, " measures"]:
    """The quantile over heads that a further head stays below with this probability."""
    count = len(values)
    share = min(1.0, level * (count + 1) / count)
    found: NDArray[np.float64] = np.quantile(values, share, axis=0, method="higher")
    return found


def reach(record: HorizonRecord, heads: Sequence[Head], longest: int) -> list[float | None]:
    """The distance beyond which a key gets less than a tenth of what it gets at its best distance, for each head.

    Between two distances of the grid, the logarithm of the weight is taken for linear. None if the weight is not that
    low at the largest distance.
    """
    distances = reach_distances(longest).astype(float)
    found: list[float | None] = []
    for layer, head in heads:
        weights = np.log(np.maximum(record.weight_at[layer][head], 1e-300))
        limit = weights.max() + np.log(_SUPPRESSED)
        last = int(np.nonzero(weights >= limit)[0][-1])
        if last == len(weights) - 1:
            found.append(None)
            continue
        share = (weights[last] - limit) / (weights[last] - weights[last + 1])
        found.append(float(distances[last] + share * (distances[last + 1] - distances[last])))
    return found


def half_lengths(prediction: Prediction) -> list[float | None]:
    """The length at which each head has lost half of its mass at the base length; None if it has not by the end.

    Between two lengths the mass is taken for a power law.
    """
    settings = prediction.settings
    lengths = [n for n in (*settings.measured_lengths, *settings.predicted_lengths) if n >= settings.base]
    curve = np.stack([scaled(prediction.at(length))[:, TOP5] for length in lengths])
    below = curve < curve[0] - np.log(2)
    found: list[float | None] = []
    for head in range(curve.shape[1]):
        if not below[:, head].any():
            found.append(None)
            continue
        after = int(below[:, head].argmax())
        high, low = curve[after - 1, head], curve[after, head]
        share = (high - (curve[0, head] - np.log(2))) / (high - low)
        found.append(float(lengths[after - 1] * (lengths[after] / lengths[after - 1]) ** share))
    return found


Verdict = Literal["holds", "thins", "diluted", "undecided"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
HALF, QUARTER = 0.5, 0.25
VERDICT_LEVEL = 0.8  # of the interval that must lie within one verdict
_ALMOST_ALL = 0.8  # of the heads, in the layers that a finding names
MEANINGS: dict[Verdict, str] = {
    "holds": "keeps at least half of its top-5 mass",
    "thins": "loses more than half of it",
    "diluted": "loses more than three quarters",
    "undecided": "the prediction cannot tell",
}


def verdict_of(kept: float) -> Verdict:
    """The verdict of a head that keeps this share of its mass for certain."""
    return "holds" if kept >= HALF else "thins" if kept >= QUARTER else "diluted"


def mass_kept(prediction: Prediction) -> Float[np.ndarray, " heads"]:
    """The top-5 mass of each head at the last length over that at the base length."""
    settings = prediction.settings
    change = scaled(prediction.at(settings.to)) - scaled(prediction.at(settings.base))
    kept: Float[np.ndarray, " heads"] = np.exp(change[:, TOP5])
    return kept


def verdicts(prediction: Prediction) -> list[Verdict]:
    """The verdict of each head: undecided where both ends of the interval do not share one."""
    kept, half = mass_kept(prediction), prediction.half_width(prediction.settings.to, VERDICT_LEVEL)[:, TOP5]
    ends = zip(kept * np.exp(-half), kept * np.exp(half), strict=True)
    found = [(verdict_of(low), verdict_of(high)) for low, high in ends]
    return [low if low == high else "undecided" for low, high in found]


def with_mass_kept(heads: pl.DataFrame, curves: pl.DataFrame, settings: dict[str, Any]) -> pl.DataFrame:
    """`heads.parquet` with the mass that each head keeps at the last length, and its 90% interval.

    The columns are `mass_kept`, `mass_kept_lower` and `mass_kept_upper`.
    """
    keys = ["normalizer", "layer", "head"]
    top = curves.filter(measure="top5")
    base = top.filter(length=settings["base"]).select(*keys, base=pl.col("predicted"))
    last = top.filter(length=settings["to"]).join(base, on=keys)
    kept = last.select(
        *keys,
        mass_kept=pl.col("predicted") / pl.col("base"),
        mass_kept_lower=pl.col("lower") / pl.col("base"),
        mass_kept_upper=pl.col("upper") / pl.col("base"),
    )
    return heads.join(kept, on=keys, how="left", maintain_order="left")


def horizon_finding(heads: pl.DataFrame, settings: HorizonSettings) -> dict[str, Any]:
    """The finding on the model's own normalizer, in the form of those of a diagnosis."""
    own = heads.filter(normalizer=OWN)
    counts = {name: int((own["verdict"] == name).sum()) for name in VERDICTS}
    losing = own.filter(pl.col("verdict").is_in(["thins", "diluted"])).sort("half_length", "layer", "head")
    short = own.filter(pl.col("verdict") == "holds", pl.col("reach") < settings.length).height
    if losing.is_empty():
        title = f"No head is predicted to lose half of its top-5 mass before {settings.to:,} tokens"
        advice = f"{parameter('check', True)} runs longer inputs and compares."
    else:
        thin = f"{counted(losing.height)} thin{'s' if losing.height == 1 else ''} out"
        title = f"{thin} before {_before(losing, settings):,} tokens{_where(losing, own['layer'].n_unique())}"
        advice = (
            "A normalizer whose scale grows with the length may keep the mass together: predict for ssmax, logn and "
            f"entmax15 too. {parameter('check', True)} runs longer inputs and compares."
        )
    sentence = (
        f"At {settings.to:,} tokens, {counts['holds']} of {counted(own.height)} hold at least half of the top-5 mass "
        f"that they have at {settings.base:,}; {counts['thins']} at least a quarter, {counts['diluted']} less."
    )
    if counts["undecided"]:
        sentence += f" For {counts['undecided']} the prediction cannot tell."
    if short:
        sentence += (
            f" Of those that hold, {short} give hardly any weight to keys more than {settings.length:,} tokens away: "
            "they may hold only because they do not look there."
        )
    return {
        "id": "horizon",
        "severity": "watch" if losing.height else "note",
        "title": title,
        "sentence": sentence,
        "evidence": counts | {"hold_by_short_reach": short},
        "heads": [list(pair) for pair in losing.select("layer", "head").iter_rows()],
        "advice": advice,
    }


def _before(losing: pl.DataFrame, settings: HorizonSettings) -> int:
    """The shortest of the predicted lengths by which all of these heads have lost half."""
    latest = max((value for value in losing["half_length"] if value is not None), default=0)
    return next((n for n in settings.predicted_lengths if latest <= n), settings.to)


def _where(losing: pl.DataFrame, layers: int) -> str:
    """The shortest run of layers with almost all of the heads, if it is at most half of the layers."""
    found = losing["layer"].sort().to_list()
    needed = math.ceil(_ALMOST_ALL * len(found))
    runs = [(found[i + needed - 1] - found[i], found[i], found[i + needed - 1]) for i in range(len(found) - needed + 1)]
    span, first, last = min(runs)
    if len(found) < 3 or span + 1 > layers / 2:
        return ""
    share = "all" if first <= found[0] and found[-1] <= last else "almost all"
    return f", {share} in {f'layer {first}' if first == last else f'layers {first} to {last}'}"
