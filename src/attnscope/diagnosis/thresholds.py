"""All numbers that decide a diagnosis.

docs/diagnosis.md shows the data behind each of them and how labels change with them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from attnscope.errors import InputError, shown
from attnscope.parameters import parameter

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
