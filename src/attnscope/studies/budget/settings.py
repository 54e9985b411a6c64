"""What a budget is made from: settings checked, and completed with defaults."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from attnscope.errors import InputError, ModelError, parameter, shown, whole_number
from attnscope.swapping.budgets import refusal

if TYPE_CHECKING:
    from attnscope.capture.models import Model

DEFAULT_LENGTH = 1024
FIRST = 4  # first keys of a head of kind first_recent, as in StreamingLLM
LEAST_WINDOWS = 3  # an interval over fewer says nothing
_OBSERVED = 32
_SHORTEST = 32


@dataclass(frozen=True)
class BudgetSettings:
    """How much is kept, and of what."""

    keep: float
    length: int  # tokens of the context
    windows: int  # to compare on
    calibration_windows: int  # to measure on
    seed: int

    @property
    def observed(self) -> int:
        """How many of the last tokens of a context choose its keys, and how many tokens follow it."""
        return min(_OBSERVED, self.length // 8)

    def as_json(self) -> dict[str, Any]:
        """The settings for `budget.json`."""
        return {**asdict(self), "observed": self.observed}


def plan_budget(
    model: Model, keep: float, length: int | None, windows: int, calibration_windows: int, seed: int
) -> BudgetSettings:
    """Check the settings; InputError for shares, lengths and models that no budget can be made for."""
    if isinstance(keep, bool) or not isinstance(keep, int | float) or not 0 < keep <= 1:
        raise InputError(
            f"{parameter('keep')} takes a share of the keys above 0 and at most 1; received {shown(keep)}: use "
            f"{parameter('keep', 0.25)}"
        )
    if not model.causal:
        raise InputError(f"{model.name} is an encoder, which caches no keys; budget needs a causal language model")
    reason = refusal(model.module)
    if reason is not None:
        raise ModelError(f"no budget for {model.name}: {reason}")
    longest = None if model.positions is None else model.positions - _OBSERVED
    if length is None:
        length = min(DEFAULT_LENGTH, longest or DEFAULT_LENGTH)
    length = whole_number("length", length, least=_SHORTEST)
    if longest is not None and length > longest:
        raise InputError(
            f"{parameter('length', length)} and {_OBSERVED} further tokens are more than the {model.positions:,} "
            f"positions of {model.name}; use {parameter('length', longest)} or less"
        )
    if keep * length < FIRST + 1:
        raise InputError(
            f"{parameter('keep', keep)} leaves {keep * length:.1f} of {length:,} keys, fewer than {FIRST + 1} for a "
            f"head; use {parameter('keep', round((FIRST + 1) / length + 0.005, 2))} or more"
        )
    return BudgetSettings(
        float(keep),
        length,
        whole_number("windows", windows, least=LEAST_WINDOWS),
        whole_number("calibration_windows", calibration_windows),
        whole_number("seed", seed, least=0),
    )
