"""The verdict of a diagnosis and its findings: ranked sentences, each with its evidence and advice.

Every number in a sentence is computed in the run that it describes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.columns import head_name
from attnscope.diagnosis.measure_findings import (
    budget_finding,
    coverage_finding,
    needs_finding,
    separability_finding,
    what_if_findings,
)
from attnscope.diagnosis.sentences import Described, carrying, column, counted, effect_words, finding, times
from attnscope.diagnosis.states import GROUPS, MANY_TOKENS, STATES, Finding, Group, most_pressing_first
from attnscope.diagnosis.thresholds import limit_words

if TYPE_CHECKING:
    import polars as pl

    from attnscope.diagnosis.observing import WindowRows
    from attnscope.diagnosis.thresholds import Thresholds

_ORDER = {"act": 0, "watch": 1, "note": 2}
MANY = 0.25  # share of the heads from which on a state is more pressing


def findings(
    heads: Described,
    windows: Sequence[WindowRows],
    agreement: dict[str, Any],
    length: int,
    thresholds: Thresholds,
    verification: dict[str, Any] | None,
    what_if: pl.DataFrame | None,
    seed: int,
) -> list[dict[str, Any]]:
    """All findings, the most pressing first."""
    of_states = dict.fromkeys(state.finding for state in most_pressing_first() if state.finding)
    unranked = [
        needs_finding(heads, windows, length, thresholds, seed),
        budget_finding(heads, thresholds, verification),
        *(state_finding(template, heads, length, thresholds) for template in of_states),
        _over_sharp(heads, thresholds),
        _stability(heads, agreement),
        _predictions(verification),
        separability_finding(heads, thresholds),
        coverage_finding(heads, thresholds),
        *what_if_findings(what_if, heads, verification),
    ]
    ranked = sorted((one for one in unranked if one), key=lambda one: _ORDER[one["severity"]])
    return [{"rank": rank, **one} for rank, one in enumerate(ranked, 1)]


def withdraw(heads: Described, verification: dict[str, Any] | None) -> Described:
    """The heads without the labels that verification refuted, which `withdrawn` names instead."""
    refuted = {prediction["state"] for prediction in _refuted(verification)}
    gone = dict.fromkeys(("state", "sureness", "edge", "state_share"))
    return [head | gone | {"withdrawn": head["state"]} if head["state"] in refuted else head for head in heads]


def _refuted(verification: dict[str, Any] | None) -> list[dict[str, Any]]:
    return [prediction for prediction in (verification or {}).get("predictions", ()) if not prediction["held"]]


def verdict(
    heads: Described, agreement: dict[str, Any], thresholds: Thresholds, verification: dict[str, Any] | None
) -> dict[str, Any]:
    """The diagnosis in a headline, three groups of heads, the labels withdrawn, and how far to trust them."""
    total = len(heads)
    tried = verification["predictions"] if verification else []
    refuted = _refuted(verification)
    many = [state.name for state in STATES.values() if state.group is MANY_TOKENS]
    count = len(carrying(heads, *many))
    unconfirmed = [prediction for prediction in refuted if prediction["state"] in many]
    if count:
        headline = f"{count} of {counted(total)} {'needs' if count == 1 else 'need'} many tokens"
    elif unconfirmed:
        looked = ", ".join(f"{one['heads']} looked {one['state']}, which came to {times(one)}" for one in unconfirmed)
        headline = (
            f"No head needs many tokens as far as the model confirms it: {looked}; a label needs "
            f"{thresholds.held_ratio:g}, and more than 1 in every window"
        )
    else:
        headline = f"None of the {counted(total)} needs many tokens"
    trust = f"Other windows of the text give the same label to {agreement['share']:.0%} of the heads."
    unsure = sum(head["edge"] is not None for head in heads)
    if unsure:
        trust += f" {counted(unsure)} {'lies' if unsure == 1 else 'lie'} near the edge between two labels."
    if verification and tried:
        trust += f" Tried inside the model on {counted(verification['windows'], 'other window')}, "
        trust += f"{len(tried) - len(refuted)} of {len(tried)} labels meant what they say"
        trust += f"; withdrawn: {', '.join(one['state'] for one in refuted)}." if refuted else "."
    else:
        trust += " The labels were not tried inside the model (--verify does that)."
    groups = [_group(group, heads) for group in GROUPS.values()]
    return {
        "headline": headline + ".",
        "groups": [one for one in groups if one["heads"]],
        "withdrawn": [_withdrawn(prediction, thresholds) for prediction in refuted],
        "trust": trust,
    }


def _withdrawn(prediction: dict[str, Any], thresholds: Thresholds) -> dict[str, Any]:
    """The heads of a refuted label in one sentence."""
    sentence = (
        f"{counted(prediction['heads'])} without a label: {prediction['state']} did not hold inside the model. "
        f"{effect_words(prediction, thresholds.as_json(), 'these heads')}, where {thresholds.held_ratio:g} times "
        "are needed, and more than 1 in every window."
    )
    return {"state": prediction["state"], "heads": prediction["heads"], "sentence": sentence}


def _group(group: Group, heads: Described) -> dict[str, Any]:
    """The heads of some states in one sentence; its first word is a verb, which agrees with their number."""
    states = [state for state in STATES.values() if state.group is group and carrying(heads, state.name)]
    counts = {state.name: len(carrying(heads, state.name)) for state in states}
    count = sum(counts.values())
    parts = " and ".join(f"{counts[state.name]} {state.part}" for state in states)
    verb, _, rest = group.sentence.format(parts=parts).partition(" ")
    sentence = f"{counted(count)} {verb + 's' if count == 1 else verb} {rest}"
    return {"name": group.name, "states": list(counts), "heads": count, "sentence": sentence}


def state_finding(template: Finding, heads: Described, length: int, thresholds: Thresholds) -> dict[str, Any] | None:
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
        "parts": ", ".join(
            f"{counts[state.name]} {state.part} ({state.name})" for state in states if counts[state.name]
        ),
        "compared": "" if elsewhere is None else f", against {elsewhere:,.0f} in the other heads",
    }
    return finding(
        template.id,
        template.severities[len(members) / len(heads) >= MANY],
        template.title,
        template.sentence.format(**words, **evidence, length=length),
        template.advice.format(**words),
        members,
        **{name: value if value is None or math.isfinite(value) else None for name, value in evidence.items()},
        **({name.replace("-", "_"): count for name, count in counts.items()} if len(counts) > 1 else {}),
    )


def _over_sharp(heads: Described, thresholds: Thresholds) -> dict[str, Any] | None:
    # Weight on the first key means that a head rests, not that it is sharp.
    sharp = [head for head in heads if head["over_sharp_share"] - head["off_share"] > 0.5]
    if not sharp:
        return None
    return finding(
        "over-sharp-heads",
        "watch",
        "Heads that put nearly all weight on one token",
        f"{len(sharp)} of {counted(len(heads))} {'gives' if len(sharp) == 1 else 'give'} more than "
        f"{thresholds.over_sharp_weight:.0%} of the weight to a "
        "single token other than the first in most rows: hardly any gradient reaches their logits there.",
        "In training, raise the temperature of these heads or bound their logits. The paper's limit for too sharp, "
        "T below 0.1, speaks of the temperature and cannot be read off a trained model, whose logits have any scale.",
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
    shaky = agreement["kappa"] < 0.6
    sure = agreement["sure_heads"]
    sentence = (
        f"{listed}. Labels from one half of the {agreement['windows']} windows agree with those from the other half "
        f"for {agreement['share']:.0%} of the heads (kappa {agreement['kappa']:.2f}"
    )
    sentence += f"; {agreement['sure_share']:.0%} of the {sure} whose label is sure)" if sure else ")"
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
        "watch" if shaky else "note",
        "How far the labels can be trusted",
        sentence,
        "Labels change with the kind of text: use more windows, and text like what the model will see."
        if shaky
        else "Do not act on a single head near the edge (listed here) without looking at its errors.",
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
        "Tried inside the model",
        f"{len(held)} of {len(held) + len(failed)} predictions held on {counted(verification['windows'], 'window')} of "
        f"{verification['length']:,} tokens not seen before. Labeled and random heads differ in KL divergence, as "
        f"predicted, by {ratios}." + (f" Not held: {', '.join(failed)}." if failed else ""),
        f"Withdrawn, as it did not hold on this model: {', '.join(failed)}. Heads that carried it have no label."
        if failed
        else "The labels mean on this model what they say.",
        [],
        held=held,
        failed=failed,
    )
