"""How good predictions are: the back-test of every run, and the check against long inputs, beside two baselines.

The baselines are "no change" (the head stays as it is at the longest measured length) and a power law through the
head's measures at that length and at a quarter of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.experiments.horizon.extended_row import MEASURES
from attnscope.experiments.horizon.prediction import TOP5, scaled
from attnscope.experiments.horizon.verdicts import verdict_of, verdicts

if TYPE_CHECKING:
    from attnscope.experiments.horizon.prediction import Prediction, Stack


def back_test(prediction: Prediction) -> dict[str, Any]:
    """Errors of predicting the window's length from a quarter of it, on the same windows."""
    settings = prediction.settings
    truth = prediction.measured.mean(settings.length)
    guesses = {
        "prediction": prediction.back_test.mean(settings.length),
        "no_change": prediction.measured.mean(settings.short),
        "power_law": prediction.power_law(settings.length, settings.short // 4, settings.short),
    }
    return {"from": settings.short, "to": settings.length, "errors": _errors(guesses, truth)}


def check(prediction: Prediction, measured: Stack) -> dict[str, Any]:
    """Predictions against what long inputs gave: errors, coverage of the intervals, verdicts."""
    settings = prediction.settings
    lengths = []
    for length in settings.predicted_lengths:
        truth = measured.mean(length)
        guesses = {
            "prediction": prediction.at(length),
            "no_change": prediction.measured.mean(settings.length),
            "power_law": prediction.power_law(length, settings.short, settings.length),
        }
        low, high = prediction.interval(length)
        inside = ((low <= truth) & (truth <= high)).mean(0)
        coverage = dict(zip(MEASURES, inside.tolist(), strict=True))
        lengths.append({"length": length, "errors": _errors(guesses, truth), "coverage": coverage})
    return {"lengths": lengths, "verdicts": _verdicts(prediction, measured)}


def _errors(guesses: dict[str, Any], truth: Any) -> dict[str, dict[str, dict[str, float]]]:
    """Median and 90th percentile over heads of the error on the measure's scale, by guess and measure."""
    found = {}
    for name, guess in guesses.items():
        error = np.abs(scaled(guess) - scaled(truth))
        median, high = np.quantile(error, [0.5, 0.9], axis=0)
        found[name] = {
            measure: {"median": float(median[i]), "p90": float(high[i])} for i, measure in enumerate(MEASURES)
        }
    return found


def _verdicts(prediction: Prediction, measured: Stack) -> dict[str, Any]:
    """How many verdicts were given, and how many of those the long inputs confirm."""
    settings = prediction.settings
    ratio = measured.mean(settings.to)[:, TOP5] / measured.mean(settings.base)[:, TOP5]
    pairs = [(given, verdict_of(float(true))) for given, true in zip(verdicts(prediction), ratio, strict=True)]
    decided = [(given, true) for given, true in pairs if given != "undecided"]
    right = sum(given == true for given, true in decided)
    return {
        "heads": len(pairs),
        "decided": len(decided),
        "right": right,
        "measured": {name: sum(true == name for _, true in pairs) for name in ("holds", "thins", "diluted")},
    }
