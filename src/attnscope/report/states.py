"""The states of a diagnosis as the terminal and the page show them, with the numbers of a run filled in.

They are declared in `attnscope.diagnosis.states`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from attnscope.columns import Display
from attnscope.diagnosis.states import RULES, STATES, most_pressing_first
from attnscope.diagnosis.thresholds import limit_words


def state_looks(thresholds: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Color, mark, short text and sentence of every state, the most pressing first."""
    words = limit_words(thresholds)
    return {
        state.name: {
            "color": state.color,
            "mark": state.mark,
            "short": state.short.format(**words),
            "sentence": state.sentence.format(**words),
        }
        for state in most_pressing_first()
    }


def state_rules(thresholds: Mapping[str, Any]) -> list[dict[str, str]]:
    """The rules in the order in which they are tried: the error that decides, the name of its limit, and words."""
    words = limit_words(thresholds)
    limits = {state.rule: state.limit for state in STATES.values()}
    return [{"error": rule.error, "limit": limits[rule], "words": rule.words_on_page.format(**words)} for rule in RULES]


def error_measures(thresholds: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The error under each rule as a measure of the page."""
    words = limit_words(thresholds)
    return {
        rule.error: asdict(
            Display(f"Error with {rule.words_on_page.format(**words)}", rule.sentence.format(**words), "share")
        )
        for rule in RULES
    }
