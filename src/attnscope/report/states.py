"""How the states of a diagnosis look and what they are called, in the terminal and on the page alike.

The colors are Okabe and Ito's, which any color vision can tell apart; the mark alone is enough to read a map.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

# What the rules keep unless a run says otherwise.
_USUAL = {"near_keys": 8, "top_share": 0.05}


@dataclass(frozen=True)
class Look:
    """A state as people see it. `{near}` and `{top}` are what the rules of the run keep."""

    color: str
    mark: str
    short: str
    sentence: str


LOOKS = {
    "broad": Look(
        "#d55e00",
        "B",
        "needs many tokens",
        "It needs many tokens: even the top {top} are not enough for the same output. This is the honest meaning of a "
        "saturated head.",
    ),
    "sink-bound": Look(
        "#9aa0a6",
        "S",
        "only the first token counts",
        "The first token alone gives nearly the same output: the head rests there and passes little on.",
    ),
    "constant": Look(
        "#cc79a7",
        "C",
        "puts out nearly the same in every row",
        "Its average output gives nearly the same result: what it hands on hardly depends on the text.",
    ),
    "local": Look(
        "#56b4e9",
        "L",
        "the first token and the nearest {near} are enough",
        "The first token and the nearest {near} give nearly the same output: the head looks at its neighbors.",
    ),
    "selective": Look(
        "#009e73",
        "\u00b7",
        "the top {top} of its tokens are enough",
        "The top {top} of the tokens are enough for nearly the same output: the head picks a few and uses them.",
    ),
}


def looks(thresholds: Mapping[str, Any] | None = None) -> dict[str, dict[str, str]]:
    """Every state, the most pressing first, with the rules' numbers filled in."""
    found = _USUAL | {name: value for name, value in (thresholds or {}).items() if name in _USUAL}
    numbers = {"near": f"{found['near_keys']:g}", "top": f"{100 * found['top_share']:g}%"}
    return {
        state: asdict(look) | {"short": look.short.format(**numbers), "sentence": look.sentence.format(**numbers)}
        for state, look in LOOKS.items()
    }
