"""The one command to type next that fits the result of a diagnosis."""

from __future__ import annotations

from typing import Any, NamedTuple

from attnscope.diagnosis.sentences import Described, carrying
from attnscope.diagnosis.situation import Situation, shortest_length
from attnscope.diagnosis.states import MANY_TOKENS, STATES
from attnscope.diagnosis.thresholds import Thresholds
from attnscope.results.words import counted

SHAKY = 0.6
"""Cohen's kappa between the halves of the windows below which labels are too unstable to use."""

MANY_WINDOWS = 16  # from here on, more of them would not help

LONGER_TEXT = "LONGER_TEXT.txt"


class Step(NamedTuple):
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


def _longer_windows(where: Situation, thresholds: Thresholds, testing: str) -> Step | None:
    longer = where.longer(shortest_length(thresholds))
    if where.length >= shortest_length(thresholds) or longer is None:
        return None
    text = None if where.tokens >= 2 * longer else LONGER_TEXT
    return Step(
        where.command(testing, length=longer, text=text),
        where.call("diagnose", f"length={longer}", text=text and "longer_text"),
        f"Windows of {where.length:,} tokens are too short to tell which heads need many tokens.",
    )


def _more_windows(agreement: dict[str, Any], where: Situation, testing: str) -> Step | None:
    if agreement["kappa"] >= SHAKY or where.windows >= MANY_WINDOWS:
        return None
    why = f"Labels from different windows agree for only {agreement['share']:.0%} of the heads"
    windows = 2 * where.windows
    if where.room >= windows * (2 if testing == "--verify" else 1):
        return Step(
            where.command(testing, "--windows", str(windows)),
            where.call("diagnose", f"windows={windows}"),
            f"{why}: use more windows.",
        )
    return Step(
        where.command(testing, text=LONGER_TEXT),
        where.call("diagnose", text="longer_text"),
        f"{why}, and the text has no room for more windows: use a longer one.",
    )


def _test(where: Situation, verification: dict[str, Any] | None) -> Step | None:
    if verification is not None or where.unverifiable is not None:
        return None
    text = None if where.room >= 3 else LONGER_TEXT
    return Step(
        where.command("--verify", text=text),
        where.call("diagnose", "verify=True", text=text and "longer_text"),
        "The labels are predictions: this tests them inside the model, on other windows.",
    )


def _second_test(where: Situation, verification: dict[str, Any] | None) -> Step | None:
    refuted = [one["state"] for one in (verification or {}).get("predictions", ()) if not one["held"]]
    windows = 2 * where.windows
    if not refuted or where.room < windows + 1:
        return None
    return Step(
        where.command("--verify", "--windows", str(windows)),
        where.call("diagnose", f"windows={windows}", "verify=True"),
        f"{', '.join(refuted).capitalize()} did not hold inside the model: more windows show whether it ever does.",
    )


def _what_if(heads: Described, where: Situation) -> Step | None:
    many = len(carrying(heads, *(state.name for state in STATES.values() if state.group is MANY_TOKENS)))
    if not many:
        return None
    option = "diagnose" if where.unverifiable else "verify"
    return Step(
        where.command(f"--{option}", "--normalizer", "ssmax,topk:k=64"),
        where.call("scan", 'normalizers=["ssmax", "topk:k=64"]', f"{option}=True"),
        f"{counted(many)} {'needs' if many == 1 else 'need'} many tokens: this measures what fewer keys (topk) and a "
        "length-aware normalizer (ssmax) would do to them.",
    )


def _double(where: Situation) -> Step | None:
    longer = where.longer(2 * where.length)
    if longer is None or where.tokens < 2 * longer:
        return None
    return Step(
        where.command("--diagnose", length=longer),
        where.call("diagnose", f"length={longer}"),
        f"No head needs many tokens at {where.length:,}: this shows whether that is still so at {longer:,}.",
    )


def _list_heads(where: Situation) -> Step:
    return Step("attnscope serve", "result.show()", "This opens the report: every head with its numbers.")
