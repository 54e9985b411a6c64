"""Findings about measures rather than labels: tokens needed, a budget of keys, separability, coverage, what-ifs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attnscope.diagnosis.heads import count, tokens
from attnscope.diagnosis.states import Described, column, finding, times
from attnscope.intervals import LEVEL
from attnscope.store.tables import OWN
from attnscope.theory.geometry import coverage_independent, coverage_range, heads_needed

if TYPE_CHECKING:
    import polars as pl

    from attnscope.diagnosis.situation import Situation
    from attnscope.diagnosis.states import Thresholds
from attnscope.results.words import counted


def needs_finding(heads: Described, length: int, thresholds: Thresholds) -> dict[str, Any]:
    """How many tokens heads need, and how that grows with the length."""
    use = column(heads, "tokens_needed")
    low, middle, high = np.quantile(use, [0.1, 0.5, 0.9])
    grown = [head for head in heads if head["evidence"]["growth_exponent"] is not None]
    sentence = (
        f"At length {length:,} the median head needs {tokens(middle)} for an error of {thresholds.enough:.0%} "
        f"({count(low)} to {count(high)} for the middle 80% of heads)."
    )
    evidence: dict[str, Any] = {"median_tokens": middle, "low_tokens": low, "high_tokens": high}
    linear: Described = []
    slower = 0
    if grown:
        exponent = float(np.median(column(grown, "growth_exponent")))
        edges = [float(np.median(column(grown, f"growth_exponent_{edge}"))) for edge in ("low", "high")]
        linear = [head for head in grown if head["evidence"]["growth_exponent_low"] > 0.5]
        slower = sum(head["evidence"]["growth_exponent_high"] < 0.5 for head in grown)
        sentence += (
            f" That grows like length^{exponent:z.2f} ({LEVEL:.0%} interval of the median head {edges[0]:z.2f} to "
            f"{edges[1]:z.2f}): in {counted(len(linear))} faster than the square root of the length, in {slower} "
            "slower."
        )
        evidence |= {"exponent": exponent, "exponent_low": edges[0], "exponent_high": edges[1], "slower": slower}
    return finding(
        "tokens-needed",
        "note",
        "How many tokens heads need",
        sentence,
        _growth_advice(len(linear), slower, len(heads)),
        linear,
        **{name: float(value) for name, value in evidence.items()},
    )


def _growth_advice(faster: int, slower: int, heads: int) -> str:
    """How many keys to keep as the text gets longer, for heads whose need grows faster or slower than a square root."""
    parts = []
    if faster:
        parts.append("For the heads listed here, keep a share of the keys rather than a fixed number.")
    if slower:
        which = "every head" if slower == heads else counted(slower)
        parts.append(f"For {which} a number of keys that grows like the square root of the length is enough.")
    if faster + slower < heads:
        which = counted(heads - faster - slower) if parts else "these heads"
        parts.append(f"For {which} these lengths do not tell whether a share of the keys or a fixed number is enough.")
    return " ".join(parts)


def budget_finding(
    heads: Described, where: Situation, thresholds: Thresholds, verification: dict[str, Any] | None
) -> dict[str, Any]:
    """What share of the keys would be enough for the whole model, and what that does to it if it was tested."""
    mean = float(column(heads, "share_needed").mean())
    sentence = (
        f"If every head kept the keys that it needs for an error of {thresholds.enough:.0%}, {mean:.1%} of all keys "
        "would be enough for the model."
    )
    tried = verification["budgets"] if verification else []
    advice = "Measure what that does to the model's predictions before you use it."
    if tried:
        changes = "; ".join(
            f"with {one['share']:.1%} of the keys (error {one['error']:.0%}) the KL divergence is "
            f"{one['kl_by_need']:.2g}, against {one['kl_uniform']:.2g} with the same share in every head: {times(one)}"
            for one in tried
        )
        sentence += f" Tested inside the model on other windows, {changes}."
        better = all(one["ratio_low"] is None or one["ratio_low"] > 1 for one in tried)
        advice = (
            "Giving each head the keys it needs changes the model less than the same share for all, in every window: "
            "use share_needed of each head in findings.json for a sparse kernel or a key cache."
            if better
            else "Giving each head the keys it needs does not change the model less in every window: use the simpler "
            "way, the same share for all heads."
        )
    return finding(
        "key-budget",
        "note",
        "How many keys would be enough",
        sentence,
        advice,
        [],
        share=mean,
        error=thresholds.enough,
        tried=tried,
    )


def separability_finding(heads: Described, thresholds: Thresholds) -> dict[str, Any] | None:
    """Separability against its nulls, and the heads that the paper's rule would mark."""
    known = [head for head in heads if head["evidence"]["separability"] is not None]
    if not known:
        return None
    medians = {
        name: float(np.nanmedian(column(known, name)))
        for name in ("separability", "null_uniform", "null_random", "separability_without_sink")
    }
    saturated = [head for head in known if head["evidence"]["paper_saturated"]]
    above = sum(
        head["evidence"]["separability_low"] > max(head["evidence"]["null_uniform"], head["evidence"]["null_random"])
        for head in known
    )
    n = int(thresholds.separability_n)
    return finding(
        "separability",
        "note",
        "Separability against chance",
        f"The median head separates {medians['separability']:.0%} of its top {n} tokens ("
        f"{medians['separability_without_sink']:.0%} without the first key). With equal weights the same tokens give "
        f"{medians['null_uniform']:.0%}, random sets {medians['null_random']:.0%}; {above} of {counted(len(known))} "
        f"are above both with their whole interval. The paper's own rule (80% or less means saturated) marks "
        f"{len(saturated)}.",
        "A rule that marks most heads of a working model decides nothing: use the states, which say which keys a head "
        "needs."
        if len(saturated) > len(known) / 2
        else "Use the states: they say which keys a head needs, which separability alone does not.",
        saturated,
        **medians,
        above_both=above,
        paper_saturated=len(saturated),
    )


