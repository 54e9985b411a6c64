"""The states of a diagnosis as the terminal and the page show them, with the numbers of a run filled in.

They are declared in `attnscope.diagnosis.states`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from attnscope.diagnosis.states import NO_LABEL, RULES, STATES, limit_words, most_pressing_first


def state_looks(thresholds: Mapping[str, Any], withdrawn: Collection[str] = ()) -> dict[str, dict[str, str]]:
    """Color, mark, short text and sentence of every state, the most pressing first; for withdrawn ones `NO_LABEL`."""
    words = limit_words(thresholds)
    looks = {
        state.name: {
            "color": state.color,
            "mark": state.mark,
            "short": state.short.format(**words),
            "sentence": state.sentence.format(**words),
        }
        for state in most_pressing_first()
        if state.name not in withdrawn
    }
    if withdrawn:
        short = f"{' or '.join(withdrawn)} did not hold inside the model"
        sentence = "Its label did not hold inside the model and was withdrawn."
        looks[NO_LABEL] = {"color": "#d3d6da", "mark": "x", "short": short, "sentence": sentence}
    return looks


def withdrawn_states(findings: Mapping[str, Any]) -> list[str]:
    """The labels that a verification withdrew; runs of older versions know of none."""
    return [one["state"] for one in (findings.get("verdict") or {}).get("withdrawn", ())]


def state_rules(thresholds: Mapping[str, Any]) -> list[dict[str, str]]:
    """The rules in the order in which they are tried: the error that decides, the name of its limit, and words."""
    words = limit_words(thresholds)
    limits = {state.rule: state.limit for state in STATES.values()}
    return [{"error": rule.error, "limit": limits[rule], "words": rule.words_on_page.format(**words)} for rule in RULES]
