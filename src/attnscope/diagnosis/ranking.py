"""The few heads that matter most when keys are dropped or the text gets longer: which, why, what to do, and when.

Heads are ranked by what is measured about dropping keys. Without a test inside the model: how far the residual stream
moves, relative to it, when one head keeps only the top share of its keys (`residual_change`). With one (`--verify`):
the KL divergence of the next-token distribution when the first candidates of that ranking do so, one at a time.
docs/diagnosis.md has the data for this choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attnscope.columns import head_name
from attnscope.diagnosis.explanations import count, percent
from attnscope.diagnosis.sentences import Described
from attnscope.diagnosis.states import STATES, TOP_SHARE, State
from attnscope.diagnosis.thresholds import limit_words
from attnscope.results.words import counted, measured

if TYPE_CHECKING:
    from attnscope.diagnosis.observing import Head
    from attnscope.diagnosis.situation import Situation
    from attnscope.diagnosis.thresholds import Thresholds

RANKED = 5
CANDIDATES = 20  # heads that a verification tries one at a time
SMALL_WEIGHT = 0.1  # below it, a single token hardly changes an output

NEGLIGIBLE = {"kl": 1e-4, "residual_change": 1e-3, TOP_SHARE.error: 1e-3}
"""What the first of the ranked heads must change, in nats and as shares, for any single head to matter."""


def criterion(heads: Described) -> str:
    """The number that heads are ranked by without a test: in models without a known residual stream, the error."""
    known = all(head["evidence"]["residual_change"] is not None for head in heads)
    return "residual_change" if known else TOP_SHARE.error


def candidates(heads: Described) -> list[Head]:
    """The heads to try one at a time, the most promising first."""
    return [(head["layer"], head["head"]) for head in _by(criterion(heads), heads)[:CANDIDATES]]


def _by(name: str, heads: Described) -> Described:
    """Heads with the largest number first; an error that is not finite is larger than any other."""

    def value(head: dict[str, Any]) -> float:
        number = head["evidence"][name]
        return float("inf") if number is None else number

    return sorted(heads, key=value, reverse=True)


def ranked_heads(
    heads: Described, where: Situation, thresholds: Thresholds, verification: dict[str, Any] | None
) -> dict[str, Any]:
    """The entries of a verdict about the heads that matter most: `heads`, `ranked_by`, and `heads_...` about all."""
    top = limit_words(thresholds.as_json())["top"]
    tried = {(one["layer"], one["head"]): one for one in (verification or {}).get("heads", ())}
    if tried:
        name = "kl"
        by = f"KL divergence of the next-token distribution when one head keeps only the top {top} of its keys"
        known = [head for head in heads if (head["layer"], head["head"]) in tried]
        order = sorted(known, key=lambda head: tried[head["layer"], head["head"]]["kl"], reverse=True)
        by += f", the largest of {counted(len(tried))} tried"
        largest = tried[order[0]["layer"], order[0]["head"]]["kl"]
    else:
        name = criterion(heads)
        what = "the residual stream" if name == "residual_change" else "a head's output"
        by = f"change of {what}, relative to its size, when one head keeps only the top {top} of its keys"
        order = _by(name, heads)
        largest = order[0]["evidence"][name]
    chosen = order[:RANKED]
    negligible = largest is not None and largest < NEGLIGIBLE[name]
    title = "The head that matters most" if len(chosen) == 1 else f"The {len(chosen)} heads that matter most"
    return {
        "heads_title": f"No single head matters much at {where.length:,} tokens" if negligible else title,
        "heads_note": _negligible(name, largest, len(tried)) if negligible else None,
        "heads_when": f"When keys are dropped ({where.dropping}).",
        "ranked_by": by,
        "heads": [_entry(head, where, thresholds, tried.get((head["layer"], head["head"]))) for head in chosen],
    }


def _negligible(name: str, largest: float, tried: int) -> str:
    """That the first of the ranked heads changes next to nothing."""
    limit = measured(name, NEGLIGIBLE[name])
    if name == "kl":
        changed = f"None of the {counted(tried)} tried changes the next-token distribution by more than a KL of "
        return f"{changed}{measured(name, largest)}; below {limit} their order says little."
    what = "the residual stream" if name == "residual_change" else "its own output"
    return f"None changes {what} by more than {100 * largest:.2g}% of its size; below {limit} their order says little."


def _entry(
    head: dict[str, Any], where: Situation, thresholds: Thresholds, tried: Mapping[str, Any] | None
) -> dict[str, Any]:
    return {
        "layer": head["layer"],
        "head": head["head"],
        "name": head_name(head["layer"], head["head"]),
        "state": head["state"],
        "kl": None if tried is None else tried["kl"],
        "residual_change": head["evidence"]["residual_change"],
        "why": _why(head, thresholds, tried),
        "what": _what(head, thresholds),
        "when": _when(head, where),
    }


def _why(head: dict[str, Any], thresholds: Thresholds, tried: Mapping[str, Any] | None) -> str:
    """What dropping keys does to this head, in its own numbers."""
    evidence = head["evidence"]
    words = limit_words(thresholds.as_json())
    error, change = evidence[TOP_SHARE.error], evidence["residual_change"]
    moved = "out of all proportion" if error is None else f"by {percent(error)}"
    sentence = f"Keeping only the top {words['top']} of its keys changes its output {moved}"
    if change is not None:
        sentence += f", and with it the residual stream by {percent(change)}"
    sentence += "."
    if tried is not None:
        low, high = min(tried["kl_windows"]), max(tried["kl_windows"])
        spread = f" ({low:.2g} to {high:.2g} over {len(tried['kl_windows'])} windows)" if low < high else ""
        sentence += f" In the model, that changes the next-token distribution by a KL of {tried['kl']:.2g}{spread}."
    sentence += (
        f" It needs {count(evidence['tokens_needed'])} tokens, {percent(evidence['share_needed'])} of those it "
        f"sees, for an error of {words['enough']}."
    )
    weight = evidence["max_weight"]
    if weight is not None and weight < SMALL_WEIGHT:
        sentence += f" Its max weight is {weight:.1%}: no single token changes its output much."
    return sentence


def _what(head: dict[str, Any], thresholds: Thresholds) -> str:
    evidence = head["evidence"]
    template = State.keep if head["state"] is None else STATES[head["state"]].keep
    errors = {name: "-" if value is None else f"{value:.0%}" for name, value in evidence.items() if "error" in name}
    return template.format(share=percent(evidence["share_needed"]), **errors, **limit_words(thresholds.as_json()))


def _when(head: dict[str, Any], where: Situation) -> str | None:
    """When else it matters than as keys are dropped: beyond this length, if its need grows and the model goes on."""
    evidence = head["evidence"]
    longer = where.longer(2 * where.length)
    exponent, low = evidence["growth_exponent"], evidence["growth_exponent_low"]
    if longer is None or exponent is None or low <= 0:
        return None
    expected = evidence["tokens_needed"] * (longer / where.length) ** exponent
    return (
        f"Beyond {where.length:,} tokens it would need more: about {count(expected)} at {longer:,} (growth exponent "
        f"{exponent:.2f})."
    )
