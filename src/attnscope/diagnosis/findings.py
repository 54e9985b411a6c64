"""The findings of a diagnosis: ranked sentences, each with its evidence and advice.

Every number in a sentence is computed in the run that it describes.
"""

from __future__ import annotations

import math
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
from attnscope.results.words import counted

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
