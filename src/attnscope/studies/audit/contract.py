"""The parts of a claim: a space of configurations, and inequalities claimed for all of it.

A `Case` holds the free parameters of a batch of configurations, each of shape (batch, axes...). Its space turns it
into a subject, the object that formulas are evaluated on (a `Configuration` for statements about rows and sets).
Parameters are chosen so that nearly every value is meaningful (weights, for example, are given by numbers that the
space normalizes), so that the search may delete tokens and round numbers freely.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.theory.configuration import Interval

S = TypeVar("S")
Case = dict[str, "Tensor"]


class Inequality(NamedTuple):
    """`smaller <= larger`, claimed for every entry; shape (batch, anything).

    >>> Inequality(torch.tensor([1.0]), torch.tensor([2.0])).larger
    tensor([2.])

    `allowance` is the absolute error of the two sides: rounding of cancelling sums, or sampling error.
    """

    smaller: Tensor
    larger: Tensor
    allowance: Tensor | float = 0.0


@dataclass(frozen=True)
class Form(Generic[S]):
    """One way to write a claim.

    >>> from attnscope.theory import distance, spaces
    >>> Form("d~ >= 0", at_least(distance.distance, lambda c: torch.zeros_like(c.count))).statement
    'd~ >= 0'

    `empty` marks the configurations of the batch for which the form is trivially true (such as: a weight is at most 2).
    Slack is not reported for `equality` forms: it would be the tolerance.
    """

    statement: str
    inequality: Callable[[S], Inequality]
    empty: Callable[[S], Tensor] | None = None
    equality: bool = False


@dataclass(frozen=True)
class Condition(Generic[S]):
    """A hypothesis under which the printed form may hold; `holds` gives a boolean per configuration.

    >>> Condition("at most two keys", lambda c: c.length.squeeze(-1) <= 2).statement
    'at most two keys'
    """

    statement: str
    holds: Callable[[S], Tensor]


@dataclass(frozen=True)
class Space(Generic[S]):
    """Where configurations come from and how they may be varied.

    >>> from attnscope.theory import spaces
    >>> spaces.TOP_SETS.trials > 0
    True

    | field | meaning |
    |---|---|
    | `axes` | names of each parameter's axes after the batch; deleting an index acts on all that share it |
    | `least` | the smallest size of each axis |
    | `draw` | an endless stream of batches, random and adversarial, from a generator |
    | `subject` | the object that formulas are evaluated on |
    | `valid` | mask of the cases of a batch that are valid configurations |
    | `show` | the first configuration of a subject, as names and values to print |
    | `trials` | how many configurations a quick audit draws |
    | `integers` | parameters that take whole numbers only |
    """

    name: str
    axes: Mapping[str, tuple[str, ...]]
    draw: Callable[[torch.Generator], Iterator[Case]]
    subject: Callable[[Case], S]
    valid: Callable[[Case], Tensor]
    show: Callable[[S], dict[str, Any]]
    least: Mapping[str, int] = field(default_factory=dict)
    trials: int = 3000
    integers: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Claim(Generic[S]):
    """A statement, where it was made (`place`), the space it is about, and its forms.

    >>> from attnscope.theory import distance, spaces
    >>> form = Form("d~ >= 0", at_least(distance.distance, lambda c: torch.zeros_like(c.count)))
    >>> Claim("mine", "my notebook", spaces.TOP_SETS, form).id
    'mine'

    `printed` is the form as published. A claim of this project has only `corrected` forms.
    """

    id: str
    place: str
    space: Space[S]
    printed: Form[S] | None = None
    corrected: tuple[Form[S], ...] = ()
    condition: Condition[S] | None = None
    note: str = ""


def at_most(
    quantity: Callable[[S], Tensor], bound: Callable[[S], Tensor], allowance: Callable[[S], Tensor] | None = None
) -> Callable[[S], Inequality]:
    """quantity <= bound.

    >>> from attnscope.theory import distance, spaces
    >>> c = Configuration.of(torch.tensor([[0.5, 0.5]]), torch.eye(2), [1])
    >>> at_most(distance.distance, distance.fixed_set_upper)(c)
    Inequality(smaller=tensor([[0.7071]]), larger=tensor([[0.7071]]), allowance=0.0)

    Parameters
    ----------
    quantity
        A function of the subject.
    bound
        A function of the subject.
    allowance
        The absolute error of the two sides, as a function of the subject. Default: none.

    Returns
    -------
    Callable
        The inequality, for a `Form`.
    """

    def inequality(subject: S) -> Inequality:
        return Inequality(quantity(subject), bound(subject), allowance(subject) if allowance else 0.0)

    return inequality


def at_least(
    quantity: Callable[[S], Tensor], bound: Callable[[S], Tensor], allowance: Callable[[S], Tensor] | None = None
) -> Callable[[S], Inequality]:
    """quantity >= bound.

    >>> from attnscope.theory import distance, spaces
    >>> c = Configuration.of(torch.tensor([[0.5, 0.5]]), torch.eye(2), [1])
    >>> at_least(distance.distance, distance.fixed_set_lower)(c)
    Inequality(smaller=tensor([[0.7071]]), larger=tensor([[0.7071]]), allowance=0.0)

    Parameters
    ----------
    quantity
        A function of the subject.
    bound
        A function of the subject.
    allowance
        The absolute error of the two sides, as a function of the subject. Default: none.

    Returns
    -------
    Callable
        The inequality, for a `Form`.
    """
    return at_most(bound, quantity, allowance)


def between(
    quantity: Callable[[S], Tensor], bounds: Callable[[S], Interval], allowance: Callable[[S], Tensor] | None = None
) -> Callable[[S], Inequality]:
    """lower <= quantity <= upper.

    >>> from attnscope.theory.configuration import Interval
    >>> between(lambda x: x, lambda x: Interval(x - 1, x + 1))(torch.tensor([2.0]))
    Inequality(smaller=tensor([[1., 2.]]), larger=tensor([[2., 3.]]), allowance=tensor([[0., 0.]]))

    Parameters
    ----------
    quantity
        A function of the subject.
    bounds
        A function of the subject to an `Interval`.
    allowance
        The absolute error of the two sides, as a function of the subject. Default: none.

    Returns
    -------
    Callable
        The inequality, for a `Form`.
    """

    def inequality(subject: S) -> Inequality:
        value = quantity(subject)
        lower, upper = (torch.broadcast_to(side, value.shape) for side in bounds(subject))
        error = torch.broadcast_to(allowance(subject), value.shape) if allowance else torch.zeros_like(value)
        return Inequality(
            torch.stack([lower, value], -1), torch.stack([value, upper], -1), torch.stack([error, error], -1)
        )

    return inequality


def about(quantity: Callable[[S], Tensor], value: Callable[[S], Tensor], tolerance: float) -> Callable[[S], Inequality]:
    """|quantity - value| <= tolerance * |value|.

    >>> about(lambda x: 1.01 * x, lambda x: x, tolerance=0.1)(torch.tensor([2.0]))
    Inequality(smaller=tensor([0.0200]), larger=tensor([0.2000]), allowance=0.0)

    Parameters
    ----------
    quantity
        A function of the subject.
    value
        A function of the subject.
    tolerance
        Relative to the value.

    Returns
    -------
    Callable
        The inequality, for a `Form`.
    """

    def inequality(subject: S) -> Inequality:
        expected = value(subject)
        return Inequality((quantity(subject) - expected).abs(), tolerance * expected.abs())

    return inequality
