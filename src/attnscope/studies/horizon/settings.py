"""What a prediction is made from: settings checked, completed with defaults, and the windows of the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from attnscope.errors import InputError, parameter, whole_number
from attnscope.measure.settings import plan
from attnscope.studies.horizon.extended_row import SHORTEST

if TYPE_CHECKING:
    from attnscope.capture.models import Model
    from attnscope.normalizers import Normalizer

DEFAULT_LENGTH, DEFAULT_WINDOWS, DEFAULT_ROWS, DEFAULT_CHECK_WINDOWS = 1024, 8, 16, 4
MOST_TIMES = 8  # the default of `to`, in windows
BASE = 256  # tokens; the mass of a head there is what it can lose
LEAST_WINDOWS, LEAST_ROWS = 2, 8
LONGEST = 2**20  # tokens to predict
_BACK_TEST = 4  # the part of a window that the back-test predicts the window from
_KEY_LIMITS = ("attention_chunk_size", "index_topk")  # settings by which a longer input hides keys
_REPEATED_RUN = 16  # tokens of a run that counts as repeated


@dataclass(frozen=True)
class HorizonSettings:
    """Windows, rows and lengths of a prediction."""

    length: int
    to: int
    windows: int = DEFAULT_WINDOWS
    rows: int = DEFAULT_ROWS
    bos: bool = False
    check_windows: int = 0  # 0: no check
    normalizers: dict[str, Normalizer] = field(default_factory=dict)  # beside the model's own, by label

    @property
    def short(self) -> int:
        """The length that the back-test predicts from."""
        return self.length // _BACK_TEST

    @property
    def base(self) -> int:
        """The length at which a head has its full mass: 256 tokens, or less in short windows."""
        return BASE if self.length >= 2 * BASE else self.short

    @property
    def measured_lengths(self) -> tuple[int, ...]:
        """The lengths that the windows themselves show."""
        halves = {self.length >> power for power in range(_BACK_TEST + 1)}
        return tuple(sorted(halves | {self.base, self.short}))

    @property
    def predicted_lengths(self) -> tuple[int, ...]:
        """2, 4, 8, ... times the window, and the last length."""
        doubled, times = [], 2
        while self.length * times < self.to:
            doubled.append(self.length * times)
            times *= 2
        return (*doubled, self.to)

    def as_json(self) -> dict[str, Any]:
        """The settings for `horizon.json`."""
        return {
            "length": self.length,
            "to": self.to,
            "windows": self.windows,
            "rows": self.rows,
            "bos": self.bos,
            "base": self.base,
            "check_windows": self.check_windows,
            "normalizers": list(self.normalizers),
        }


def plan_horizon(
    model: Model,
    to: int | None,
    length: int | None,
    windows: int,
    rows: int,
    bos: bool,
    check: bool,
    check_windows: int,
    normalizers: Sequence[str | Normalizer],
) -> HorizonSettings:
    """Check the settings; InputError for lengths that the model or the windows do not allow."""
    if not model.causal:
        raise InputError(
            f"{model.name} is an encoder: its rows have no longer inputs to grow into; horizon needs a causal model"
        )
    trained = trained_length(model)
    if length is None:
        wanted = min(to or MOST_TIMES * DEFAULT_LENGTH, trained or MOST_TIMES * DEFAULT_LENGTH)
        length = max(SHORTEST, min(DEFAULT_LENGTH, wanted // 2))
    length = whole_number("length", length, least=SHORTEST)
    default = min(MOST_TIMES * length, trained or MOST_TIMES * length)
    to = whole_number("to", default if to is None else to, most=LONGEST)
    if trained is not None and to > trained:
        raise InputError(
            f"{parameter('to', to)} is beyond the {trained:,} positions that {model.name} was trained for: nothing can "
            f"be claimed there; use {parameter('to', trained)} or less"
        )
    config = model.module.config.get_text_config()
    for name in _KEY_LIMITS:
        keys = getattr(config, name, None)
        if isinstance(keys, int) and to > keys:
            raise InputError(
                f"rows of {model.name} see other keys from {keys:,} tokens on ({name} of its configuration), which "
                f"do not follow from shorter inputs; use {parameter('to', keys)} or less"
            )
    if to <= length:
        raise InputError(
            f"{parameter('to', to)} is not beyond the windows of {length:,} tokens; use a smaller {parameter('length')}"
        )
    what_ifs = plan(None, length, normalizers=normalizers).normalizers
    for label, each in what_ifs.items():
        if not each.facts.non_negative:
            raise InputError(f"weights of {label} can be negative: their largest have no mass; leave it out")
    return HorizonSettings(
        length,
        to,
        whole_number("windows", windows, least=LEAST_WINDOWS),
        whole_number("rows", rows, least=LEAST_ROWS),
        bos,
        whole_number("check_windows", check_windows) if check else 0,
        what_ifs,
    )


def trained_length(model: Model) -> int | None:
    """The longest input that the model was trained for, as its configuration says; None if it does not."""
    if model.positions is not None:
        return model.positions
    config = model.module.config.get_text_config()
    for name in ("max_seq_len", "seq_length", "n_positions", "max_sequence_length"):
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return None


@dataclass(frozen=True)
class ChosenWindows:
    """The first token of each window to predict from, and of each longer one to check on; none overlap."""

    starts: list[int]
    check_starts: list[int]


def choose_windows(tokens: int, settings: HorizonSettings, source: str) -> ChosenWindows:
    """Windows spread over a text of `tokens` tokens."""
    bos = int(settings.bos)
    size, longest, checks = settings.length - bos, settings.to - bos, settings.check_windows
    part = tokens / max(1, checks)
    check_starts = [int((i + 0.5) * part - longest / 2) for i in range(checks)]
    edges = [0, *(edge for start in check_starts for edge in (start, start + longest)), tokens]
    slots = [
        start
        for first, last in zip(edges[::2], edges[1::2], strict=True)
        for start in range(first, last - size + 1, size)
    ]
    if min(check_starts, default=0) < 0 or len(slots) < settings.windows:
        needed = settings.windows * settings.length + checks * settings.to
        what, fewer = f"{settings.windows} windows of {settings.length:,} tokens", parameter("windows")
        if checks:
            what += f" and {checks} of {settings.to:,} to check on"
            fewer += f" or {parameter('check_windows')}"
        raise InputError(
            f"{source} has {tokens:,} tokens, too few for {what} (about {needed:,}); use a longer text or fewer {fewer}"
        )
    count = settings.windows
    chosen = [slots[int((i + 0.5) * len(slots) / count)] for i in range(count)]
    return ChosenWindows(chosen, check_starts)


def repeated_share(tokens: Sequence[int], starts: Sequence[int], settings: HorizonSettings) -> float:
    """The share of runs of 16 tokens in the windows that stand in the `to` tokens before the window already.

    Where a text repeats itself, a longer input holds copies of what a row attends to, and the keys of a window do not
    stand for those.
    """
    found = total = 0
    for start in starts:
        before = tokens[max(0, start - settings.to) : start]
        known = {tuple(before[i : i + _REPEATED_RUN]) for i in range(len(before) - _REPEATED_RUN + 1)}
        window = tokens[start : start + settings.length]
        runs = [tuple(window[i : i + _REPEATED_RUN]) for i in range(len(window) - _REPEATED_RUN + 1)]
        found += sum(run in known for run in runs)
        total += len(runs)
    return found / total
