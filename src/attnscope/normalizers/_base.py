"""The interface of a normalizer, its declared properties, and the registry of names.

A normalizer maps the logits of a row to weights: `weights(logits, visible=None)`, over the last
dimension and any leading shape. For every normalizer,

- float16 and bfloat16 logits are computed in float32, and weights have the dtype of the logits;
- a key that is not visible, or whose logit is -inf, gets exactly 0 and is not counted in the length;
- a row with nothing visible gives zeros, and zero gradients;
- NaN or +inf in a row gives NaN on the visible keys of that row only (for sigmoid, whose keys are
  independent, on that key only, and +inf gives 1).

To add one: subclass `MappedNormalizer` if it is one of the maps of `_maps.py` on scaled logits,
`Normalizer` otherwise; declare its `facts`; decorate it with `register`. The parametrized tests
then check every declared fact.
"""

from __future__ import annotations

import inspect
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor

from attnscope.errors import InputError, shown
from attnscope.normalizers._arguments import check_shape, check_whole, lengths, per_row, prepare
from attnscope.normalizers._autograd import apply_map
from attnscope.normalizers._jacobian import eigenvalue_bound, largest_eigenvalue
from attnscope.normalizers._maps import Kind, factors


@dataclass(frozen=True)
class Facts:
    """Properties that hold for every row of a normalizer's weights.

    >>> from attnscope.normalizers import Sparsemax
    >>> Sparsemax.facts.sparse, Sparsemax.facts.sums_to_one
    (True, True)
    """

    sums_to_one: bool = True
    at_most_one: bool = True  # the total never exceeds one
    non_negative: bool = True
    sparse: bool = False  # finite logits can give exact zeros
    shift_invariant: bool = True  # adding a constant to all logits changes nothing
    length_aware: bool = False  # the number of visible keys enters the formula
    permutation_equivariant: bool = True

    @property
    def in_theorem_s(self) -> bool:
        """Whether Theorem S bounds the weights, at a Lipschitz constant."""
        return self.non_negative and self.at_most_one and self.permutation_equivariant


