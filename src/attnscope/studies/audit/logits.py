"""Rows of logits: the configurations of Lemmas 1 and 2 and their corollaries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import softplus

from attnscope.studies.audit.contract import BATCH, Case, Space, mixed, normal, plain, points, scores, uniform, whole
from attnscope.theory.gradient import jacobian, jacobian_norm, two_logit_rows

if TYPE_CHECKING:
    from torch import Generator, Tensor

LENGTHS = (2, 3, 2, 5, 7, 13, 31)
# F and F' of eq. (3). Each is monotone or has its least value at 0, so its extremes on [-a, a] are among -a, 0 and a.
FAMILIES: tuple[tuple[str, Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]], ...] = (
    ("exp(l)", torch.exp, torch.exp),
    ("softplus(l)", softplus, torch.sigmoid),
    ("sigmoid(l)", torch.sigmoid, lambda z: torch.sigmoid(z) * torch.sigmoid(-z)),
    ("1 + l^2", lambda z: 1 + z.square(), lambda z: 2 * z),
    ("1 + max(l, 0)^2", lambda z: 1 + z.clamp_min(0).square(), lambda z: 2 * z.clamp_min(0)),
    ("exp(10 l)", lambda z: torch.exp(10 * z), lambda z: 10 * torch.exp(10 * z)),
)
EXPONENTIAL = (0, 5)


def _temperatures(generator: Generator) -> Tensor:
    return torch.exp(1.5 * normal(generator, BATCH) - 0.5)


@dataclass(frozen=True)
class SeparableRow:
    """Weights F(l_i) / sum F(l_j) with one of `FAMILIES`."""

    logits: Tensor
    family: Tensor

    def apply(self, part: int, logits: Tensor) -> Tensor:
        """F (part 1) or F' (part 2) of each row's family."""
        kinds = torch.stack([family[part](logits) for family in FAMILIES])  # type: ignore[operator]
        return kinds[self.family.to(torch.long), torch.arange(len(logits))]

    @cached_property
    def values(self) -> Tensor:
        """F(l_i)."""
        return self.apply(1, self.logits)

    @cached_property
    def slopes(self) -> Tensor:
        """F'(l_i)."""
        return self.apply(2, self.logits)

    @cached_property
    def log_slopes(self) -> Tensor:
        """g_i = F'(l_i) / F(l_i)."""
        return self.slopes / self.values

    @cached_property
    def weights(self) -> Tensor:
        """alpha_i."""
        return self.values / self.values.sum(-1, keepdim=True)

    @cached_property
    def extremes(self) -> tuple[Tensor, Tensor]:
        """Least and largest F on [-a, a], a = max |l|; shape (batch, 1)."""
        reach = self.logits.abs().amax(-1, keepdim=True)
        ends = self.apply(1, torch.cat([-reach, 0 * reach, reach], -1))
        return ends.amin(-1, keepdim=True), ends.amax(-1, keepdim=True)

    @cached_property
    def length(self) -> Tensor:
        """L, shape (batch, 1)."""
        return torch.full((len(self.logits), 1), float(self.logits.shape[-1]), dtype=self.logits.dtype)

    @cached_property
    def jacobian(self) -> Tensor:
        """The full Jacobian, (batch, keys, keys)."""
        return jacobian(self.values, self.slopes)

    @cached_property
    def largest_entry(self) -> Tensor:
        """The largest entry of the Jacobian, (batch,)."""
        return self.jacobian.abs().amax((-2, -1))

    @cached_property
    def norm(self) -> Tensor:
        """The spectral norm of the Jacobian, (batch,)."""
        return torch.linalg.matrix_norm(self.jacobian, 2)


def _draw_separable(generator: Generator) -> Iterator[Case]:
    for keys in cycle((*LENGTHS, 83)):
        logits = scores(generator, BATCH, keys).clamp(-20, 20)
        # One large value above many small ones: the Jacobian has a large norm though its entries are small.
        tall = torch.ones(BATCH, keys, dtype=torch.float64)
        tall[:, 0] = keys * uniform(generator, BATCH)
        family = whole(generator, 0, len(FAMILIES), BATCH)
        logits = torch.where(((family == 1) & (uniform(generator, BATCH) < 0.5)).unsqueeze(-1), tall, logits)
        yield {"logits": logits, "family": family}


def _valid_separable(case: Case) -> Tensor:
    family = case["family"]
    known = (family >= 0) & (family < len(FAMILIES))
    # F must not overflow: exp(10 l) would beyond this.
    return known & (case["logits"].abs().amax(-1) <= torch.where(family == EXPONENTIAL[1], 30.0, 100.0))


SEPARABLE_LOGITS = Space(
    name="weights F(l)/sum F(l), F positive and smooth, of several families",
    axes={"logits": ("keys",), "family": ()},
    least={"keys": 2},
    draw=_draw_separable,
    subject=lambda case: SeparableRow(case["logits"], case["family"]),
    valid=_valid_separable,
    show=lambda s: {"F": FAMILIES[int(s.family[0])][0], "logits": plain(s.logits[0]), "weights": plain(s.weights[0])},
    trials=3000,
    integers=frozenset({"family"}),
)


