"""Validation of parameters: each error quotes the value received and says what to pass instead."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence

import torch
from torch import Tensor

from attnscope.errors import InputError, shown

# Logits that are numbers of float32 stay such when they are divided by a temperature between these.
LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE = 1e-30, 1e30
LARGEST_WHOLE = 2**63 - 1  # that tensors and compiled loops hold


def number(
    name: str,
    value: object,
    *,
    above: float = -math.inf,
    low: float = -math.inf,
    high: float = math.inf,
    infinite: bool = False,
) -> None:
    """Raise `InputError` unless value is a number, or a float tensor, with above < value and low <= value <= high.

    `infinite` also allows -inf. A tensor whose values cannot be read, while tracing or within vmap, passes.
    """
    if isinstance(value, Tensor):
        if torch.compiler.is_compiling() or value.is_meta:
            return
        if not value.dtype.is_floating_point:
            raise InputError(f"{name} must be a floating point tensor, received {value.dtype}: convert with .float()")
        inside = value.isfinite() & (value > above) & (value >= low) & (value <= high)
        try:
            valid = bool((inside | (value == -torch.inf) if infinite else inside).all())
        except RuntimeError:  # within vmap the values of a tensor cannot be read
            return
    else:
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise InputError(f"{name} must be a number or a tensor, received {value!r}")
        plain = float(value)
        valid = (math.isfinite(plain) and plain > above and low <= plain <= high) or (infinite and plain == -math.inf)
    if not valid:
        raise InputError(f"{name} must be {_rule(above, low, high, infinite)}, received {value}")


def temperature(value: object) -> None:
    """Raise `InputError` unless value is a temperature, or a tensor of some, that logits can be divided by."""
    number("temperature", value, above=0.0)
    number("temperature", value, low=LOWEST_TEMPERATURE, high=HIGHEST_TEMPERATURE)


def _rule(above: float, low: float, high: float, infinite: bool) -> str:
    if above == 0:
        return "positive and finite"
    if math.isfinite(low):
        return f"in [{low:g}, {high:g}]"
    return "finite or -inf" if infinite else "finite"


def whole(name: str, value: object, *, least: int) -> None:
    """Raise `InputError` unless value is an integer of at least `least` that 64 bits can hold."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise InputError(f"{name} must be a whole number and at least {least}, received {value!r}")
    if int(value) > LARGEST_WHOLE:
        raise InputError(f"{name} must be at most {LARGEST_WHOLE}, received {shown(value)}")


def shape(name: str, value: Tensor, rows: Sequence[int]) -> None:
    """Raise `InputError` unless a tensor parameter broadcasts against the rows of the logits."""
    given = tuple(value.shape)
    fits = len(given) <= len(rows) and all(
        size in (1, row) for size, row in zip(reversed(given), reversed(tuple(rows)), strict=False)
    )
    if not fits:
        raise InputError(
            f"{name} of shape {given} does not broadcast against the rows of logits, {tuple(rows)}: "
            f"for one value per head pass {name}[:, None]"
        )
