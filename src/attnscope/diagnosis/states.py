"""The states of a diagnosis in the order in which they are tried, the numbers that decide, and words for them.

docs/diagnosis.md shows the data behind each of them and how labels change with them.

A state is defined by a simpler rule for a head's output. A row's error under a rule is |c - c_rule| / |c| in the space
of the head's value vectors, a head's error the mean over its rows. (Root mean squares and medians were tried too: the
labels of fresh windows agreed with them a little less.) The first state whose condition is met is the head's.

To add a state, add a `State` to `_STATES` (and, if it has a limit of its own, a field of `Thresholds`): labels,
evidence, findings, `--verify`, the terminal and the page follow. In texts, `{near}`, `{top}`, `{enough}` and `{off}`
stand for the numbers of the run (`limit_words`); a finding's sentence may also use what
`findings.state_finding` computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

import numpy as np

from attnscope.errors import InputError, parameter, shown
from attnscope.swapping.key_budget import KeyRule, keep_first, keep_near, keep_top

# Below one: a share of the keys, a weight, a probability.
_SHARES = ("top_share", "budget", "off_weight", "over_sharp_weight", "coverage")
_COUNTS = ("near_keys", "separability_n")


@dataclass(frozen=True)
class Thresholds:
    """Limits of the states and of the findings; errors are relative errors of a head's output.

    >>> from attnscope import Thresholds
    >>> Thresholds(local=0.2).local
    0.2
    >>> Thresholds.parse(["local=0.2", "near_keys=16"]).near_keys
    16.0
    """

    sink_bound: float = 0.3  # error with the first key alone, below: sink-bound
    constant: float = 0.5  # error with the head's mean output, below: constant
    local: float = 0.3  # error with the first key and the nearest ones, below: local
    broad: float = 0.3  # error with the top share of the keys, from here on: broad; below: selective
    near_keys: float = 8  # how many nearest keys the local rule keeps
    top_share: float = 0.05  # share of a row's keys that the top rule keeps
    off_weight: float = 0.9  # sink weight above which a row is off
    over_sharp_weight: float = 0.9  # max weight above which a row is over-sharp
    enough: float = 0.1  # error at which the keys that remain count as enough
    budget: float = 0.15  # share of all keys that the whole model may keep when each head gets the keys it needs
    separability_n: float = 20  # size of the top set for separability
    coverage: float = 0.99  # share of a top set that heads together should separate
    least_top_keys: float = 20  # keys in the top share of a window, below: too short to tell broad from selective
    held_ratio: float = 2.0  # how many times apart two KL divergences must be for a prediction to hold

    def __post_init__(self) -> None:
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise InputError(f"threshold {name} takes a positive number; received {value!r}")
            if name in _SHARES and value >= 1:
                raise InputError(f"threshold {name} is a share below 1; received {value!r}")
            if name in _COUNTS and value != int(value):
                raise InputError(f"threshold {name} takes a whole number from 1 up; received {value!r}")

    @classmethod
    def parse(cls, settings: Iterable[str]) -> Thresholds:
        """Default thresholds with some replaced, each given as `name=value`."""
        names = [field.name for field in fields(cls)]
        changed: dict[str, float] = {}
        for setting in settings:
            name, equals, value = (part.strip() for part in setting.partition("="))
            name = name.replace("-", "_")
            if not equals or name not in names:
                raise InputError(
                    f"{parameter('thresholds')} takes name=value, name one of {', '.join(names)}; received {setting!r}"
                )
            try:
                changed[name] = float(value)
            except ValueError:
                raise InputError(f"threshold {name} takes a positive number; received {value!r}") from None
        return replace(cls(), **changed)

    def as_json(self) -> dict[str, float]:
        """All thresholds by name."""
        return asdict(self)


def given_thresholds(thresholds: Thresholds | None) -> Thresholds:
    """The thresholds given as an argument, or those by default; InputError for anything else."""
    if thresholds is None or isinstance(thresholds, Thresholds):
        return thresholds or Thresholds()
    raise InputError(f"{parameter('thresholds')} takes attnscope.Thresholds(...); received {shown(thresholds)}")


def limit_words(limits: Mapping[str, Any]) -> dict[str, str]:
    """The numbers that texts about states mention, formatted; thresholds missing in `limits` have their defaults."""
    values = Thresholds().as_json() | dict(limits)
    names = {"top": "top_share", "enough": "enough", "off": "off_weight", "sharp": "over_sharp_weight"}
    return {"near": f"{values['near_keys']:g}"} | {word: f"{100 * values[name]:g}%" for word, name in names.items()}


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


Described = list[dict[str, Any]]
"""Entries of `findings.json`, one for each head."""


def finding(
    name: str, severity: Severity, title: str, sentence: str, advice: str, heads: Described, **evidence: Any
) -> dict[str, Any]:
    """A finding as `findings.json` has it, without its rank."""
    return {
        "id": name,
        "severity": severity,
        "title": title,
        "sentence": sentence,
        "evidence": evidence,
        "advice": advice,
        "heads": [[head["layer"], head["head"]] for head in heads],
    }


def carrying(heads: Described, *states: str) -> Described:
    """The heads with one of these labels."""
    return [head for head in heads if head["state"] in states]


def listed_states(heads: Described, names: Iterable[str], thresholds: Thresholds) -> str:
    """States with the number of their heads and what is enough for those: "53 local (...), 137 selective (...)"."""
    counts = {name: len(carrying(heads, name)) for name in names}
    words = limit_words(thresholds.as_json())
    return ", ".join(f"{count} {name} ({STATES[name].part.format(**words)})" for name, count in counts.items() if count)


def times(effect: Mapping[str, Any]) -> str:
    """How many times two effects inside the model are apart, with the range over the held-out windows."""
    windows = len(effect["ratio_windows"])
    spread = f"{_ratio(effect['ratio_low'])} to {_ratio(effect['ratio_high'])} over {windows} windows"
    return f"{_ratio(effect['ratio'])} times ({spread if windows > 1 else 'one window'})"


def _ratio(value: float | None) -> str:
    if value is None:
        return "infinitely many"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def effect_words(
    prediction: Mapping[str, Any], thresholds: Mapping[str, Any], labeled: str = "them", others: str = "other heads"
) -> str:
    """What putting a state's rule into its heads does to the model, compared with other heads."""
    state = STATES[prediction["state"]]
    rule = state.rule.words.format(**limit_words(thresholds))
    larger, smaller = (others, labeled) if state.enough else (labeled, others)  # as predicted
    return f"{rule} in {larger} changes the next-token distribution {times(prediction)} as much as in {smaller}"


def column(heads: Described, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """One number of the evidence for every head; NaN where it is missing."""
    return np.array([head["evidence"][name] for head in heads], dtype=np.float64)
