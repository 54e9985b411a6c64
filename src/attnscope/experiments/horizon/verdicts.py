"""What becomes of a head: holds, thins, diluted or undecided; and the finding on all heads.

Verdicts depend on what the head keeps of its top-5 mass at the base length (256 tokens) at the last length.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import polars as pl

from attnscope.experiments.horizon.prediction import TOP5, scaled
from attnscope.parameters import parameter
from attnscope.results.words import counted
from attnscope.tables import OWN

if TYPE_CHECKING:
    from jaxtyping import Float

    from attnscope.experiments.horizon.prediction import Prediction
    from attnscope.experiments.horizon.settings import HorizonSettings

Verdict = Literal["holds", "thins", "diluted", "undecided"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
HALF, QUARTER = 0.5, 0.25
LEVEL = 0.8  # of the interval that must lie within one verdict
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
    kept, half = mass_kept(prediction), prediction.half_width(prediction.settings.to, LEVEL)[:, TOP5]
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