@dataclass(frozen=True)
class SoftmaxRow:
    """Softmax weights of logits at a temperature."""

    logits: Tensor
    temperature: Tensor

    @cached_property
    def weights(self) -> Tensor:
        """alpha."""
        return torch.softmax(self.logits / self.temperature.unsqueeze(-1), -1)

    @cached_property
    def norm(self) -> Tensor:
        """The spectral norm of the Jacobian, (batch,), from all its eigenvalues."""
        sigma = torch.diag_embed(self.weights) - self.weights.unsqueeze(-1) * self.weights.unsqueeze(-2)
        return torch.linalg.eigvalsh(sigma)[:, -1] / self.temperature

    @cached_property
    def secular_norm(self) -> Tensor:
        """The same as the root of the secular equation."""
        return jacobian_norm(self.weights) / self.temperature

    @cached_property
    def largest_entry(self) -> Tensor:
        """The largest entry of the Jacobian, (batch,); a diagonal one, alpha_i (1 - alpha_i) >= alpha_i alpha_j."""
        return (self.weights * (1 - self.weights)).amax(-1) / self.temperature

    @cached_property
    def length(self) -> Tensor:
        """L, (batch,)."""
        return torch.full_like(self.temperature, self.logits.shape[-1])


def _draw_softmax(generator: Generator) -> Iterator[Case]:
    for keys in cycle(LENGTHS):
        yield {"logits": scores(generator, BATCH, keys), "temperature": _temperatures(generator)}


SOFTMAX_LOGITS = Space(
    name="softmax weights at temperature T",
    axes={"logits": ("keys",), "temperature": ()},
    least={"keys": 2},
    draw=_draw_softmax,
    subject=lambda case: SoftmaxRow(case["logits"], case["temperature"]),
    valid=lambda case: case["temperature"] > 1e-3,
    show=lambda s: {"logits": plain(s.logits[0]), "T": plain(s.temperature[0]), "weights": plain(s.weights[0])},
)


@dataclass(frozen=True)
class QueryRow:
    """Softmax weights of q.k_j / T."""

    query: Tensor
    keys: Tensor
    temperature: Tensor

    @cached_property
    def row(self) -> SoftmaxRow:
        """The logits and their weights."""
        return SoftmaxRow((self.keys @ self.query.unsqueeze(-1)).squeeze(-1), self.temperature)

    @cached_property
    def delta(self) -> Tensor:
        """|q| |k_j| of each key, (batch, keys)."""
        return self.query.norm(dim=-1, keepdim=True) * self.keys.norm(dim=-1)


def _draw_queries(generator: Generator) -> Iterator[Case]:
    for keys, dims in cycle(((2, 1), (3, 1), (2, 2), (5, 3), (13, 7), (31, 5))):
        size = torch.exp(normal(generator, BATCH, 1))
        query = size * normal(generator, BATCH, dims)
        aligned = torch.sign(normal(generator, BATCH, keys, 1)) * query.unsqueeze(1)
        yield {
            "query": query,
            "keys": mixed(generator, [points(generator, BATCH, keys, dims), aligned]),
            "temperature": torch.exp(normal(generator, BATCH) + 0.5),
        }


def _valid_queries(case: Case) -> Tensor:
    reach = case["query"].norm(dim=-1) * case["keys"].norm(dim=-1).amax(-1) / case["temperature"]
    return (case["temperature"] > 1e-3) & (reach < 300)


QUERIES = Space(
    name="softmax weights of a query and keys at temperature T",
    axes={"query": ("dims",), "keys": ("keys", "dims"), "temperature": ()},
    least={"keys": 2},
    draw=_draw_queries,
    subject=lambda case: QueryRow(case["query"], case["keys"], case["temperature"]),
    valid=_valid_queries,
    show=lambda s: {
        "q": plain(s.query[0]),
        "k": plain(s.keys[0]),
        "T": plain(s.temperature[0]),
        "weights": plain(s.row.weights[0]),
    },
)


@dataclass(frozen=True)
class LogitStep:
    """Softmax weights before and after a step of length eps in the logits."""

    before: SoftmaxRow
    after: SoftmaxRow
    step: Tensor

    @cached_property
    def quotient(self) -> Tensor:
        """g(T, eps), (batch,)."""
        return (self.after.weights - self.before.weights).norm(dim=-1) / self.step

    @cached_property
    def rounding(self) -> Tensor:
        """The error of a difference of weights over the step."""
        return 1e-14 / self.step


def _step(case: Case) -> LogitStep:
    direction = case["direction"] / case["direction"].norm(dim=-1, keepdim=True)
    moved = case["logits"] + case["step"].unsqueeze(-1) * direction
    return LogitStep(
        SoftmaxRow(case["logits"], case["temperature"]), SoftmaxRow(moved, case["temperature"]), case["step"]
    )


