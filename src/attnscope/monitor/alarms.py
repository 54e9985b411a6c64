"""Alarms: which head goes wrong, at which step, by which number, and what to do about it.

A head that is sharp or broad is not a fault by itself: trained models have heads with all weight on the previous token,
and every model starts with uniform weights. So most rules ask for a change: from one measured step to the next, or
against the best that the head has shown. All limits are in `AlarmThresholds`; docs/monitor.md has the data behind them.

An alarm is raised once. The same head can raise it again only after it has been out of the state by a clear margin for
some measured steps in a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import groupby
from typing import Any, NamedTuple

import polars as pl

from attnscope.columns import head_name
from attnscope.errors import AttnscopeError, InputError

_FEWEST_TO_COMPARE = 4  # heads whose logits grow, to say that one of them is alone in it


class StopTraining(AttnscopeError):  # noqa: N818  (a request, not an error)
    """Raised by a function given as `on_alarm` to end the training; other exceptions of it are only logged.

    >>> def stop(alarm):
    ...     raise attnscope.monitor.StopTraining(alarm.advice)
    >>> model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)
    >>> with attnscope.Monitor(model, on_alarm=stop) as monitor:
    ...     pass  # the training loop
    """


class Alarm(NamedTuple):
    """One head that went over a limit.

    >>> alarm = attnscope.monitor.Alarm(50, 3, 5, "logit-jump", value=8.4, limit=8.0, advice="lower the learning rate")
    >>> alarm.layer, alarm.head
    (3, 5)
    """

    step: int
    layer: int
    head: int
    kind: str
    value: float | None  # of the measure that the rule is about
    limit: float | None
    advice: str


@dataclass(frozen=True)
class AlarmThresholds:
    """All numbers that decide an alarm.

    >>> attnscope.monitor.AlarmThresholds(jacobian_budget=10).jacobian_budget
    10
    """

    logit_limit: float = 1e4  # magnitude at which masks of -1e4 hide nothing; a lower one of type or mask counts
    logit_share: float = 0.1  # of that limit, from where on the largest logit is an alarm
    jump_growth: float = 8.0  # growth of the logits' deviation from one measured step to the next
    jump_deviation: float = 4.0  # deviation below which no growth is an alarm, unless the head is alone in it:
    jump_alone: float = 5.0  # growth of the deviation, in times that of every other head in the same step
    jump_alone_deviation: float = 0.1  # deviation below which no growth of one head is an alarm
    collapse_entropy: float = 0.1  # entropy ratio of weights that are nearly one-hot
    collapse_before: float = 0.5  # entropy ratio in the measured step before, at least
    dilution_entropy: float = 0.98  # entropy ratio of weights that are nearly uniform
    dilution_lowest: float = 0.8  # entropy ratio that the head has had before, at most
    jacobian_budget: float = 2.0  # Jacobian norm of the weights; softmax at temperature 1 has at most 0.5
    null_margin: float = 0.05  # separability above that of random sets, at most
    null_highest: float = 0.4  # separability above that of random sets that the head has had before, at least
    null_rows: float = 48  # rows with more keys than the top set that both of these are judged on: fewer are noise
    dead_sink: float = 0.999  # weight on the first token, at least
    dead_jacobian: float = 1e-3  # Jacobian norm, at most
    patience: float = 3  # measured steps in a row, to raise dilution and dead heads, and to end any alarm

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise InputError(f"threshold {each.name} takes a positive number; received {value!r}")

    def as_json(self) -> dict[str, float]:
        """All thresholds by name."""
        return asdict(self)


@dataclass
class _Head:
    """What is remembered of a head: its last measures, the best it has shown, and its states."""

    deviation: float | None = None  # of the logits, in the measured step before
    entropy: float | None = None  # ratio, in the measured step before
    lowest_entropy: float = math.inf
    margin: float = 0.0  # of separability over that of random sets: mean over about the last `null_rows` rows
    highest_margin: float = -math.inf
    rows_at_null: float = 0  # rows in the last measured steps in a row in which separability was that of random sets
    over: dict[str, int] = field(default_factory=dict)  # measured steps in a row over the limit, by kind
    raised: dict[str, int] = field(default_factory=dict)  # measured steps in a row clearly not, by kind of alarm


class _Finding(NamedTuple):
    """A rule on one head: the number it is about, its limit, whether it is over it, and whether it is clearly not."""

    value: float | None
    limit: float | None
    over: bool
    left: bool


class _Rule(NamedTuple):
    judge: Callable[[AlarmThresholds, Mapping[str, float], _Head], _Finding]
    measure: str | None  # what the value and the limit of its alarm are of
    patient: bool
    advice: str


def _logit_limit(t: AlarmThresholds, now: Mapping[str, float], head: _Head) -> _Finding:
    value, limit = now["max_logit"], t.logit_share * min(t.logit_limit, now["logit_limit"])
    return _Finding(value, limit, value >= limit, value < limit / 2)


def _logit_jump(t: AlarmThresholds, now: Mapping[str, float], head: _Head) -> _Finding:
    value, before = now["logit_std"], head.deviation
    if before is None or math.isnan(before):
        return _Finding(value, t.jump_deviation, False, value < t.jump_deviation / 2)
    limit = max(t.jump_deviation, t.jump_growth * before)
    if before > 0:
        alone = t.jump_alone * max(1.0, now["growth_of_others"])
        limit = min(limit, max(t.jump_alone_deviation, alone * before))
    return _Finding(value, limit, value >= limit, value < t.jump_deviation / 2)


def _entropy_collapse(t: AlarmThresholds, now: Mapping[str, float], head: _Head) -> _Finding:
    value, limit = now["entropy_ratio"], t.collapse_entropy
    was_broad = head.entropy is not None and head.entropy >= t.collapse_before
    return _Finding(value, limit, was_broad and value <= limit, value > 2 * limit)


def _dilution(t: AlarmThresholds, now: Mapping[str, float], head: _Head) -> _Finding:
    value, limit = now["entropy_ratio"], t.dilution_entropy
    had_structure = head.lowest_entropy <= t.dilution_lowest
    return _Finding(value, limit, had_structure and value >= limit, value < (limit + t.dilution_lowest) / 2)


def _jacobian_budget(t: AlarmThresholds, now: Mapping[str, float], head: _Head) -> _Finding:
    value, limit = now["jacobian_norm"], t.jacobian_budget
    return _Finding(value, limit, value >= limit, value < limit / 2)


def _separability_null(t: AlarmThresholds, now: Mapping[str, float], head: _Head) -> _Finding:
    value, limit = now["separability"], now["null_random"] + t.null_margin
    rows = head.rows_at_null + now["set_rows"]
    over = head.highest_margin >= t.null_highest and value <= limit and rows >= t.null_rows
    return _Finding(value, limit, over, value > limit + t.null_margin)


def _dead_head(t: AlarmThresholds, now: Mapping[str, float], head: _Head) -> _Finding:
    value, limit = now["sink_weight"], t.dead_sink
    over = value >= limit and now["jacobian_norm"] <= t.dead_jacobian and now["length"] > 1  # one key has all weight
    return _Finding(value, limit, over, value < 1 - 2 * (1 - limit))


def _not_finite(t: AlarmThresholds, now: Mapping[str, float], head: _Head) -> _Finding:
    return _Finding(None, None, now["finite"] == 0, now["finite"] == 1)


RULES = {
    "logit-limit": _Rule(
        _logit_limit,
        "max_logit",
        False,
        "lower the learning rate, normalize queries and keys (QK-norm), or clip the query and key weights of the head",
    ),
    "logit-jump": _Rule(
        _logit_jump,
        "logit_std",
        False,
        "look at what changed the query and key weights of the head since the last measured step: an update that was "
        "too large, a loaded or edited weight; go back to a checkpoint before it, with a lower learning rate",
    ),
    "entropy-collapse": _Rule(
        _entropy_collapse,
        "entropy_ratio",
        False,
        "hardly any gradient passes through one-hot weights: lower the learning rate, raise the temperature, or "
        "normalize queries and keys before the head freezes",
    ),
    "dilution": _Rule(
        _dilution,
        "entropy_ratio",
        True,
        "the head averages over all tokens: check for a loss of its query or key weights (weight decay, a learning "
        "rate that is too high), or use a normalizer that scales with the length, such as ssmax",
    ),
    "jacobian-budget": _Rule(
        _jacobian_budget,
        "jacobian_norm",
        False,
        "small changes of the logits change the weights a lot: raise the temperature or lower the scale of the "
        "normalizer, or set jacobian_budget to what the run is meant to have",
    ),
    "separability-null": _Rule(
        _separability_null,
        "separability",
        False,
        "the output distinguishes the tokens that the head selects no better than random ones: check its value and "
        "output weights",
    ),
    "dead-head": _Rule(
        _dead_head,
        "sink_weight",
        True,
        "the head puts all weight on the first token and gets hardly any gradient: it adds a constant; reinitialize "
        "its query and key weights, or prune it",
    ),
    "not-finite": _Rule(
        _not_finite,
        None,
        False,
        "a logit, weight or value of the head is not finite: go back to the last checkpoint without it, and lower the "
        "learning rate",
    ),
}


class AlarmDetector:
    """Turns the lines of measured steps into alarms."""

    def __init__(self, thresholds: AlarmThresholds) -> None:
        self.thresholds = thresholds
        self._heads: dict[tuple[int, int], _Head] = {}

    def update(self, table: pl.DataFrame) -> list[Alarm]:
        """The alarms of one measured step: `table` is that of `StepMeasurement.table`, with its `circumstances`."""
        alarms = []
        heads = [self._heads.setdefault(key, _Head()) for key in table.select("layer", "head").iter_rows()]
        others = _growth_of_others([head.deviation for head in heads], table["logit_std"].to_list())
        for head, line, growth in zip(heads, table.iter_rows(named=True), others, strict=True):
            now = {name: math.nan if value is None else value for name, value in line.items()}
            alarms += self._update_head(head, now | {"growth_of_others": growth})
        return alarms

    def _update_head(self, head: _Head, now: Mapping[str, Any]) -> list[Alarm]:
        alarms = []
        for kind, rule in RULES.items():
            found = rule.judge(self.thresholds, now, head)  # a missing value is NaN: neither over its limit nor left
            head.over[kind] = head.over.get(kind, 0) + 1 if found.over else 0
            if kind in head.raised:
                head.raised[kind] = head.raised[kind] + 1 if found.left else 0
                if head.raised[kind] >= self.thresholds.patience:
                    del head.raised[kind]
            elif head.over[kind] >= (self.thresholds.patience if rule.patient else 1):
                head.raised[kind] = 0
                alarms.append(Alarm(now["step"], now["layer"], now["head"], kind, *found[:2], rule.advice))
        if now["finite"]:
            head.deviation, head.entropy = now["logit_std"], now["entropy_ratio"]
            head.lowest_entropy = min(head.lowest_entropy, now["entropy_ratio"])  # the first one, if the other is NaN
            self._remember_margin(head, now)
        return alarms

    def _remember_margin(self, head: _Head, now: Mapping[str, Any]) -> None:
        margin = now["separability"] - now["null_random"]
        if math.isnan(margin):
            return
        head.margin += min(1.0, now["set_rows"] / self.thresholds.null_rows) * (margin - head.margin)
        head.highest_margin = max(head.highest_margin, head.margin)
        head.rows_at_null = head.rows_at_null + now["set_rows"] if margin <= self.thresholds.null_margin else 0

    def state(self) -> list[Any]:
        """What is remembered of every head, as plain lists and dictionaries without infinities."""
        return [[layer, head, _plain(asdict(known))] for (layer, head), known in self._heads.items()]

    def load(self, state: Sequence[Any]) -> None:
        """Go on from a saved state."""
        self._heads = {(layer, head): _Head(**known) for layer, head, known in state}


def _growth_of_others(before: Sequence[float | None], now: Sequence[float | None]) -> list[float]:
    """For each head, the largest growth of the deviation of another one; infinite if too few are known to compare."""
    growths = [b / a if a and b is not None else math.nan for a, b in zip(before, now, strict=True)]
    known = sorted(growth for growth in growths if not math.isnan(growth))
    if len(known) < _FEWEST_TO_COMPARE:
        return [math.inf] * len(growths)
    return [known[-2] if growth == known[-1] else known[-1] for growth in growths]


def _plain(known: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in known.items() if not isinstance(value, float) or math.isfinite(value)}


def describe(alarms: Sequence[Alarm], most: int = 3) -> list[str]:
    """One line of text for each kind of alarm in a step, with its first heads."""
    texts = []
    by_kind = sorted(alarms, key=lambda alarm: list(RULES).index(alarm.kind))
    for kind, group in groupby(by_kind, lambda alarm: alarm.kind):
        same = list(group)
        heads = [
            head_name(alarm.layer, alarm.head)
            + ("" if alarm.value is None or alarm.limit is None else f" ({alarm.value:.3g}, limit {alarm.limit:.3g})")
            for alarm in same[:most]
        ]
        more = f" and {len(same) - most} more heads" if len(same) > most else ""
        texts.append(f"step {same[0].step}: {kind} in {', '.join(heads)}{more}: {same[0].advice}")
    return texts
