"""A budget and its comparison in the terminal."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from rich.text import Text

from attnscope.report.terminal import add_row, paragraph, short_path, table, tables
from attnscope.results.words import number

if TYPE_CHECKING:
    from rich.console import Console

    from attnscope.swapping.key_budget import KeyBudget

_KINDS = {"first_recent": "first + recent keys", "top": "largest weights", "all": "all keys"}
_STYLES = {"better": "green", "worse": "red", "no gain": "yellow"}
_LEGEND = (
    "KL and loss: nats per token, KL from the model with all keys. Recall: passages of the context come again, and "
    "how many of their tokens are predicted. Gain: how much better our budget is, mean and 95% interval over windows. "
    "exact top-k chooses again in every row and so stores all keys: a limit, not a method. As applied: what "
    "apply_budget does, from the first token on; heads that choose by weight do so in every row, too."
)


def print_budget(console: Console, budget: KeyBudget) -> None:
    """Print what heads keep, the methods side by side, and what our budget gains over each."""
    about = budget.about
    settings = about["settings"]
    where = f"{settings['windows']} x {settings['length']:,} tokens of {short_path(about['text']['source'])}"
    console.print(Text.assemble((short_path(about["model"]), "bold"), f": key budget of {settings['keep']:g}; {where}"))
    kinds: Counter[str] = Counter(head.kind for head in budget.heads)
    parts = ", ".join(f"{kinds[kind]} {words}" for kind, words in _KINDS.items() if kinds[kind])
    cache = about["cache"]
    console.print(
        paragraph(
            f"\nOf {len(budget.heads)} key-value heads: {parts}. {number(budget.share(), 'share')} of all pairs are "
            f"attended to; the cache of apply_budget stores {cache['bytes_with_budget']:,} of {cache['bytes']:,} "
            "bytes, as heads that choose by weight must store all keys."
        )
    )
    beyond = about.get("beyond_window")
    if beyond is not None:
        console.print(
            paragraph(
                f"{len(beyond)} of the heads with first + recent keys reach further than their window: on longer texts "
                "they may need more."
            )
        )
    console.print()
    made = table(["Method", "Kept", "KL", "Perplexity", "Recall"])
    for line in about["comparison"]:
        kept, recall = (number(line[name], "share") for name in ("kept_share", "accuracy"))
        add_row(made, line["method"], kept, number(line["kl"]), number(line["perplexity"]), recall)
    console.print(made)
    console.print()
    others = [line for line in about["comparison"] if "kl_gain" in line]
    gains = [[line["method"], *(_gain(line[f"{name}_gain"]) for name in ("kl", "loss", "accuracy"))] for line in others]
    for part in tables(["Gain over", "KL", "Loss", "Recall"], gains, console.width):
        console.print(part)
        console.print()
    console.print(paragraph(_LEGEND, style="dim"))


def _gain(gain: dict[str, Any]) -> Text:
    half = round((gain["high"] - gain["low"]) / 2, 9)
    return Text.assemble(f"{gain['mean']:+.2g} ± {half:.2g} ", (f"{gain['verdict']:<7}", _STYLES[gain["verdict"]]))