def _draw_steps(generator: Generator) -> Iterator[Case]:
    for keys in cycle(LENGTHS):
        step = torch.exp(2 * normal(generator, BATCH) - 1)
        pair = torch.zeros(BATCH, keys, dtype=torch.float64)
        pair[:, 0], pair[:, 1] = 1, -1
        direction = mixed(generator, [normal(generator, BATCH, keys), pair])
        unit = direction / direction.norm(dim=-1, keepdim=True)
        yield {
            "logits": mixed(generator, [scores(generator, BATCH, keys), -step.unsqueeze(-1) / 2 * unit]),
            "direction": direction,
            "step": step,
            "temperature": _temperatures(generator),
        }


STEPS = Space(
    name="a step of length eps in the logits of a softmax at temperature T",
    axes={"logits": ("keys",), "direction": ("keys",), "step": (), "temperature": ()},
    least={"keys": 2},
    draw=_draw_steps,
    subject=_step,
    valid=lambda case: (case["temperature"] > 1e-3) & (case["step"] > 1e-3) & (case["direction"].norm(dim=-1) > 1e-6),
    show=lambda s: {
        "l": plain(s.before.logits[0]),
        "l + eps D": plain(s.after.logits[0]),
        "eps": plain(s.step[0]),
        "T": plain(s.before.temperature[0]),
    },
)


@dataclass(frozen=True)
class TwoLogits:
    """The example of section 2.3."""

    first: SoftmaxRow
    second: SoftmaxRow
    step: Tensor

    @cached_property
    def response(self) -> Tensor:
        """|alpha1 - alpha2|, (batch,)."""
        return (self.first.weights - self.second.weights).norm(dim=-1)

    @cached_property
    def distance(self) -> Tensor:
        """|l1 - l2|, (batch,)."""
        return (self.first.logits - self.second.logits).norm(dim=-1)


def _two_logits(case: Case) -> TwoLogits:
    first, second = two_logit_rows(case["height"], case["step"], int(case["others"].shape[-1]) + 2)
    temperature = case["temperature"]
    return TwoLogits(SoftmaxRow(first, temperature), SoftmaxRow(second, temperature), case["step"])


def _draw_two_logits(generator: Generator) -> Iterator[Case]:
    for others in cycle((0, 1, 5, 29)):
        temperature = _temperatures(generator).clamp_min(0.01)
        # Two live logits (a far above T ln L) and a step much smaller than T: the regime of a first-order expansion.
        live = 20 + 30 * uniform(generator, BATCH)
        yield {
            "height": temperature * live,
            "step": temperature * 0.02 * uniform(generator, BATCH).clamp_min(1e-3),
            "temperature": temperature,
            "others": torch.zeros(BATCH, others, dtype=torch.float64),
        }


def _valid_two_logits(case: Case) -> Tensor:
    temperature, step = case["temperature"], case["step"]
    return (temperature > 1e-3) & (case["height"] >= 20 * temperature) & (step > 0) & (step <= 0.02 * temperature)


TWO_LOGITS = Space(
    name="the logits (0,..,0,a,a+eps) and (0,..,0,a+2eps,a) with a >= 20 T and eps <= T/50",
    axes={"height": (), "step": (), "temperature": (), "others": ("keys",)},
    least={"keys": 0},
    draw=_draw_two_logits,
    subject=_two_logits,
    valid=_valid_two_logits,
    show=lambda s: {
        "l1": plain(s.first.logits[0]),
        "l2": plain(s.second.logits[0]),
        "T": plain(s.first.temperature[0]),
        "eps": plain(s.step[0]),
    },
    trials=1000,
)


@dataclass(frozen=True)
class Equispaced:
    """L logits at equal distances over a range R, and a Lipschitz budget K."""

    length: Tensor
    logit_range: Tensor
    lipschitz: Tensor

    @cached_property
    def logits(self) -> Tensor:
        """The logits, padded below with -inf to the longest row."""
        index = torch.arange(int(self.length.max()), dtype=self.length.dtype)
        spaced = self.logit_range.unsqueeze(-1) * (1 - index / (self.length.unsqueeze(-1) - 1))
        return torch.where(index < self.length.unsqueeze(-1), spaced, -torch.inf)


def _draw_equispaced(generator: Generator) -> Iterator[Case]:
    while True:
        yield {
            "length": whole(generator, 2, 200, BATCH),
            "range": torch.exp(normal(generator, BATCH)),
            "lipschitz": torch.exp(2 * normal(generator, BATCH) + 1),
        }


EQUISPACED_LOGITS = Space(
    name="L logits at equal distances over a range R, a normalizer with Lipschitz constant K",
    axes={"length": (), "range": (), "lipschitz": ()},
    draw=_draw_equispaced,
    subject=lambda case: Equispaced(case["length"], case["range"], case["lipschitz"]),
    valid=lambda case: (case["length"] >= 2) & (case["range"] > 1e-6) & (case["lipschitz"] > 1e-6),
    show=lambda s: {"L": int(s.length[0]), "R": plain(s.logit_range[0]), "K": plain(s.lipschitz[0])},
    integers=frozenset({"length"}),
)
