"""What a diagnosis says: ranked sentences, each with the numbers it rests on and what to do about it.

Every number in a sentence is computed in the run it speaks of.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from attnscope.diagnosis.states import STATES
from attnscope.diagnosis.statistics import LEVEL, Growth, growth
from attnscope.tables import OWN
from attnscope.theory.heads import coverage_independent, coverage_range, heads_needed

if TYPE_CHECKING:
    import polars as pl

    from attnscope.diagnosis.observing import Head, WindowRows
    from attnscope.diagnosis.thresholds import Thresholds

Severity = Literal["note", "watch", "act"]
_ORDER = {"act": 0, "watch": 1, "note": 2}

Described = list[dict[str, Any]]


def findings(
    heads: Described,
    windows: Sequence[WindowRows],
    share: float,
    kappa: float,
    length: int,
    thresholds: Thresholds,
    verification: dict[str, Any] | None,
    what_if: pl.DataFrame | None,
    seed: int,
) -> list[dict[str, Any]]:
    """All findings, the most pressing first."""
    found = [
        _broad(heads, length, thresholds),
        _needs(heads, windows, length, thresholds, seed),
        _capacity(heads, thresholds, verification),
        _idle(heads, thresholds),
        _local(heads, thresholds),
        _over_sharp(heads, thresholds),
        _stability(heads, share, kappa, len(windows)),
        _predictions(verification),
        _separability(heads, thresholds),
        _coverage(heads, thresholds),
        *_what_ifs(what_if),
    ]
    ranked = sorted((finding for finding in found if finding), key=lambda finding: _ORDER[finding["severity"]])
    return [{"rank": rank, **finding} for rank, finding in enumerate(ranked, 1)]


def _finding(
    name: str, severity: Severity, title: str, sentence: str, advice: str, heads: Described, **evidence: Any
) -> dict[str, Any]:
    return {
        "id": name,
        "severity": severity,
        "title": title,
        "sentence": sentence,
        "evidence": evidence,
        "advice": advice,
        "heads": [[head["layer"], head["head"]] for head in heads],
    }


def _of(heads: Described, *states: str) -> Described:
    return [head for head in heads if head["state"] in states]


def _values(heads: Described, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([head["evidence"][name] for head in heads], dtype=np.float64)


def _count(number: int, what: str = "head") -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _broad(heads: Described, length: int, thresholds: Thresholds) -> dict[str, Any] | None:
    broad = sorted(_of(heads, "broad"), key=lambda head: -head["evidence"]["error_top_5_percent"])
    if not broad:
        return None
    part, worst = len(broad) / len(heads), broad[0]
    error, use = float(np.median(_values(broad, "error_top_5_percent"))), float(np.median(_values(broad, "tokens_in_use")))
    others = [head for head in heads if head["state"] != "broad"]
    elsewhere = float(np.median(_values(others, "tokens_in_use"))) if others else math.nan
    compared = f", against {elsewhere:,.0f} in the other heads" if others else ""
    return _finding(
        "broad-heads",
        "act" if part >= 0.25 else "watch",
        "Heads that need many tokens",
        f"{len(broad)} of {_count(len(heads))} ({part:.0%}) average over many tokens: the {thresholds.top_share:.0%} of keys "
        f"with the largest weights miss their output by {error:.0%} (median), and they need {use:,.0f} tokens at length "
        f"{length:,} to come within {thresholds.enough:.0%}{compared}. Layer {worst['layer']} head {worst['head']} is the "
        "broadest.",
        "This is what a saturated head can honestly mean. Do not sharpen or prune these heads (low temperature, top-k, "
        "sparse normalizers): they lose most. If they should select, give them a length-aware normalizer in training.",
        broad,
        count=len(broad),
        share=part,
        median_error=error,
        median_tokens=use,
        median_tokens_elsewhere=elsewhere if others else None,
    )


def head_growth(windows: Sequence[WindowRows], head: Head, seed: int) -> Growth | None:
    """How the number of keys that a head needs grows with the length, over all rows measured."""
    rows = [columns for w in windows for columns in (w.shorter.get(head), w.rows[head]) if columns is not None]
    lengths = np.concatenate([columns["length"] for columns in rows])
    enough = np.concatenate([columns["keys_enough"] for columns in rows])
    return growth(lengths, enough, seed)


def _needs(
    heads: Described, windows: Sequence[WindowRows], length: int, thresholds: Thresholds, seed: int
) -> dict[str, Any] | None:
    """How many tokens heads use, and how that grows; each head's own growth goes into its evidence."""
    for head in heads:
        own = head_growth(windows, (head["layer"], head["head"]), seed)
        head["evidence"] |= {
            "growth_exponent": own and round(own.exponent, 4),
            "growth_low": own and round(own.low, 4),
            "growth_high": own and round(own.high, 4),
        }
    use = _values(heads, "tokens_in_use")
    low, middle, high = np.quantile(use, [0.1, 0.5, 0.9])
    grown = [head for head in heads if head["evidence"]["growth_exponent"] is not None]
    sentence = (
        f"At length {length:,} a head needs {middle:,.0f} tokens (median; {low:,.0f} to {high:,.0f} for the middle 80% of "
        f"heads) for its output to come within {thresholds.enough:.0%}."
    )
    evidence: dict[str, Any] = {"median_tokens": middle, "low_tokens": low, "high_tokens": high}
    linear: Described = []
    if grown:
        exponent = float(np.median(_values(grown, "growth_exponent")))
        edges = [float(np.median(_values(grown, f"growth_{edge}"))) for edge in ("low", "high")]
        linear = [head for head in grown if head["evidence"]["growth_low"] > 0.5]
        fixed = sum(head["evidence"]["growth_high"] < 0.5 for head in grown)
        sentence += (
            f" That grows like length^{exponent:.2f} ({LEVEL:.0%} interval of the median head {edges[0]:.2f} to "
            f"{edges[1]:.2f}): {_count(len(linear))} faster than the square root of the length, {fixed} slower."
        )
        evidence |= {"exponent": exponent, "exponent_low": edges[0], "exponent_high": edges[1], "slower": fixed}
    return _finding(
        "tokens-in-use",
        "note",
        "How many tokens heads use",
        sentence,
        "Heads whose need grows with the length are the ones that a longer context dilutes; the paper's advice to keep the "
        "top set sub-linear in the length costs the others nothing.",
        linear,
        **{name: float(value) for name, value in evidence.items()},
    )


