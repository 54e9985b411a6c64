"""The verdict of a diagnosis: counts of heads, the few that matter most, how far to trust it, and what to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnscope.diagnosis.next_step import next_step, too_short
from attnscope.diagnosis.ranking import ranked_heads
from attnscope.diagnosis.sentences import Described, carrying, effect_words, listed_states
from attnscope.diagnosis.states import GROUPS, MANY_TOKENS, NO_LABEL, STATES, Group
from attnscope.results.words import counted

if TYPE_CHECKING:
    from attnscope.diagnosis.situation import Situation
    from attnscope.diagnosis.thresholds import Thresholds


def withdraw(heads: Described, verification: dict[str, Any] | None) -> Described:
    """The heads without the labels that verification refuted, which `withdrawn` names instead."""
    refuted = {prediction["state"] for prediction in _refuted(verification)}
    gone = dict.fromkeys(("state", "sureness", "edge", "state_share"))
    kept = [head | {"edge": NO_LABEL} if head["edge"] in refuted else head for head in heads]
    return [head | gone | {"withdrawn": head["state"]} if head["state"] in refuted else head for head in kept]


def _refuted(verification: dict[str, Any] | None) -> list[dict[str, Any]]:
    return [prediction for prediction in (verification or {}).get("predictions", ()) if not prediction["held"]]


def verdict(
    heads: Described,
    agreement: dict[str, Any],
    where: Situation,
    thresholds: Thresholds,
    verification: dict[str, Any] | None,
) -> dict[str, Any]:
    """The entry `verdict` of `findings.json`."""
    groups = [_group(group, heads, thresholds) for group in GROUPS.values()]
    warning = too_short(where, thresholds)
    return {
        "headline": _headline(heads, verification),
        "groups": [one for one in groups if one["heads"]],
        "withdrawn": [_withdrawn(prediction, thresholds) for prediction in _refuted(verification)],
        **ranked_heads(heads, where, thresholds, verification),
        "warnings": [] if warning is None else [f"{warning.sentence} {warning.advice}"],
        "trust": _trust(heads, agreement, where, verification),
        "next": next_step(heads, agreement, where, thresholds, verification),
    }


def _headline(heads: Described, verification: dict[str, Any] | None) -> str:
    """How many heads need many tokens."""
    many = [state.name for state in STATES.values() if state.group is MANY_TOKENS]
    count, total = len(carrying(heads, *many)), counted(len(heads))
    unconfirmed = [prediction for prediction in _refuted(verification) if prediction["state"] in many]
    if count:
        return f"{count} of {total} {'needs' if count == 1 else 'need'} many tokens."
    if unconfirmed:
        looked = ", ".join(f"{one['heads']} looked {one['state']}" for one in unconfirmed)
        return f"No head is confirmed to need many tokens: {looked}, but that did not hold inside the model."
    return f"None of the {total} needs many tokens."


def _group(group: Group, heads: Described, thresholds: Thresholds) -> dict[str, Any]:
    """The heads of some states in one sentence; its first word is a verb, which agrees with their number."""
    names = [state.name for state in STATES.values() if state.group is group and carrying(heads, state.name)]
    count = len(carrying(heads, *names))
    verb, _, rest = group.sentence.format(parts=listed_states(heads, names, thresholds)).partition(" ")
    sentence = f"{counted(count)} {verb + 's' if count == 1 else verb} {rest}"
    return {"name": group.name, "states": names, "heads": count, "sentence": sentence}


def _withdrawn(prediction: dict[str, Any], thresholds: Thresholds) -> dict[str, Any]:
    """The heads of a refuted label in one sentence."""
    sentence = (
        f"{counted(prediction['heads'])} without a label: {prediction['state']} did not hold inside the model. "
        f"{effect_words(prediction, thresholds.as_json(), 'these heads')}, where {thresholds.held_ratio:g} times "
        "are needed, and more than 1 in every window."
    )
    return {"state": prediction["state"], "heads": prediction["heads"], "sentence": sentence}


def _trust(heads: Described, agreement: dict[str, Any], where: Situation, verification: dict[str, Any] | None) -> str:
    """How far labels agree between windows, and whether they were tested."""
    trust = f"Labels from the two halves of the windows agree for {agreement['share']:.0%} of the heads."
    unsure = sum(head["edge"] is not None for head in heads)
    if unsure:
        trust += f" {counted(unsure)} {'lies' if unsure == 1 else 'lie'} near a limit between two labels."
    tried, refuted = (verification or {}).get("predictions", ()), _refuted(verification)
    if verification is not None and tried:
        trust += f" Tested inside the model on {counted(verification['windows'], 'other window')}, "
        trust += f"{len(tried) - len(refuted)} of {counted(len(tried), 'label')} held"
        return trust + (f"; withdrawn: {', '.join(one['state'] for one in refuted)}." if refuted else ".")
    if where.unverifiable is not None:
        return f"{trust} The labels cannot be tested inside the model: {where.unverifiable}."
    return f"{trust} The labels were not tested inside the model."
