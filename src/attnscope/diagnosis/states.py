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
    words: str  # of predictions
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
    part: str  # how a list of the group's states names its heads, after their number
    color: str  # of Okabe and Ito, or a gray: distinct with any color vision
    mark: str  # enough to read a map without colors
    short: str
    sentence: str
    enough: bool = True
    finding: Finding | None = None


FIRST_KEY = Rule(
    "first_key",
    "The first key alone",
    "the first token only",
    lambda limits: keep_first,
)
MEAN_OUTPUT = Rule(
    "mean_output",
    "The head's mean output",
    "its mean output",
)
LOCAL = Rule(
    "local",
    "The first key and the nearest {near}",
    "the first token and the nearest {near}",
    lambda limits: keep_near(int(limits.near_keys)),
)
TOP_SHARE = Rule(
    "top_share",
    "The top {top} of the keys",
    "the top {top} of the tokens",
    lambda limits: keep_top(limits.top_share),
)

MANY_TOKENS = Group(
    "many-tokens",
    "!",
    "#d55e00",
    "need many tokens. The longer the text, the less each token counts there, and leaving keys out hurts them most.",
)
IDLE = Group("idle", "-", "default", "output nearly the same whatever the text: candidates for pruning.")
FEW_TOKENS = Group("few-tokens", "+", "default", "need only a few tokens: {parts}.")
GROUPS = {group.name: group for group in (MANY_TOKENS, IDLE, FEW_TOKENS)}  # the most pressing first

IDLE_HEADS = Finding(
    "idle-heads",
    "Heads whose output hardly depends on the text",
    "{count} of {total} output{s} nearly the same whatever the row: {parts}. Over all heads, {off_share:.0%} of the "
    "rows put more than {off} of their weight on the first key.",
    "Candidates for pruning: try their mean output first. Weight on the first key alone is not enough to call a head "
    "idle; its value can be near zero, and then the rest decides.",
    ("note", "watch"),
)

_STATES = (
    State(
        "sink-bound",
        FIRST_KEY,
        "sink_bound",
        IDLE,
        part="only the first key's value",
        color="#5f6368",
        mark="S",
        short="only the first token counts",
        sentence="The first token alone gives nearly the same output: the head rests there and passes little on.",
        finding=IDLE_HEADS,
    ),
    State(
        "constant",
        MEAN_OUTPUT,
        "constant",
        IDLE,
        part="close to its own mean",
        color="#cc79a7",
        mark="C",
        short="outputs nearly the same in every row",
        sentence="Its average output gives nearly the same result: what it passes on hardly depends on the text.",
        finding=IDLE_HEADS,
    ),
    State(
        "local",
        LOCAL,
        "local",
        FEW_TOKENS,
        part="only their neighbors",
        color="#56b4e9",
        mark="L",
        short="the first token and the nearest {near} are enough",
        sentence="The first token and the nearest {near} give nearly the same output: the head looks at its neighbors.",
        finding=Finding(
            "local-heads",
            "Heads that look at their neighbors",
            "{count} of {total} need{s} only the first key and the nearest {near}: the error is {median_error:.0%} "
            "(median).",
            "A window of {near} keys plus the first one is enough for them at these lengths: a cheap way to save "
            "memory.",
        ),
    ),
    State(
        "broad",
        TOP_SHARE,
        "broad",
        MANY_TOKENS,
        part="many tokens",
        color="#d55e00",
        mark="B",
        short="needs many tokens",
        sentence="It needs many tokens: even the top {top} are not enough for the same output. This is the honest "
        "meaning of a saturated head.",
        enough=False,
        finding=Finding(
            "broad-heads",
            "Heads that need many tokens",
            "{count} of {total} ({share:.0%}) average over many tokens: the {top} of keys with the largest weights "
            "miss their output by {median_error:.0%} (median), and they need {median_tokens:,.0f} tokens at length "
            "{length:,} to come within {enough}{compared}. {worst} is the broadest.",
            "This is what a saturated head can honestly mean. Do not take keys from these heads (top-k, sparse "
            "normalizers): they lose most. If they should select, give them a length-aware normalizer in training.",
            ("watch", "act"),
        ),
    ),
    State(
        "selective",
        TOP_SHARE,
        "broad",
        FEW_TOKENS,
        part="a few tokens picked anywhere",
        color="#009e73",
        mark="\u00b7",
        short="the top {top} of its tokens are enough",
        sentence="The top {top} of the tokens are enough for nearly the same output: the head picks a few and uses "
        "them.",
    ),
)
STATES = {state.name: state for state in _STATES}
RULES = tuple(dict.fromkeys(state.rule for state in _STATES))


def most_pressing_first() -> list[State]:
    """The states in the order of their groups, as reports show them."""
    return [state for group in GROUPS.values() for state in STATES.values() if state.group is group]
