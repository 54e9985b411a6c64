"""The states of a diagnosis: one object each, in the order in which they are tried. Everything else reads them here.

A state is defined by a simpler rule for a head's output. A row's error under a rule is |c - c_rule| / |c| in the space
of the head's value vectors, a head's error the mean over its rows. (Root mean squares and medians were tried too: the
labels of fresh windows agreed with them a little less.) The first state whose condition is met is the head's.

To add a state, add a `State` to `_STATES` (and, if it has a limit of its own, a line to `thresholds.py`): labels,
evidence, findings, `--verify`, the terminal and the page follow. In texts, `{near}`, `{top}`, `{enough}` and `{off}`
stand for the numbers of the run (`thresholds.limit_words`); a finding's sentence may also use what
`findings.state_finding` computes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from attnscope.diagnosis.thresholds import Thresholds
from attnscope.key_rules import KeyRule, keep_first, keep_near, keep_top

Severity = Literal["note", "watch", "act"]


@dataclass(frozen=True)
class Rule:
    """A simpler way to compute a head's output: softmax over some keys, or (without `keys`) the head's mean output."""

    name: str
    words: str  # what is done to a head, in predictions
    words_on_page: str
    keys: Callable[[Thresholds], KeyRule] | None = None

    @property
    def error(self) -> str:
        """Name of its error in the evidence of a head, declared in `attnscope.columns`."""
        return f"error_{self.name}"

    @property
    def square(self) -> str:
        """Name of its squared error among the columns of captured rows."""
        return f"square_{self.name}"


@dataclass(frozen=True)
class Group:
    """States that a verdict counts together."""

    name: str
    mark: str
    color: str  # in the terminal
    sentence: str  # starts with a verb in the plural; `{parts}` are its states with their counts


@dataclass(frozen=True)
class Finding:
    """What a diagnosis says about the heads of a state, or of several states that share it."""

    id: str
    title: str
    sentence: str
    advice: str
    severities: tuple[Severity, Severity] = ("note", "note")  # below a quarter of all heads, and from there on


@dataclass(frozen=True)
class State:
    """A label for heads: the condition for it, what it means, and how it looks.

    A head meets the condition if its error under `rule` is below the threshold named `limit` (at or above it where
    `enough` is False); the last state takes the heads that are left. `--verify` predicts that a rule that is enough
    changes the model less in the state's heads than in random ones, and one that is not enough changes it more.
    """

    name: str
    rule: Rule
    limit: str
    group: Group
    part: str  # what is enough for its heads, in a list of the group's states
    color: str  # of Okabe and Ito, or a gray: distinct with any color vision
    mark: str  # enough to read a map without colors
    short: str
    sentence: str
    enough: bool = True
    keep: str = "Keep at least {share} of its keys."  # what to do when keys are dropped; `{share}`: the share needed
    finding: Finding | None = None


FIRST_KEY = Rule("first_key", "Keeping only the first key", "the first token only", lambda limits: keep_first)
MEAN_OUTPUT = Rule("mean_output", "Using the mean output", "its mean output")
LOCAL = Rule(
    "local",
    "Keeping only the first key and the nearest {near}",
    "the first token and the nearest {near}",
    lambda limits: keep_near(int(limits.near_keys)),
)
TOP_SHARE = Rule(
    "top_share",
    "Keeping only the top {top} of the keys",
    "the top {top} of the tokens",
    lambda limits: keep_top(limits.top_share),
)

MANY_TOKENS = Group(
    "many-tokens",
    "*",
    "#d55e00",
    "need many tokens. Dropping keys costs such heads most, and a single token counts less there as the text grows.",
)
IDLE = Group("idle", "-", "default", "output nearly the same whatever the text, so pruning is worth a try: {parts}.")
FEW_TOKENS = Group("few-tokens", "+", "default", "need only a few tokens: {parts}.")
GROUPS = {group.name: group for group in (MANY_TOKENS, IDLE, FEW_TOKENS)}  # the most pressing first

IDLE_HEADS = Finding(
    "idle-heads",
    "Heads whose output hardly depends on the text",
    "{count} of {total} output{s} nearly the same in every row: {parts}. Over all heads, {off_share:.0%} of the rows "
    "have a sink weight above {off}.",
    "Candidates for pruning: replace them with their mean output first and measure the loss. A high sink weight alone "
    "does not make a head idle: the value of the first token can be near zero, and then the other tokens decide.",
    ("note", "watch"),
)

_STATES = (
    State(
        "sink-bound",
        FIRST_KEY,
        "sink_bound",
        IDLE,
        part="the first token alone is enough",
        color="#5f6368",
        mark="S",
        short="the first token alone is enough",
        sentence="The first token alone gives nearly the same output: the head passes on little of the text.",
        keep="Keep the first key: with it alone the error is {error_first_key}.",
        finding=IDLE_HEADS,
    ),
    State(
        "constant",
        MEAN_OUTPUT,
        "constant",
        IDLE,
        part="close to the mean output",
        color="#cc79a7",
        mark="C",
        short="nearly the same output in every row",
        sentence="Its mean output gives nearly the same result: what it passes on hardly depends on the text.",
        keep="Keep at least {share} of its keys, or replace its output with its mean (error {error_mean_output}).",
        finding=IDLE_HEADS,
    ),
    State(
        "local",
        LOCAL,
        "local",
        FEW_TOKENS,
        part="the first token and the nearest {near}",
        color="#56b4e9",
        mark="L",
        short="the first token and the nearest {near} are enough",
        sentence="The first token and the nearest {near} give nearly the same output: the head looks at its neighbors.",
        keep="Keep the first key and the nearest {near} rather than the largest weights: the error is {error_local}.",
        finding=Finding(
            "local-heads",
            "Heads that look at their neighbors",
            "{count} of {total} need{s} only the first key and the nearest {near}: the error is {median_error:.0%} "
            "(median).",
            "At these lengths a window of {near} keys plus the first one is enough for them, which saves memory.",
        ),
    ),
    State(
        "broad",
        TOP_SHARE,
        "broad",
        MANY_TOKENS,
        part="the top {top} of the tokens are not enough",
        color="#d55e00",
        mark="B",
        short="needs many tokens",
        sentence="It needs many tokens: the top {top} are not enough for nearly the same output. That is no fault in "
        "itself; it matters when keys are dropped or the text gets longer.",
        enough=False,
        finding=Finding(
            "broad-heads",
            "Heads that need many tokens",
            "{count} of {total} ({share:.0%}) need{s} many tokens: with the top {top} of the keys alone, the output "
            "changes by {median_error:.0%} (median). For an error of {enough} they need {median_tokens:,.0f} tokens at "
            "length {length:,}{compared}. {worst} changes most. Averaging over many tokens is no fault in itself, but "
            "these heads lose most when keys are dropped, and each token counts less as the text gets longer.",
            "Leave these heads their keys when you drop any ({dropping}): share_needed in findings.json says how many "
            "each needs. If you train the model, a length-aware normalizer "
            "(ssmax) keeps their weights from thinning out as the text gets longer.",
            ("note", "watch"),
        ),
    ),
    State(
        "selective",
        TOP_SHARE,
        "broad",
        FEW_TOKENS,
        part="the top {top} of the tokens",
        color="#009e73",
        mark="\u00b7",
        short="the top {top} of the tokens are enough",
        sentence="The top {top} of the tokens give nearly the same output: the head picks a few and uses those.",
    ),
)
STATES = {state.name: state for state in _STATES}
NO_LABEL = "no label"
"""Shown for heads whose label did not hold inside the model; the page's script knows it too."""

RULES = tuple(dict.fromkeys(state.rule for state in _STATES))


def most_pressing_first() -> list[State]:
    """The states in the order of their groups, as reports show them."""
    return [state for group in GROUPS.values() for state in STATES.values() if state.group is group]
