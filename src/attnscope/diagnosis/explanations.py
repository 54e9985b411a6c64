"""Sentences about the numbers of one head that a reader would stumble over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DIFFERENT = 4.0
"""How many times apart participation and tokens needed must be to be explained."""

LITTLE = 0.1
"""Below this share of the output's size, a token contributes almost nothing to it."""


def participation_explained(evidence: Mapping[str, Any], enough: float) -> str | None:
    """Why participation and tokens needed differ much in this head; None if they do not, or one is missing."""
    participation, needed = evidence["participation"], evidence["tokens_needed"]
    if participation is None or needed is None or 1 / DIFFERENT < needed / participation < DIFFERENT:
        return None
    start = f"Participation is {count(participation)} and tokens needed {count(needed)}, which is no contradiction: "
    if needed < participation:
        return start + (
            f"{count(participation)} tokens share the weight, but their value vectors average to nearly the same as "
            f"those of the {count(needed)} with the largest weights, which are enough for an error of {enough:.0%}."
        )
    without, contribution = evidence["participation_without_sink"], evidence["sink_contribution"]
    if without is None or contribution is None or without < 2 * participation:
        return start + (
            f"participation follows the largest weights (max weight {evidence['max_weight']:.0%}), while an error of "
            f"{enough:.0%} also takes the many small ones, whose contributions add up."
        )
    part = f"a part of {contribution:.0%} of the output's size. The rest of the output"
    if contribution < LITTLE:
        part = f"almost nothing to the output ({contribution:.1%} of its size). The output"
    return start + (
        f"the first token takes {evidence['sink_weight']:.0%} of the weight, which keeps participation low, and "
        f"contributes {part} comes from the other tokens, among which participation is {count(without)}."
    )


def count(value: float) -> str:
    """A number of tokens: one decimal below ten."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def tokens(value: float) -> str:
    """A number of tokens with its noun: 1 token, 6.6 tokens."""
    number = count(value)
    return "1 token" if float(number.replace(",", "")) == 1 else f"{number} tokens"


def percent(value: float) -> str:
    """A share as text: whole percent, one decimal below 1%, and never 0% for a share that is not zero."""
    if value == 0 or value >= 0.01:
        return f"{value:.0%}"
    return "less than 0.1%" if value < 0.0005 else f"{value:.1%}"
