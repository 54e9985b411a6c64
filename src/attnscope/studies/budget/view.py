"""What a budget shows: what heads keep, the methods side by side, and what the budget gains over each."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from attnscope.show.blocks import Block, Heading, Note, Span, Table, Tone, Words
from attnscope.show.numbers import number, short_path

if TYPE_CHECKING:
    from attnscope.swapping.key_budget import KeyBudget

_KINDS = {"first_recent": "first + recent keys", "top": "largest weights", "all": "all keys"}
_TONES: dict[str, Tone] = {"better": "good", "worse": "bad", "no gain": "warning"}
_LEGEND = (
    "KL and loss: nats per token, KL from the model with all keys. Recall: passages of the context come again, and "
    "how many of their tokens are predicted. Gain: how much better our budget is, mean and 95% interval over windows. "
    "exact top-k chooses again in every row and so stores all keys: a limit, not a method. As applied: what "
    "apply_budget does, from the first token on; heads that choose by weight do so in every row, too."
)


def blocks(budget: KeyBudget) -> list[Block]:
    """What heads keep, the methods side by side, and what our budget gains over each."""
    about, settings = budget.about, budget.about["settings"]
    where = f"{settings['windows']} x {settings['length']:,} tokens of {short_path(about['text']['source'])}"
    kinds: Counter[str] = Counter(head.kind for head in budget.heads)
    parts = ", ".join(f"{kinds[kind]} {words}" for kind, words in _KINDS.items() if kinds[kind])
    cache, beyond = about["cache"], about.get("beyond_window")
    found: list[Block] = [
        Heading(short_path(about["model"]), f"key budget of {settings['keep']:g}; {where}"),
        Note(
            f"Of {len(budget.heads)} key-value heads: {parts}. {number(budget.share(), 'share')} of all pairs are "
            f"attended to; the cache of apply_budget stores {cache['bytes_with_budget']:,} of {cache['bytes']:,} "
            "bytes, as heads that choose by weight must store all keys."
        ),
    ]
    if beyond is not None:
        words = "of the heads with first + recent keys reach further than their window: on longer texts they may need"
        found.append(Note(f"{len(beyond)} {words} more."))
    methods = [
        [
            line["method"],
            number(line["kept_share"], "share"),
            number(line["kl"]),
            number(line["perplexity"]),
            number(line["accuracy"], "share"),
        ]
        for line in about["comparison"]
    ]
    gains = [
        [line["method"], *(_gain(line[f"{name}_gain"]) for name in ("kl", "loss", "accuracy"))]
        for line in about["comparison"]
        if "kl_gain" in line
    ]
    return [
        *found,
        Table(["Method", "Kept", "KL", "Perplexity", "Recall"], methods),
        Table(["Gain over", "KL", "Loss", "Recall"], gains, notes=(_LEGEND,)),
    ]


def _gain(gain: dict[str, Any]) -> Words:
    half = round((gain["high"] - gain["low"]) / 2, 9)
    return f"{gain['mean']:+.2g} ± {half:.2g} ", Span(f"{gain['verdict']:<7}", _TONES[gain["verdict"]])