class Normalizer(ABC):
    """A map from logits to weights, with bounds on its weights and on its Jacobian.

    >>> from attnscope.normalizers import Softmax
    >>> logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    >>> Softmax()(logits), Softmax().jacobian_norm(logits)
    (tensor([0.6439, 0.2369, 0.0871, 0.0321]), tensor(0.3630))
    """

    name: ClassVar[str]
    facts: ClassVar[Facts]

    @abstractmethod
    def weights(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        """Weights of each row, with the shape and dtype of the logits."""

    def __call__(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        """Same as `weights`."""
        return self.weights(logits, visible)

    @abstractmethod
    def weight_bounds(self, length: int, low: float, high: float) -> tuple[float, float]:
        """Lower and upper bound on any weight of a row of `length` logits in [low, high] (Lemma 1)."""

    @abstractmethod
    def jacobian_norm(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        """Exact spectral norm of d weights / d logits of each row; shape logits.shape[:-1]."""

    @abstractmethod
    def jacobian_bound(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        """Closed-form upper bound on `jacobian_norm`, from the weights of each row."""

    def lipschitz(self, length: int) -> float:
        """Upper bound on `jacobian_norm` over all rows of this length, inf if none is known."""
        check_whole("length", length, least=1)
        return math.inf


@dataclass(frozen=True, eq=False)
class RowMap:
    """One of the maps of `_maps.py` with its parameters; scale, alpha and sink have shape (..., 1).

    >>> from attnscope.normalizers import Entmax
    >>> Entmax(alpha=1.3).row_map(torch.tensor([4.0])).kind
    'entmax'
    """

    kind: Kind
    scale: Tensor | None = None
    alpha: Tensor | None = None
    sink: Tensor | None = None
    k: int = 0

    def fit(self, z: Tensor) -> RowMap:
        """The same map with parameters expanded to one value per row of z."""
        return RowMap(self.kind, per_row(self.scale, z), per_row(self.alpha, z), per_row(self.sink, z), self.k)


# The supremum of the Jacobian norm of each map at scale 1; docs/normalizers.md lists them as Lipschitz constants.
SUPREMUM: dict[Kind, float] = {
    "softmax": 0.5,
    "topk": math.inf,
    "sparsemax": 1.0,
    "entmax15": 1.0,
    "entmax": 1.0,
    "sigmoid": 0.25,
}


class MappedNormalizer(Normalizer):
    """A normalizer that is one of the maps of `_maps.py`, on logits scaled by c(n).

    >>> class Half(MappedNormalizer):
    ...     name, facts = "half", Facts()
    ...     def row_map(self, n):
    ...         return RowMap("softmax", scale=torch.full_like(n, 0.5))
    >>> Half().weights(torch.tensor([2.0, 0.0]))
    tensor([0.7311, 0.2689])

    A subclass returns the map and its parameters from `row_map`; everything else follows from the
    map's Jacobian, c (diag(u) - u u^T / U).
    """

    @abstractmethod
    def row_map(self, n: Tensor) -> RowMap:
        """The map for rows of n visible keys, n of shape (..., 1)."""

    def _fitted(self, z: Tensor, visible: Tensor | None) -> RowMap:
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                check_shape(name, value, z.shape[:-1])
        # Counting the keys takes a pass over the logits, so only where the length matters.
        n = lengths(z, visible) if self.facts.length_aware else torch.ones_like(z[..., :1])
        return self.row_map(n).fit(z)

    def weights(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        """Weights of each row, with the shape and dtype of the logits."""
        z, visible = prepare(logits, visible)
        if z.shape[-1] == 0:
            return logits.clone()
        m = self._fitted(z, visible)
        return apply_map(m.kind, z, visible, m.scale, m.alpha, m.sink, m.k).to(logits.dtype)

    def _jacobian(self, logits: Tensor, visible: Tensor | None) -> tuple[RowMap, Tensor, Tensor]:
        """The map, and u and U of its Jacobian for each row."""
        z, visible = prepare(logits, visible)
        z = z.detach()
        if z.shape[-1] == 0:
            raise InputError(f"a row without keys has no Jacobian; received logits of shape {tuple(logits.shape)}")
        m = self._fitted(z, visible)
        w = apply_map(m.kind, z, visible, m.scale, m.alpha, m.sink, m.k).detach().double()
        u = factors(m.kind, w, None if m.alpha is None else m.alpha.detach().double())
        total = u.sum(-1, keepdim=True)
        if m.sink is not None and m.kind == "softmax":
            total = torch.where(total > 0, torch.ones_like(total), 0.0)
        return m, u, total

    def jacobian_norm(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        """c times the root of the secular equation; for the sigmoid, c max w (1-w)."""
        m, u, total = self._jacobian(logits, visible)
        norm = u.amax(-1) if m.kind == "sigmoid" else largest_eigenvalue(u, total)
        return (norm if m.scale is None else norm * m.scale.squeeze(-1).abs()).to(logits.dtype)

    def jacobian_bound(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        """c min(max u, Gershgorin): for softmax this is c h(max w), h(p) = p or 2 p (1-p)."""
        m, u, total = self._jacobian(logits, visible)
        bound = u.amax(-1) if m.kind == "sigmoid" else eigenvalue_bound(u, total)
        return (bound if m.scale is None else bound * m.scale.squeeze(-1).abs()).to(logits.dtype)

    def lipschitz(self, length: int) -> float:
        """The largest |c(n)| times the supremum of the map's Jacobian norm."""
        check_whole("length", length, least=1)
        m = self.row_map(torch.tensor([float(length)], dtype=torch.float64))
        scale = 1.0 if m.scale is None else float(m.scale.detach().abs().max())
        return scale * SUPREMUM[m.kind] if scale > 0 else 0.0

    def weight_bounds(self, length: int, low: float, high: float) -> tuple[float, float]:
        """Sharp bounds on a weight: one key at one end of the range against `length - 1` at the other.

        For a positive scale a weight does not fall when its logit rises and does not rise when
        another logit rises; for a negative scale the reverse. The extremes are therefore attained
        at these two rows: the argument of the sharp Lemma 1, for every map.
        """
        return two_level_bounds(self.weights_of_row, length, low, high)

    def weights_of_row(self, z: Tensor) -> Tensor:
        """Weights of one row of logits for each value of the parameters, (..., n)."""
        m = self.row_map(torch.full((1,), float(z.shape[-1]), dtype=z.dtype))
        sizes = [p.shape[:-1] for p in (m.scale, m.alpha, m.sink) if p is not None]
        shape = torch.broadcast_shapes(*sizes, ()) if sizes else torch.Size()
        z = z.expand(*shape, z.shape[-1])
        m = m.fit(z)
        return apply_map(m.kind, z, None, m.scale, m.alpha, m.sink, m.k).detach()


def two_level_bounds(weights: Callable[[Tensor], Tensor], length: int, low: float, high: float) -> tuple[float, float]:
    """The smallest and largest first weight of the rows (high, low, ...) and (low, high, ...)."""
    check_range(length, low, high)
    rows = torch.full((2, length), low, dtype=torch.float64)
    rows[0, 0] = high
    rows[1, 1:] = high
    first = torch.cat([weights(rows[0])[..., 0].reshape(-1), weights(rows[1])[..., 0].reshape(-1)])
    return float(first.min()), float(first.max())


def softmax_bounds(length: int, log_ratio: float) -> tuple[float, float]:
    """Bounds on the weights of F(z) / sum F(z), log_ratio = ln(max F / min F): Lemma 1, sharp."""
    return 1 / (1 + (length - 1) * math.exp(log_ratio)), 1 / (1 + (length - 1) * math.exp(-log_ratio))


def check_range(length: int, low: float, high: float) -> None:
    """Raise `InputError` unless length >= 1 and low <= high are finite."""
    check_whole("length", length, least=1)
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise InputError(f"low and high must be finite with low <= high, received low={low}, high={high}")


_REGISTRY: dict[str, type[Normalizer]] = {}
Registered = TypeVar("Registered", bound=type[Normalizer])


def register(cls: Registered) -> Registered:
    """Class decorator that makes a normalizer available to `get` under its name.

    >>> @register  # doctest: +SKIP
    ... class Mine(MappedNormalizer):
    ...     name = "mine"

    Parameters
    ----------
    cls
        A subclass of `Normalizer` with a `name` of its own.

    Returns
    -------
    type[Normalizer]
        The class itself.
    """
    if cls.name in _REGISTRY:
        raise InputError(f"a normalizer named {cls.name!r} is already registered: choose another name")
    _REGISTRY[cls.name] = cls
    return cls


def names() -> tuple[str, ...]:
    """Names of all registered normalizers, sorted.

    >>> names()[:4]
    ('adaptive_temperature', 'asentmax', 'entmax', 'entmax15')

    Returns
    -------
    tuple[str, ...]
        Names that `get` and `parse` take.
    """
    return tuple(sorted(_REGISTRY))


def get(name: str, /, **settings: Any) -> Normalizer:
    """Create a normalizer by name with its settings, e.g. `get("entmax", alpha=1.5)`.

    >>> get("entmax", alpha=1.3)(torch.tensor([1.0, 0.0]))
    tensor([0.7855, 0.2145])

    Parameters
    ----------
    name
        One of `names()`.
    **settings
        Those of the normalizer.

    Returns
    -------
    Normalizer
        With these settings; attnscope.InputError if there is no such name or setting.
    """
    if name not in _REGISTRY:
        raise InputError(f"no normalizer is named {shown(name)}: choose from {', '.join(names())}")
    known = inspect.signature(_REGISTRY[name]).parameters
    unknown = [setting for setting in settings if setting not in known]
    if unknown:
        listed = f"; it has {', '.join(known)}" if known else ""
        raise InputError(f"the normalizer {name} has no setting {shown(unknown[0])}{listed}")
    return _REGISTRY[name](**settings)


Settings = ParamSpec("Settings")


class Door(Protocol[Settings]):
    """A normalizer as a function of logits, a mask, and the settings of its class, which are given by name."""

    def __call__(
        self, logits: Tensor, visible: Tensor | None = None, *args: Settings.args, **settings: Settings.kwargs
    ) -> Tensor:
        """Weights of each row, with the shape and dtype of the logits."""


def function_of(cls: Callable[Settings, Normalizer]) -> Door[Settings]:
    """The function of a normalizer's class: `entmax(z, visible, alpha=1.3)` is `Entmax(alpha=1.3).weights(z, visible)`.

    Its name, signature and docstring are made from those of the class, with the class's first example.
    """

    def function(logits: Tensor, visible: Tensor | None = None, **settings: Any) -> Tensor:
        return make(**settings).weights(logits, visible)

    make: Any = cls
    own = [each.replace(kind=each.KEYWORD_ONLY) for each in inspect.signature(cls).parameters.values()]
    arguments = inspect.signature(function)
    common = list(arguments.parameters.values())[:2]
    function.__name__ = function.__qualname__ = make.name
    function.__module__ = make.__module__
    function.__doc__ = _document(make)
    function.__signature__ = arguments.replace(parameters=[*common, *own])  # type: ignore[attr-defined]
    return function  # type: ignore[return-value]  # with the signature of its class


_FUNCTION = """{summary} See `{cls}`.

{example}

Parameters
----------
logits
    Logits, (..., keys).
visible
    Mask that broadcasts against the logits, False for keys that are not attended to. Default: all keys.
{settings}
Returns
-------
(..., keys)
    Weights, with the shape and dtype of the logits.
"""


def _document(cls: type[Normalizer]) -> str:
    """The docstring of the function of a class."""
    summary, example, *_ = (inspect.getdoc(cls) or "").split("\n\n")
    _, _, settings = (inspect.getdoc(cls) or "").partition("Parameters\n----------\n")
    called = re.sub(
        rf"{cls.__name__}\((.*)\)\.weights\(logits\)",
        lambda found: f"{cls.name}({', '.join(filter(None, ('logits', found[1])))})",
        example,
    )
    return _FUNCTION.format(summary=summary, cls=cls.__name__, example=called, settings=settings and f"{settings}\n")
