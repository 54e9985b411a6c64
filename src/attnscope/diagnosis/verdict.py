"""The verdict of a diagnosis: counts of heads, the few that matter most, how far to trust it, and what to type next.

Heads are ranked by what is measured about dropping keys. Without a test inside the model: how far the residual stream
moves, relative to it, when one head keeps only the top share of its keys (`residual_change`). With one (`--verify`):
the KL divergence of the next-token distribution when the first candidates of that ranking do so, one at a time.
docs/diagnosis.md has the data for this choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from attnscope.columns import head_name
from attnscope.diagnosis.heads import count, percent
from attnscope.diagnosis.situation import Situation, shortest_length
from attnscope.diagnosis.states import (
    GROUPS,
    MANY_TOKENS,
    NO_LABEL,
    STATES,
    TOP_SHARE,
    Described,
    Group,
    State,
    Thresholds,
    carrying,
    effect_words,
    limit_words,
    listed_states,
)
from attnscope.show.numbers import counted, measured

if TYPE_CHECKING:
    from attnscope.diagnosis.observing import Head

SHAKY = 0.6
"""Cohen's kappa between the halves of the windows below which labels are too unstable to use."""

MANY_WINDOWS = 16  # from here on, more of them would not help

LONGER_TEXT = "LONGER_TEXT.txt"


class Suggestion(NamedTuple):
    """What to do next: one command, its arguments in Python, and the reason."""

    command: str
    python: str
    why: str


class Warned(NamedTuple):
    """What limits a diagnosis, and what to do about it."""

    sentence: str
    advice: str


def too_short(where: Situation, thresholds: Thresholds) -> Warned | None:
    """A warning that the windows are too short to distinguish heads that need many tokens, and what to do."""
    shortest = shortest_length(thresholds)
    if where.length >= shortest:
        return None
    keys = thresholds.top_share * where.length
    sentence = (
        f"The length is too short to tell which heads need many tokens: {thresholds.top_share:.0%} of "
        f"{where.length:,} keys are {keys:.0f}, and with so few a head soon looks as if it needed many."
    )
    longer = where.longer(shortest)
    if longer is None:
        return Warned(sentence, "The model takes no longer input: compare heads by tokens needed, not by label.")
    return Warned(sentence, f"Use windows of at least {longer:,} tokens.")


def next_step(
    heads: Described,
    agreement: dict[str, Any],
    where: Situation,
    thresholds: Thresholds,
    verification: dict[str, Any] | None,
) -> dict[str, str]:
    """The first step that applies: longer windows, more windows, a test inside the model, then a what-if."""
    testing = "--diagnose" if where.unverifiable or verification is None else "--verify"
    steps = (
        _longer_windows(where, thresholds, testing),
        _more_windows(agreement, where, testing),
        _test(where, verification),
        _second_test(where, verification),
        _what_if(heads, where),
        _double(where),
    )
    step = next((step for step in steps if step), _list_heads(where))
    return step._asdict()


def _longer_windows(where: Situation, thresholds: Thresholds, testing: str) -> Suggestion | None:
    longer = where.longer(shortest_length(thresholds))
    if where.length >= shortest_length(thresholds) or longer is None:
        return None
    text = None if where.tokens >= 2 * longer else LONGER_TEXT
    return Suggestion(
        where.command(testing, length=longer, text=text),
        where.call("diagnose", f"length={longer}", text=text and "longer_text"),
        f"Windows of {where.length:,} tokens are too short to tell which heads need many tokens.",
    )


def _more_windows(agreement: dict[str, Any], where: Situation, testing: str) -> Suggestion | None:
    if agreement["kappa"] >= SHAKY or where.windows >= MANY_WINDOWS:
        return None
    why = f"Labels from different windows agree for only {agreement['share']:.0%} of the heads"
    windows = 2 * where.windows
    if where.room >= windows * (2 if testing == "--verify" else 1):
        return Suggestion(
            where.command(testing, "--windows", str(windows)),
            where.call("diagnose", f"windows={windows}"),
            f"{why}: use more windows.",
        )
    return Suggestion(
        where.command(testing, text=LONGER_TEXT),
        where.call("diagnose", text="longer_text"),
        f"{why}, and the text has no room for more windows: use a longer one.",
    )


def _test(where: Situation, verification: dict[str, Any] | None) -> Suggestion | None:
    if verification is not None or where.unverifiable is not None:
        return None
    text = None if where.room >= 3 else LONGER_TEXT
    return Suggestion(
        where.command("--verify", text=text),
        where.call("diagnose", "verify=True", text=text and "longer_text"),
        "The labels are predictions: this tests them inside the model, on other windows.",
    )


def _second_test(where: Situation, verification: dict[str, Any] | None) -> Suggestion | None:
    refuted = [one["state"] for one in (verification or {}).get("predictions", ()) if not one["held"]]
    windows = 2 * where.windows
    if not refuted or where.room < windows + 1:
        return None
    return Suggestion(
        where.command("--verify", "--windows", str(windows)),
        where.call("diagnose", f"windows={windows}", "verify=True"),
        f"{', '.join(refuted).capitalize()} did not hold inside the model: more windows show whether it ever does.",
    )


def _what_if(heads: Described, where: Situation) -> Suggestion | None:
    many = len(carrying(heads, *(state.name for state in STATES.values() if state.group is MANY_TOKENS)))
    if not many:
        return None
    option = "diagnose" if where.unverifiable else "verify"
    return Suggestion(
        where.command(f"--{option}", "--normalizer", "ssmax,topk:k=64"),
        where.call("scan", 'normalizers=["ssmax", "topk:k=64"]', f"{option}=True"),
        f"{counted(many)} {'needs' if many == 1 else 'need'} many tokens: this measures what fewer keys (topk) and a "
        "length-aware normalizer (ssmax) would do to them.",
    )


def _double(where: Situation) -> Suggestion | None:
    longer = where.longer(2 * where.length)
    if longer is None or where.tokens < 2 * longer:
        return None
    return Suggestion(
        where.command("--diagnose", length=longer),
        where.call("diagnose", f"length={longer}"),
        f"No head needs many tokens at {where.length:,}: this shows whether that is still so at {longer:,}.",
    )


def _list_heads(where: Situation) -> Suggestion:
    return Suggestion("attnscope serve", "result.show()", "This opens the report: every head with its numbers.")


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
