"""Normalizers from a string such as `entmax:alpha=1.3`, and any normalizer at a temperature."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from attnscope.errors import InputError
from attnscope.normalizers import _checks
from attnscope.normalizers._base import Facts, Normalizer, get


class Tempered(Normalizer):
    """Another normalizer at temperature T: its weights of z / T, its Jacobian divided by T.

    >>> from attnscope.normalizers import Sparsemax
    >>> Tempered(Sparsemax(), 2.0).weights(torch.tensor([1.0, 0.0]))
    tensor([0.7500, 0.2500])
    """

    def __init__(self, inner: Normalizer, temperature: float) -> None:
        _checks.temperature(temperature)
        self.inner, self.temperature = inner, temperature

    @property
    def name(self) -> str:  # type: ignore[override]  # a property here, that of the inner normalizer
        """Name of the inner normalizer."""
        return self.inner.name

    @property
    def facts(self) -> Facts:  # type: ignore[override]
        """Facts of the inner normalizer; none of them depends on the temperature."""
        return self.inner.facts

    def weights(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        """The inner weights of z / T."""
        return self.inner.weights(logits / self.temperature, visible)

    def weight_bounds(self, length: int, low: float, high: float) -> tuple[float, float]:
        """The inner bounds over the range divided by T."""
        return self.inner.weight_bounds(length, low / self.temperature, high / self.temperature)

    def jacobian_norm(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        """The inner norm at z / T, divided by T."""
        return self.inner.jacobian_norm(logits / self.temperature, visible) / self.temperature

    def jacobian_bound(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        """The inner bound at z / T, divided by T."""
        return self.inner.jacobian_bound(logits / self.temperature, visible) / self.temperature

    def lipschitz(self, length: int) -> float:
        """The inner constant divided by T."""
        return self.inner.lipschitz(length) / self.temperature


def parse(spec: str) -> Normalizer:
    """Create a normalizer from a string: `sparsemax`, `entmax:alpha=1.3`, `ssmax:s=0.5:temperature=2`.

    >>> parse("entmax:alpha=1.3").weights(torch.tensor([1.0, 0.0]))
    tensor([0.7855, 0.2145])

    Settings follow the name, each after a colon. Every normalizer accepts a `temperature` from 1e-30 to 1e30.

    Parameters
    ----------
    spec
        A name, then settings as name=value, each after a colon.

    Returns
    -------
    Normalizer
        With these settings; attnscope.InputError says which names and settings there are.
    """
    if not isinstance(spec, str):
        raise InputError(f"a normalizer is written as name:setting=value, received {spec!r}")
    name, *parts = (part.strip() for part in spec.split(":"))
    settings: dict[str, Any] = {}
    for part in parts:
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not (key and equals and value):
            raise InputError(f"normalizer {spec!r}: expected name:setting=value, received {part!r}")
        if key in settings:
            raise InputError(f"normalizer {spec!r} gives {key} twice")
        settings[key] = _value(value)
    temperature = settings.pop("temperature", None) if name != "softmax" else None
    normalizer = get(name, **settings)
    return normalizer if temperature is None else Tempered(normalizer, temperature)


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
