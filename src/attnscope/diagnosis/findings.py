"""The findings of a diagnosis: ranked sentences, each with its evidence and advice.

Every number in a sentence is computed in the run that it describes. First the findings about labels, then those about
measures: tokens needed, a budget of keys, separability, coverage, what-ifs.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attnscope.columns import head_name
from attnscope.diagnosis.heads import count, tokens
from attnscope.diagnosis.states import (
    STATES,
    Described,
    Finding,
    carrying,
    column,
    finding,
    limit_words,
    listed_states,
    most_pressing_first,
    times,
)
from attnscope.diagnosis.verdict import SHAKY, too_short
from attnscope.intervals import LEVEL
from attnscope.show.numbers import counted
from attnscope.store.tables import OWN
from attnscope.theory.geometry import coverage_independent, coverage_range, heads_needed

if TYPE_CHECKING:
    import polars as pl

    from attnscope.diagnosis.situation import Situation
    from attnscope.diagnosis.states import Thresholds


_ORDER = {"act": 0, "watch": 1, "note": 2}
MANY = 0.25  # share of the heads from which on a state is more pressing


def findings(
    heads: Described,
    agreement: dict[str, Any],
    where: Situation,
    thresholds: Thresholds,
    verification: dict[str, Any] | None,
    what_if: pl.DataFrame | None,
) -> list[dict[str, Any]]:
    """All findings, the most pressing first."""
    of_states = dict.fromkeys(state.finding for state in most_pressing_first() if state.finding)
    unranked = [
        _too_short(where, thresholds),
        needs_finding(heads, where.length, thresholds),
        budget_finding(heads, where, thresholds, verification),
        *(state_finding(template, heads, where, thresholds) for template in of_states),
        _over_sharp(heads, thresholds),
        _stability(heads, agreement),
        _predictions(verification),
        separability_finding(heads, thresholds),
        coverage_finding(heads, thresholds),
        *what_if_findings(what_if, heads, verification),
    ]
    ranked = sorted((one for one in unranked if one), key=lambda one: _ORDER[one["severity"]])
    return [{"rank": rank, **one} for rank, one in enumerate(ranked, 1)]


def state_finding(
    template: Finding, heads: Described, where: Situation, thresholds: Thresholds
) -> dict[str, Any] | None:
    """The finding on the heads of the states that share this template, if there are any such heads."""
    states = [state for state in STATES.values() if state.finding is template]
    counts = {state.name: len(carrying(heads, state.name)) for state in states}
    members = carrying(heads, *counts)
    if not members:
        return None

    def error(head: dict[str, Any]) -> float:
        value = head["evidence"][STATES[head["state"]].rule.error]
        return math.inf if value is None else value

    # Where the rule is not enough, the heads that it is worst for come first.
    members = sorted(members, key=lambda head: 0 if STATES[head["state"]].enough else -error(head))
    others = [head for head in heads if head["state"] not in counts]
    elsewhere = float(np.median(column(others, "tokens_needed"))) if others else None
    evidence = {
        "count": len(members),
        "share": len(members) / len(heads),
        "median_error": float(np.median([error(head) for head in members])),
        "median_tokens": float(np.median(column(members, "tokens_needed"))),
        "median_tokens_elsewhere": elsewhere,
        "off_share": float(np.mean([head["off_share"] for head in heads])),
    }
    words = limit_words(thresholds.as_json()) | {
        "worst": head_name(members[0]["layer"], members[0]["head"]),
        "total": counted(len(heads)),
        "s": "s" if len(members) == 1 else "",
        "dropping": where.dropping,
        "parts": listed_states(heads, counts, thresholds),
        "compared": "" if elsewhere is None else f", against {elsewhere:,.0f} in the other heads",
    }
    return finding(
        template.id,
        template.severities[len(members) / len(heads) >= MANY],
        template.title,
        template.sentence.format(**words, **evidence, length=where.length),
        template.advice.format(**words),
        members,
        **{name: value if value is None or math.isfinite(value) else None for name, value in evidence.items()},
        **({name.replace("-", "_"): count for name, count in counts.items()} if len(counts) > 1 else {}),
    )


def _too_short(where: Situation, thresholds: Thresholds) -> dict[str, Any] | None:
    warning = too_short(where, thresholds)
    if warning is None:
        return None
    return finding("length", "act", "The length is too short to tell", *warning, [], length=where.length)


def _over_sharp(heads: Described, thresholds: Thresholds) -> dict[str, Any] | None:
    # Weight on the first key means that a head rests, not that it is sharp.
    sharp = [head for head in heads if head["over_sharp_share"] - head["off_share"] > 0.5]
    if not sharp:
        return None
    return finding(
        "over-sharp-heads",
        "watch",
        "Heads that put nearly all weight on one token",
        f"{len(sharp)} of {counted(len(heads))} {'puts' if len(sharp) == 1 else 'put'} more than "
        f"{thresholds.over_sharp_weight:.0%} of the weight on a single token other than the first in most rows: hardly "
        "any gradient reaches the logits there.",
        "If you train the model, raise the temperature there or bound the logits. The paper's limit, T below 0.1, "
        "cannot be read off a trained model, whose logits can have any scale.",
        sharp,
        count=len(sharp),
    )


def _stability(heads: Described, agreement: dict[str, Any]) -> dict[str, Any]:
    counts = {state: len(carrying(heads, state)) for state in STATES}
    withdrawn = sum(head["withdrawn"] is not None for head in heads)
    listed = ", ".join(
        f"{count} {state}" for state, count in (counts | {"without a label": withdrawn}).items() if count
    )
    edge = [head for head in heads if head["edge"] is not None]
    mixed = sum(head["state_share"] < 0.5 for head in heads if head["state"] is not None)
    shaky = agreement["kappa"] < SHAKY
    sure = agreement["sure_heads"]
    sentence = (
        f"{listed}. Labels from one half of the {agreement['windows']} windows agree with those from the other half "
        f"for {agreement['share']:.0%} of the heads (kappa {agreement['kappa']:.2f}"
    )
    sentence += f"; {agreement['sure_share']:.0%} of the {sure} heads with a sure label)" if sure else ")"
    sentence += (
        f". {counted(len(edge))} lie{'s' if len(edge) == 1 else ''} so near a limit that other rows could give another "
        "label."
        if edge
        else ". No head lies so near a limit that other rows would give it another label."
    )
    if mixed:
        sentence += f" In {counted(mixed)} fewer than half of the rows, taken one by one, show the head's state."
    return finding(
        "labels",
        "act" if shaky else "note",
        "How far the labels can be trusted",
        sentence,
        "Use more windows, and text like what the model will be used on: labels change with the kind of text."
        if shaky
        else "Look at the errors of a head near a limit (listed here) before you act on its label.",
        edge,
        **agreement,
        counts=counts,
        withdrawn_heads=withdrawn,
        edge_heads=len(edge),
        mixed_heads=mixed,
    )


def _predictions(verification: dict[str, Any] | None) -> dict[str, Any] | None:
    if verification is None or not verification["predictions"]:
        return None
    held = [p["state"] for p in verification["predictions"] if p["held"]]
    failed = [p["state"] for p in verification["predictions"] if not p["held"]]
    ratios = ", ".join(f"{p['state']} {times(p)}" for p in verification["predictions"])
    return finding(
        "predictions",
        "watch" if failed else "note",
        "Tested inside the model",
        f"{len(held)} of {len(held) + len(failed)} predictions held on {counted(verification['windows'], 'window')} of "
        f"{verification['length']:,} tokens that gave no labels. KL divergences of labeled and random heads are apart, "
        f"in the direction predicted, by these factors: {ratios}."
        + (f" Did not hold: {', '.join(failed)}." if failed else ""),
        f"Do not rely on {', '.join(failed)} here: the heads that carried {'it' if len(failed) == 1 else 'them'} have "
        "no label any more."
        if failed
        else "On this model the labels mean what they say.",
        [],
        held=held,
        failed=failed,
    )


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