def coverage_finding(heads: Described, thresholds: Thresholds) -> dict[str, Any] | None:
    """How many heads it takes to separate a top set: the paper's formula, and what is proved."""
    values = column(heads, "separability")
    values = values[np.isfinite(values)]
    if not len(values) or not 0 < values.mean() < 1:
        return None
    mean = torch.tensor(float(values.mean()), dtype=torch.float64)
    needed = int(heads_needed(mean, torch.tensor(thresholds.coverage, dtype=torch.float64)))
    independent = float(coverage_independent(mean, torch.tensor(float(needed), dtype=torch.float64)))
    honest = coverage_range(mean.expand(needed))
    return finding(
        "coverage",
        "note",
        "Heads needed to separate a top set",
        f"With the mean separability of {float(mean):.0%}, {counted(needed)} would cover {thresholds.coverage:.0%} of "
        f"a top set if heads missed tokens independently ({independent:.1%}, the paper's formula). What is proved "
        f"without that assumption is only {float(honest.lower):.0%} to {float(honest.upper):.0%}.",
        "Take the number as an order of magnitude: heads that miss the same tokens add nothing.",
        [],
        mean_separability=float(mean),
        heads_needed=needed,
        independent=independent,
        lower=float(honest.lower),
        upper=float(honest.upper),
    )


def what_if_findings(
    rows: pl.DataFrame | None, heads: Described, verification: dict[str, Any] | None
) -> list[dict[str, Any]]:
    """One finding for each other normalizer of a scan: which heads it would change, and how."""
    import polars as pl

    if rows is None or rows.is_empty():
        return []
    states = pl.DataFrame(
        [(head["layer"], head["head"], head["state"] or "unlabeled") for head in heads],
        schema={"layer": pl.Int32, "head": pl.Int32, "state": pl.String},
        orient="row",
    )
    # Short rows have few tokens to use: heads are compared on the longer half of their own rows.
    long = rows.filter(pl.col("length") > pl.col("length").max().over("layer", "head") // 2)
    model_rows = long.filter(normalizer=OWN)
    tried = (verification or {}).get("normalizer_windows", {})
    labels = sorted(set(rows["normalizer"].unique().to_list()) - {OWN})
    return [_what_if(model_rows, long.filter(normalizer=label), label, states, tried.get(label)) for label in labels]


def _what_if(
    model_rows: pl.DataFrame, other: pl.DataFrame, label: str, states: pl.DataFrame, tried: list[float] | None
) -> Any:
    """A finding on one normalizer: heads that would use half as many tokens or fewer, twice as many or more."""
    import polars as pl

    pair = model_rows.join(other, on=["window", "layer", "head", "position", "length"], suffix="_other")
    columns = ("participation", "participation_other", "support_other", "jacobian_norm", "jacobian_norm_other")
    medians = pair.select(pl.col(columns).median()).row(0, named=True)
    norm, other_norm = medians["jacobian_norm"], medians["jacobian_norm_other"]
    gradient = other_norm / norm if norm and other_norm is not None else None  # a norm is null where none is defined
    ratio = (pl.col("participation_other") / pl.col("participation")).median().alias("ratio")
    by_head = (
        pair.group_by("layer", "head").agg(ratio).join(states, on=["layer", "head"]).sort("ratio", "layer", "head")
    )
    fewer, more = by_head.filter(pl.col("ratio") <= 0.5), by_head.filter(pl.col("ratio") >= 2)
    changed = fewer if fewer.height >= more.height else more.reverse()
    by_state = changed["state"].value_counts().sort("count", "state", descending=True)
    most = ", ".join(
        f"{count} of the {states.filter(state=state).height} {state}" for state, count in by_state.iter_rows()
    )
    sentence = (
        f"On the same logits {label} would take the participation of the median row (its effective number of "
        f"tokens) from {medians['participation']:.1f} to {medians['participation_other']:.1f}, with "
        f"{counted(round(medians['support_other']), 'weight')} above zero; {fewer.height} of "
        f"{counted(by_head.height)} would use at most half as many, {more.height} at least twice as many"
        + (f" ({most})" if most else "")
        + "."
    )
    if gradient is not None:
        sentence += f" The gradient through the weights (Jacobian norm) is {gradient:.2g} times as large."
    if tried:
        sentence += " Put into every head of this model without training, it changes the next-token distribution by "
        sentence += f"a KL divergence of {np.mean(tried):.2g}"
        sentence += f" ({min(tried):.2g} to {max(tried):.2g} over {len(tried)} windows)." if len(tried) > 1 else "."
    return finding(
        f"what-if:{label}",
        "note",
        f"What if: {label}",
        sentence,
        "The model was not trained with it: try it on the listed heads, or train with it (attnscope.swap), and measure "
        "the loss before use."
        if changed.height
        else "It hardly changes any head of this model: there is little to gain from it here.",
        [{"layer": line["layer"], "head": line["head"]} for line in changed.iter_rows(named=True)],
        normalizer=label,
        participation=medians["participation"],
        participation_other=medians["participation_other"],
        support=medians["support_other"],
        jacobian_ratio=gradient,
        heads_with_fewer=fewer.height,
        heads_with_more=more.height,
        states=dict(by_state.iter_rows()),
        kl=float(np.mean(tried)) if tried else None,
    )