def _capacity(heads: Described, thresholds: Thresholds, verification: dict[str, Any] | None) -> dict[str, Any]:
    shares = _values(heads, "share_in_use")
    mean = float(shares.mean())
    sentence = (
        f"{mean:.0%} of the keys would be enough for the whole model if every head kept as many as it needs for an error "
        f"of {thresholds.enough:.0%}"
    )
    evidence: dict[str, Any] = {"share": mean, "error": thresholds.enough}
    capacity = verification and verification["capacity"]
    severity: Severity = "note"
    advice = "Run with --verify to measure what that does to the model's predictions."
    if capacity:
        own, same = capacity["kl_capacity"], capacity["kl_uniform"]
        sentence += (
            f". Applied inside the model on a window not seen before ({capacity['share']:.0%} of the keys after rounding "
            f"up), it changes the next-token distribution by a KL divergence of {own:.3g}; the same share in every head "
            f"by {same:.3g}"
        )
        evidence |= capacity
        better = own < same
        advice = (
            f"A budget by head is {same / own:.1f} times gentler than one number for all: take share_in_use of each head "
            "from findings.json for a sparse kernel or a key cache."
            if better and own > 0
            else "A budget by head is no better than one number for all on this model; use the simpler one."
        )
    return _finding("key-budget", severity, "How many keys would be enough", sentence + ".", advice, [], **evidence)


