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
    from collections.abc import Sequence

    from torch import Generator, Tensor

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

    >>> from attnscope.theory import distance
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

    >>> from attnscope.studies.audit import TOP_SETS
    >>> TOP_SETS.trials > 0
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

    >>> from attnscope.studies.audit import TOP_SETS
    >>> from attnscope.theory import distance
    >>> form = Form("d~ >= 0", at_least(distance.distance, lambda c: torch.zeros_like(c.count)))
    >>> Claim("mine", "my notebook", TOP_SETS, form).id
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

    >>> from attnscope.theory import distance
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
    """quantity >= bound, with the parameters of `at_most`.

    >>> from attnscope.theory import distance
    >>> c = Configuration.of(torch.tensor([[0.5, 0.5]]), torch.eye(2), [1])
    >>> at_least(distance.distance, distance.fixed_set_lower)(c)
    Inequality(smaller=tensor([[0.7071]]), larger=tensor([[0.7071]]), allowance=0.0)
    """
    return at_most(bound, quantity, allowance)


def between(
    quantity: Callable[[S], Tensor], bounds: Callable[[S], Interval], allowance: Callable[[S], Tensor] | None = None
) -> Callable[[S], Inequality]:
    """lower <= quantity <= upper, where `bounds` gives an `Interval`, with the parameters of `at_most`.

    >>> from attnscope.theory.configuration import Interval
    >>> between(lambda x: x, lambda x: Interval(x - 1, x + 1))(torch.tensor([2.0]))
    Inequality(smaller=tensor([[1., 2.]]), larger=tensor([[2., 3.]]), allowance=tensor([[0., 0.]]))
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
    """|quantity - value| <= tolerance * |value|, with the parameters of `at_most`.

    >>> about(lambda x: 1.01 * x, lambda x: x, tolerance=0.1)(torch.tensor([2.0]))
    Inequality(smaller=tensor([0.0200]), larger=tensor([0.2000]), allowance=0.0)
    """

    def inequality(subject: S) -> Inequality:
        expected = value(subject)
        return Inequality((quantity(subject) - expected).abs(), tolerance * expected.abs())

    return inequality


BATCH = 100
SHAPES = ((2, 1), (3, 1), (2, 2), (3, 2), (5, 3), (4, 7), (7, 2), (11, 3), (7, 13), (23, 5))


def normal(generator: Generator, *shape: int) -> Tensor:
    """Standard normal samples in float64."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def uniform(generator: Generator, *shape: int) -> Tensor:
    """Uniform samples between 0 and 1 in float64."""
    return torch.rand(*shape, generator=generator, dtype=torch.float64)


def whole(generator: Generator, low: int, high: int, *shape: int) -> Tensor:
    """Random integers low <= k < high, in float64."""
    return torch.randint(low, high, shape, generator=generator).to(torch.float64)


def mixed(generator: Generator, kinds: Sequence[Tensor]) -> Tensor:
    """One of several families for each configuration of the batch."""
    stacked = torch.stack(list(kinds))
    choice = torch.randint(len(kinds), (stacked.shape[1],), generator=generator)
    return stacked[choice, torch.arange(stacked.shape[1])]


def masses(generator: Generator, batch: int, keys: int) -> Tensor:
    """Nonnegative numbers that a space turns into weights: flat, peaked, one-hot, tied, with zeros."""
    noise = normal(generator, batch, keys)
    peak = torch.zeros(batch, keys, dtype=torch.float64)
    peak[:, 0] = 1
    kinds = [
        torch.ones(batch, keys, dtype=torch.float64),
        torch.exp(0.1 * noise),
        torch.exp(noise),
        torch.exp(4 * noise),
        peak,
        peak + 1e-3 * uniform(generator, batch, keys),
        whole(generator, 0, 4, batch, keys),
    ]
    return mixed(generator, kinds)


def normalized(masses: Tensor) -> Tensor:
    """Masses divided by their sum: weights."""
    return masses / masses.sum(-1, keepdim=True)


def points(generator: Generator, batch: int, keys: int, dims: int) -> Tensor:
    """Vectors: isotropic, with a common mean, few distinct, one outlier, orthonormal, collinear, antipodal, alike."""
    noise = normal(generator, batch, keys, dims)
    common = normal(generator, batch, 1, dims)
    outlier = noise.clone()
    outlier[:, 0] *= 50
    half = keys // 2
    antipodal = noise.clone()
    antipodal[:, half : 2 * half] = -noise[:, :half]
    axes = torch.eye(dims, dtype=torch.float64)[torch.arange(keys) % dims].expand(batch, keys, dims)
    some = noise.clone()
    some[:, ::2] = 0
    kinds = [
        noise,
        3 * common + noise,
        noise[:, torch.arange(keys) % 2],
        outlier,
        axes,
        normal(generator, batch, keys, 1) * common,
        antipodal,
        common.expand_as(noise),
        torch.ones_like(noise),
        some,
        on_sphere(noise),
    ]
    return mixed(generator, kinds)


def positive(case: Case) -> Tensor:
    """Which configurations have masses that can be normalized."""
    return (case["masses"] >= 0).all(-1) & (case["masses"].sum(-1) > 0)


def on_sphere(vectors: Tensor) -> Tensor:
    """Vectors scaled to length one; zero stays zero."""
    norm = vectors.norm(dim=-1, keepdim=True)
    return vectors / torch.where(norm > 0, norm, 1)


def scores(generator: Generator, batch: int, keys: int) -> Tensor:
    """Logits: of several sizes, all equal, one or two winners, two extremes."""
    noise = normal(generator, batch, keys)
    size = torch.exp(1.5 * normal(generator, batch, 1))
    winner = torch.zeros_like(noise)
    winner[:, 0] = 1
    pair = winner.clone()
    pair[:, 1] = 1
    kinds = [
        size * noise,
        noise,
        torch.zeros_like(noise),
        size * winner,
        size * pair,
        size * torch.sign(noise),
        size * (2 * winner - 1),
        size * (1 - 2 * winner),
        size * whole(generator, 0, 3, batch, keys),
    ]
    return mixed(generator, kinds)


def plain(values: Tensor) -> Any:
    """Values of a tensor rounded for printing: nested lists, or one number."""
    return (values.to(torch.float64).round(decimals=6) + 0.0).tolist()  # adding 0 turns -0 into 0
