"""Normalizers from a string, `entmax:alpha=1.3` or `mine.py:MyNormalizer`, and any normalizer at a temperature.

A class of the user's own needs `weights(logits, visible=None)` and no arguments to be made. What else it has is used:
`facts` (`attnscope.normalizers.Facts`, what it promises; by default weights that sum to one, not negative,
equivariant and invariant to shifts), `lipschitz(length)`, `weight_bounds`, `jacobian_norm` and `jacobian_bound`.
Without them the Jacobian comes from automatic differentiation, and there is no Lipschitz constant and no budget.
"""

from __future__ import annotations

import hashlib
import math
import runpy
import sys
import textwrap
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.errors import InputError
from attnscope.normalizers._arguments import check_temperature
from attnscope.normalizers._base import Facts, Normalizer, get, two_level_bounds


class Tempered(Normalizer):
    """Another normalizer at temperature T: its weights of z / T, its Jacobian divided by T.

    >>> from attnscope.normalizers import Sparsemax
    >>> Tempered(Sparsemax(), 2.0).weights(torch.tensor([1.0, 0.0]))
    tensor([0.7500, 0.2500])
    """

    def __init__(self, inner: Normalizer, temperature: float) -> None:
        check_temperature(temperature)
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


class UserNormalizer(Normalizer):
    """An object with `weights`, as a normalizer."""

    def __init__(self, inner: Any, name: str) -> None:
        self.inner, self.name = inner, name  # type: ignore[misc]  # of the class where it is one of attnscope's
        self.facts = getattr(inner, "facts", Facts())  # type: ignore[misc]

    def weights(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        """What the object's own `weights` returns."""
        found: Tensor = self.inner.weights(logits) if visible is None else self.inner.weights(logits, visible)
        return found

    def weight_bounds(self, length: int, low: float, high: float) -> tuple[float, float]:
        """Its own, or those of one logit at one end of the range and all others at the other end."""
        if hasattr(self.inner, "weight_bounds"):
            lower, upper = self.inner.weight_bounds(length, low, high)
            return float(lower), float(upper)
        return two_level_bounds(self.weights, length, low, high)

    def jacobian_norm(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        """Its own, or the largest singular value of the derivative of each row."""
        if hasattr(self.inner, "jacobian_norm"):
            norm: Tensor = self.inner.jacobian_norm(logits, visible)
            return norm
        rows = logits.detach().double().reshape(-1, logits.shape[-1])
        seen = None if visible is None else visible.expand(logits.shape).reshape(rows.shape)
        with torch.enable_grad():
            norms = [self._row_norm(row, None if seen is None else seen[i]) for i, row in enumerate(rows)]
        return torch.stack(norms).view(logits.shape[:-1]).to(logits.dtype)

    def _row_norm(self, row: Tensor, visible: Tensor | None) -> Tensor:
        """One backward pass: copy i of the row is asked for the derivative of its weight i alone."""
        copies = row.expand(len(row), -1).clone().requires_grad_()
        seen = None if visible is None else visible.expand(copies.shape)
        (jacobian,) = torch.autograd.grad(self.weights(copies, seen).diagonal().sum(), copies)
        return torch.linalg.matrix_norm(jacobian, 2)

    def jacobian_bound(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        """Its own, or the norm itself."""
        if hasattr(self.inner, "jacobian_bound"):
            bound: Tensor = self.inner.jacobian_bound(logits, visible)
            return bound
        return self.jacobian_norm(logits, visible)

    def lipschitz(self, length: int) -> float:
        """Its own, or inf."""
        return float(self.inner.lipschitz(length)) if hasattr(self.inner, "lipschitz") else math.inf


def is_file(spec: str) -> bool:
    """Whether a specification names a class in a file."""
    return ".py:" in spec or spec.endswith(".py")


def source_of(spec: str) -> str | None:
    """A digest of the file that a specification names."""
    if not is_file(spec):
        return None
    return hashlib.sha256(_path(spec)[0].read_bytes()).hexdigest()


def load_normalizer(spec: str) -> Normalizer:
    """The normalizer of a specification: a name with settings, or a class in a file."""
    return _from_file(spec, source_of(spec)) if is_file(spec) else parse(spec)


@cache
def _from_file(spec: str, digest: str | None) -> Normalizer:
    path, name = _path(spec)
    try:
        with redirect_stdout(sys.stderr):  # standard output is for the result
            defined = runpy.run_path(str(path))
    except (Exception, SystemExit) as error:
        raise InputError(f"{path} cannot be run: {reason(error)}") from error
    if name not in defined:
        own = {k: v for k, v in defined.items() if isinstance(v, type) and v.__module__ == defined["__name__"]}
        classes = [key for key, value in own.items() if hasattr(value, "weights")]  # none that is only imported
        raise InputError(f"{path} has no class {name}; classes with `weights`: {', '.join(classes) or 'none'}")
    if not callable(getattr(defined[name], "weights", None)):
        raise InputError(f"{spec}: the class needs a method weights(logits, visible=None)")
    try:
        made = defined[name]()
    except (Exception, SystemExit) as error:
        raise InputError(f"{spec} cannot be made without arguments: {reason(error)}") from error
    if isinstance(made, nn.Module):  # its parameters are used as they are, without dropout
        made.eval().requires_grad_(False)
    if isinstance(made, Normalizer) and not hasattr(made, "facts"):
        raise InputError(f"{spec}: a subclass of Normalizer declares its facts: facts = Facts(...)")
    facts = getattr(made, "facts", Facts())
    if not isinstance(facts, Facts):
        raise InputError(f"{spec}: facts must be attnscope.normalizers.Facts(...), received {type(facts).__name__}")
    complete = isinstance(made, Normalizer) and hasattr(made, "facts") and hasattr(made, "name")
    return made if complete else UserNormalizer(made, name)


def _path(spec: str) -> tuple[Path, str]:
    file, _, name = spec.rpartition(":")
    if spec.endswith(".py") or not name:
        raise InputError(f"{spec}: name the class in it too, as in mine.py:MyNormalizer")
    path = Path(file)
    if not path.is_file():
        raise InputError(f"{spec}: there is no file {path}")
    return path, name


def reason(error: BaseException) -> str:
    """An error of a user's code in one line."""
    return f"{type(error).__name__}: {textwrap.shorten(str(error), 300, placeholder=' ...') or 'no message'}"