def _idle(heads: Described, thresholds: Thresholds) -> dict[str, Any] | None:
    idle = _of(heads, "sink-bound", "constant")
    if not idle:
        return None
    bound, constant = len(_of(heads, "sink-bound")), len(_of(heads, "constant"))
    off = float(np.mean([head["off_share"] for head in heads]))
    return _finding(
        "idle-heads",
        "watch" if len(idle) / len(heads) >= 0.25 else "note",
        "Heads whose output hardly depends on the text",
        f"{_count(len(idle))} of {len(heads)} put out nearly the same whatever the row: {bound} only the first key's value "
        f"(sink-bound), {constant} close to their own mean (constant). Over all heads, {off:.0%} of the rows put more than "
        f"{thresholds.off_weight:.0%} of their weight on the first key.",
        "Candidates for pruning: try their mean output first. Weight on the first key alone is not enough to call a head "
        "idle; its value can be near zero, and then the rest decides.",
        idle,
        sink_bound=bound,
        constant=constant,
        off_share=off,
    )


def _local(heads: Described, thresholds: Thresholds) -> dict[str, Any] | None:
    local = _of(heads, "local")
    if not local:
        return None
    error = float(np.median(_values(local, "error_local")))
    near = int(thresholds.near_keys)
    return _finding(
        "local-heads",
        "note",
        "Heads that look at their neighbors",
        f"{_count(len(local))} of {len(heads)} need only the first key and the nearest {near}: the error is {error:.0%} "
        "(median).",
        f"A window of {near} keys plus the first one is enough for them at any length: a cheap place to save memory.",
        local,
        count=len(local),
        median_error=error,
    )


def _over_sharp(heads: Described, thresholds: Thresholds) -> dict[str, Any] | None:
    # Weight on the first key is rest, not sharpness.
    sharp = [head for head in heads if head["over_sharp_share"] - head["off_share"] > 0.5]
    if not sharp:
        return None
    return _finding(
        "over-sharp-heads",
        "watch",
        "Heads that put nearly all weight on one token",
        f"{_count(len(sharp))} of {len(heads)} give more than {thresholds.over_sharp_weight:.0%} of the weight to a single "
        "token other than the first in most rows: hardly any gradient reaches their logits there.",
        "In training, raise the temperature of these heads or bound their logits. The paper's limit for too sharp, "
        "T below 0.1, speaks of the temperature and cannot be read off a trained model, whose logits have any scale.",
        sharp,
        count=len(sharp),
    )


def _stability(heads: Described, share: float, kappa: float, windows: int) -> dict[str, Any]:
    counts = {state: len(_of(heads, state)) for state in STATES}
    listed = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    mixed = [head for head in heads if head["state_share"] < 0.5]
    shaky = kappa < 0.6
    return _finding(
        "labels",
        "watch" if shaky else "note",
        "How far the labels can be trusted",
        f"{listed}. Labels from one half of the {windows} windows agree with those from the other half for {share:.0%} of "
        f"the heads (kappa {kappa:.2f}); in {_count(len(mixed))} fewer than half of the rows show the head's own state.",
        "Labels change with the kind of text: use more windows, and text like what the model will see."
        if shaky
        else "Heads near a limit can change sides; look at the errors in their evidence before acting on one head.",
        mixed,
        **{"share": share, "kappa": kappa, "windows": windows, "counts": counts},
    )


def _predictions(verification: dict[str, Any] | None) -> dict[str, Any] | None:
    if verification is None or not verification["predictions"]:
        return None
    held = [p["state"] for p in verification["predictions"] if p["held"]]
    failed = [p["state"] for p in verification["predictions"] if not p["held"]]
    ratios = ", ".join(
        f"{p['state']} {p['ratio']:.1f}" for p in verification["predictions"] if p["ratio"] is not None
    )
    return _finding(
        "predictions",
        "watch" if failed else "note",
        "Tried inside the model",
        f"{len(held)} of {len(held) + len(failed)} predictions held on {verification['length']:,} tokens not seen before: "
        f"how many times the KL divergence of labeled and random heads differ is {ratios}."
        + (f" Not held: {', '.join(failed)}." if failed else ""),
        "Do not act on labels that did not hold on this model." if failed else "The labels mean on this model what they say.",
        [],
        held=held,
        failed=failed,
    )


def _separability(heads: Described, thresholds: Thresholds) -> dict[str, Any] | None:
    known = [head for head in heads if head["evidence"]["separability"] is not None]
    if not known:
        return None
    medians = {
        name: float(np.nanmedian(_values(known, name)))
        for name in ("separability", "null_uniform", "null_random", "separability_without_sink")
    }
    saturated = [head for head in known if head["evidence"]["paper_saturated"]]
    above = sum(
        head["evidence"]["separability_low"] > max(head["evidence"]["null_uniform"], head["evidence"]["null_random"])
        for head in known
    )
    n = int(thresholds.separability_n)
    return _finding(
        "separability",
        "note",
        "Separability against chance",
        f"{medians['separability']:.0%} of the top {n} tokens are separable (median head; "
        f"{medians['separability_without_sink']:.0%} without the first key). With equal weights the same tokens give "
        f"{medians['null_uniform']:.0%}, random sets {medians['null_random']:.0%}; {above} of {_count(len(known))} are above "
        f"both for sure. The paper's own rule (80% or less means saturated) marks {len(saturated)}.",
        "A rule that marks most heads of a working model decides nothing: use the states, which say what a head can do "
        "without.",
        saturated,
        **medians,
        above_both=above,
        paper_saturated=len(saturated),
    )


def _coverage(heads: Described, thresholds: Thresholds) -> dict[str, Any] | None:
    values = _values(heads, "separability")
    values = values[np.isfinite(values)]
    if not len(values) or not 0 < values.mean() < 1:
        return None
    mean = torch.tensor(float(values.mean()), dtype=torch.float64)
    needed = int(heads_needed(mean, torch.tensor(thresholds.coverage, dtype=torch.float64)))
    independent = float(coverage_independent(mean, torch.tensor(float(needed), dtype=torch.float64)))
    honest = coverage_range(mean.expand(needed))
    return _finding(
        "coverage",
        "note",
        "Heads needed to tell a top set apart",
        f"With the mean separability of {float(mean):.0%}, {_count(needed)} would cover {thresholds.coverage:.0%} of a top set "
        f"if heads missed tokens independently ({independent:.1%}, the paper's formula). What is proved without that "
        f"assumption is only {float(honest.lower):.0%} to {float(honest.upper):.0%}.",
        "Read the number as an order of magnitude: heads that fail on the same tokens add nothing.",
        [],
        mean_separability=float(mean),
        heads_needed=needed,
        independent=independent,
        lower=float(honest.lower),
        upper=float(honest.upper),
    )


def _what_ifs(rows: pl.DataFrame | None) -> list[dict[str, Any]]:
    """One finding for each other normalizer of a scan: what it does to the same logits."""
    import polars as pl

    if rows is None or rows.is_empty():
        return []
    keys = ["window", "layer", "head", "position"]
    own = rows.filter(normalizer=OWN)
    found = []
    for label in sorted(set(rows["normalizer"].unique().to_list()) - {OWN}):
        pair = own.join(rows.filter(normalizer=label), on=keys, suffix="_other")
        medians = pair.select(
            pl.col("participation", "participation_other", "support_other", "jacobian_norm", "jacobian_norm_other").median()
        ).row(0, named=True)
        use = medians["participation_other"] / medians["participation"]
        gradient = medians["jacobian_norm_other"] / medians["jacobian_norm"] if medians["jacobian_norm"] else math.nan
        by_head = pair.group_by("layer", "head").agg((pl.col("participation_other") / pl.col("participation")).median())
        most = by_head.with_columns(pl.col("participation_other").log().abs().alias("change")).sort("change").tail(5)
        found.append(
            _finding(
                f"what-if:{label}",
                "note",
                f"What if: {label}",
                f"On the same logits, {label} would bring the tokens in use (1 / sum of squared weights) from "
                f"{medians['participation']:.1f} to {medians['participation_other']:.1f} ({use:.2f} times, median row), leave "
                f"{medians['support_other']:,.0f} weights above zero, and change the Jacobian norm {gradient:.2f} times.",
                "The model was not trained with it: measure the loss before use. The heads listed would change most.",
                [{"layer": line["layer"], "head": line["head"]} for line in most.reverse().iter_rows(named=True)],
                normalizer=label,
                participation_ratio=use,
                support=medians["support_other"],
                jacobian_ratio=gradient if math.isfinite(gradient) else None,
            )
        )
    return found
