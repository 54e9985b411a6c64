"""The audit of a claim: draw configurations, search near the worst, shrink violations, and judge.

For each form of a claim, configurations are drawn from its space and the claimed inequality is evaluated. If none
violates it, those nearest to a violation are attacked: varied at random for some rounds, keeping the worst. A violation
is shrunk to a small configuration that still shows it. The verdict follows from these results alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch

from attnscope.errors import InputError, shown, whole_number
from attnscope.progress import Progress, Step, reporting
from attnscope.studies.audit.appendix import APPENDIX_CLAIMS
from attnscope.studies.audit.contract import Claim
from attnscope.studies.audit.distance import DISTANCE_CLAIMS, EXPECTATION_CLAIMS
from attnscope.studies.audit.geometry import GEOMETRY_CLAIMS, HEAD_CLAIMS
from attnscope.studies.audit.gradient import GRADIENT_CLAIMS
from attnscope.studies.audit.normalizers import NORMALIZER_CLAIMS, SELECTIVITY_CLAIMS, VANISHING_CLAIMS
from attnscope.studies.audit.report import AuditReport, ClaimReport, Counterexample, Trial, Verdict

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.studies.audit.contract import Case, Condition, Form, Inequality, Space

CLAIMS: tuple[Claim[Any], ...] = (
    *VANISHING_CLAIMS,
    *DISTANCE_CLAIMS,
    *EXPECTATION_CLAIMS,
    *GEOMETRY_CLAIMS,
    *GRADIENT_CLAIMS,
    *HEAD_CLAIMS,
    *APPENDIX_CLAIMS,
    *SELECTIVITY_CLAIMS,
    *NORMALIZER_CLAIMS,
)


def find_claim(name: str, claims: Sequence[Claim[Any]] = CLAIMS) -> Claim[Any]:
    """The claim with id `name`."""
    for claim in claims:
        if claim.id == name:
            return claim
    known = ", ".join(claim.id for claim in claims)
    raise InputError(f"no claim is called {name!r}; the claims are {known}")


Effort = Literal["quick", "full"]

# A full audit draws this many times `Space.trials` configurations per claim.
FULL = 10
ROUNDS = {"quick": 6, "full": 40}
# Relative difference below which two sides of an inequality count as equal.
ROUNDING = 1e-9
# Number of violations to shrink, the smallest first.
STARTS = 3
# A form that is trivially true in this share of the configurations is vacuous.
VACUOUS = 0.99
# A condition is tested if at least this many drawn configurations meet it.
ENOUGH = 50


def audit(
    claims: Sequence[Claim[Any] | str] | str | None = None,
    effort: Effort = "quick",
    seed: int = 0,
    progress: Progress = None,
) -> AuditReport:
    """Test claims on random and adversarial configurations, and derive a verdict on each.

    >>> report = attnscope.audit("lemma-1")  # all claims of the paper: attnscope.audit()
    >>> report.claims[0].verdict
    'holds'

    Parameters
    ----------
    claims
        `Claim` objects, ids of claims of the paper, or one id. Default: all claims of the paper.
    effort
        "quick" takes less than a minute for all claims on two cores, "full" about ten times as long.
    seed
        Seed of the random configurations.
    progress
        What to show (see `attnscope.progress`).

    Returns
    -------
    AuditReport
        A verdict and the smallest counterexample for each claim.
    """
    if effort not in ROUNDS:
        raise InputError(f"effort must be quick or full, received {effort!r}")
    seed, chosen = whole_number("seed", seed, 0), _chosen(claims)
    reports = []
    with reporting(progress) as report:
        for number, claim in enumerate(chosen):
            report(Step(number, len(chosen), claim.id))
            reports.append(audit_claim(claim, effort, seed))
    return AuditReport(effort, seed, tuple(reports))


def _chosen(claims: Sequence[Claim[Any] | str] | str | None) -> list[Claim[Any]]:
    """The claims themselves, for ids and for None."""
    if claims is None:
        return list(CLAIMS)
    given = [claims] if isinstance(claims, str) or not isinstance(claims, Iterable) else list(claims)
    wrong = [claim for claim in given if not isinstance(claim, str | Claim)]
    if wrong or not given:
        raise InputError(f"claims takes ids or Claim objects; received {shown(wrong[0]) if wrong else 'none'}")
    return [find_claim(claim) if isinstance(claim, str) else claim for claim in given]


def audit_claim(claim: Claim[Any], effort: Effort, seed: int) -> ClaimReport:
    """Test one claim."""
    if claim.printed is None and not claim.corrected:
        raise InputError(f"claim {claim.id!r} has no form to test: give it a printed or a corrected one")
    # The generator depends on the claim's id, so that a result does not depend on which other claims are tested.
    # Torch reads 32 bits of a seed, so the two are hashed together.
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {claim.id}".encode()))
    batches = _draw(claim.space, claim.space.trials * (FULL if effort == "full" else 1), generator)
    rounds = ROUNDS[effort]
    printed = try_form(claim.space, claim.printed, batches, generator, rounds) if claim.printed else None
    conditioned = None
    if claim.printed and claim.condition and printed and printed.violated:
        inside = restrict(claim.space, claim.condition)
        meeting = [take(batch, inside.valid(batch)) for batch in batches]
        meeting = [batch for batch in meeting if len(_first(batch))]
        if sum(len(_first(batch)) for batch in meeting) >= ENOUGH:
            conditioned = try_form(inside, claim.printed, meeting, generator, rounds)
    corrected = tuple(try_form(claim.space, form, batches, generator, rounds) for form in claim.corrected)
    return ClaimReport(
        id=claim.id,
        place=claim.place,
        space=claim.space.name,
        verdict=judge(printed, conditioned, corrected),
        printed=printed,
        corrected=corrected,
        condition=claim.condition.statement if claim.condition else None,
        conditioned=conditioned,
        note=claim.note,
    )


def judge(printed: Trial | None, conditioned: Trial | None, corrected: Sequence[Trial]) -> Verdict:
    """Verdict that follows from the results of the forms."""
    if printed is None:
        return "fails" if any(trial.violated for trial in corrected) else "holds"
    if printed.violated:
        return "holds with condition" if conditioned and not conditioned.violated else "fails"
    return "vacuous" if printed.empty >= VACUOUS else "holds"


def try_form(
    space: Space[Any], form: Form[Any], batches: Sequence[Case], generator: torch.Generator, rounds: int
) -> Trial:
    """Evaluate a form on drawn batches, search for violations near the worst, and shrink what violates it."""

    def excess(case: Case) -> Tensor:
        return relative_excess(form.inequality(space.subject(case)))

    violations, slacks, empty, drawn = 0, [], 0, 0
    worst: list[tuple[float, Case]] = []
    for batch in batches:
        subject = space.subject(batch)
        inequality = form.inequality(subject)
        over = relative_excess(inequality)
        violations += int((over > 0).sum())
        drawn += len(over)
        empty += int(_by_case(form.empty(subject)).all(1).sum()) if form.empty else 0
        slacks.append(_slacks(inequality))
        index = int(over.argmax())
        worst.append((float(over[index]), take(batch, [index])))
    worst.sort(key=lambda pair: -pair[0])
    attacked = 0
    if violations == 0:
        for start in worst[:3]:
            climbed, count = attack(space, excess, start, generator, rounds)
            attacked += count
            worst = [climbed, *worst]
    violating = [pair for pair in worst if pair[0] > 0]
    ratios = torch.cat(slacks)
    has_slack = not form.equality and len(ratios) > 0
    return Trial(
        statement=form.statement,
        drawn=drawn,
        attacked=attacked,
        violations=violations,
        violated=bool(violating),
        slack=float(ratios.median()) if has_slack else None,
        least_slack=float(ratios.min()) if has_slack else None,
        empty=empty / drawn,
        counterexample=_counterexample(space, form, excess, violating) if violating else None,
    )


def relative_excess(inequality: Inequality) -> Tensor:
    """By how much each configuration violates the inequality, relative to its sides; (batch,), positive = violated.

    A side that is NaN violates the inequality: a formula must have a value on its space.
    """
    smaller, larger = torch.broadcast_tensors(inequality.smaller, inequality.larger)
    scale = torch.maximum(smaller.abs(), torch.where(larger.isfinite(), larger.abs(), 0))
    over = smaller - larger - inequality.allowance - ROUNDING * scale
    over = torch.where(over.isnan() & (smaller == larger), 0, over)  # both infinite
    relative = over / torch.where(scale > 0, scale, 1)
    return _by_case(torch.where(relative.isnan(), torch.inf, relative)).amax(1)


def restrict(space: Space[Any], condition: Condition[Any]) -> Space[Any]:
    """The part of a space where a condition holds."""

    def valid(case: Case) -> Tensor:
        inside = space.valid(case).clone()
        if inside.any():
            inside[inside.clone()] = _by_case(condition.holds(space.subject(take(case, inside)))).all(1)
        return inside

    return replace(space, valid=valid)


def _draw(space: Space[Any], trials: int, generator: torch.Generator) -> list[Case]:
    batches: list[Case] = []
    count = 0
    for drawn in space.draw(generator):
        batch = take(drawn, space.valid(drawn))
        if len(_first(batch)):
            batches.append(batch)
            count += len(_first(batch))
        if count >= trials:
            break
    return batches


def _slacks(inequality: Inequality) -> Tensor:
    smaller, larger = torch.broadcast_tensors(inequality.smaller, inequality.larger)
    defined = (smaller > 0) & (larger >= smaller) & larger.isfinite()
    return (larger[defined] / smaller[defined]).flatten()


def _counterexample(
    space: Space[Any], form: Form[Any], excess: Callable[[Case], Tensor], violating: list[tuple[float, Case]]
) -> Counterexample:
    """The smallest of the shrunk violations; several starts, since shrinking ends in a local minimum."""
    by_size = sorted(violating, key=lambda pair: (sum(v.numel() for v in pair[1].values()), -pair[0]))
    shrunk = [shrink(space, excess, case) for _, case in by_size[:STARTS]]
    _, case = min(shrunk, key=lambda pair: pair[0])
    subject = space.subject(case)
    inequality = form.inequality(subject)
    smaller, larger = torch.broadcast_tensors(inequality.smaller, inequality.larger)
    worst = (smaller - larger).nan_to_num(torch.inf).flatten().argmax()
    return Counterexample(space.show(subject), float(smaller.flatten()[worst]), float(larger.flatten()[worst]))


def _by_case(values: Tensor) -> Tensor:
    """Values with all axes after the batch flattened into one."""
    return values.reshape(len(values), -1)


def _first(case: Case) -> Tensor:
    return next(iter(case.values()))


NEIGHBORS = 48


def take(case: Case, index: Tensor | Sequence[int]) -> Case:
    """The configurations of a batch at an index or under a mask."""
    chosen = torch.as_tensor(index)
    return {name: value[chosen] for name, value in case.items()}


def attack(
    space: Space[Any],
    excess: Callable[[Case], Tensor],
    start: tuple[float, Case],
    generator: torch.Generator,
    rounds: int,
) -> tuple[tuple[float, Case], int]:
    """Climb the excess by random variations; the worst configuration reached, and how many were evaluated."""
    best, case = start
    tried = 0
    for _ in range(rounds):
        near = neighbors(space, case, generator)
        near = take(near, space.valid(near))
        count = len(_first(near))
        tried += count
        if count:
            over = excess(near)
            index = int(over.argmax())
            if float(over[index]) > best:
                best, case = float(over[index]), take(near, [index])
    return (best, case), tried


def neighbors(space: Space[Any], case: Case, generator: torch.Generator) -> Case:
    """Random variations of one configuration: rescaled, shifted, zeroed or equalized entries."""
    near: Case = {}
    for name, value in case.items():
        copies = value.expand(NEIGHBORS, *value.shape[1:]).clone()
        if not copies.numel():
            near[name] = copies
            continue
        if name in space.integers:
            step = torch.randint(-1, 2, copies.shape, generator=generator).to(copies.dtype)
            near[name] = (copies + step).clamp_min(0)
            continue
        touched = torch.rand(copies.shape, generator=generator) < 0.5
        size = torch.exp(
            2 * torch.randn(NEIGHBORS, *[1] * (copies.dim() - 1), generator=generator, dtype=copies.dtype) - 2
        )
        noise = size * torch.randn(copies.shape, generator=generator, dtype=copies.dtype)
        moved = torch.where(touched, copies * (1 + noise), copies)
        shifted = torch.where(touched, copies + noise, copies)
        zeroed = torch.where(touched, torch.zeros_like(copies), copies)
        equal = torch.where(touched, copies.reshape(NEIGHBORS, -1)[:, 0].reshape(-1, *[1] * (copies.dim() - 1)), copies)
        kinds = torch.stack([moved, shifted, zeroed, equal, copies])
        choice = torch.randint(len(kinds), (NEIGHBORS,), generator=generator)
        near[name] = kinds[choice, torch.arange(NEIGHBORS)]
    return near


MOST_PASSES = 6
# A counterexample should be violated by a relative excess that a reader can see, where one exists.
NOTICEABLE = 0.02
SIMPLE = (0.0, 1.0, -1.0, 2.0, -2.0, 3.0, 4.0, 5.0, 10.0, 100.0, 0.5, 0.1)


def shrink(space: Space[Any], excess: Callable[[Case], Tensor], case: Case) -> tuple[tuple[int, float], Case]:
    """The smallest configuration reached by greedy steps, with its size and the cost of its numbers.

    A step deletes one index of an axis or replaces numbers by simpler ones, and is taken if the inequality is still
    violated. The candidates of one step are evaluated as one batch; passes are repeated until none succeeds.
    """
    enough = min(NOTICEABLE, float(excess(case)[0]) / 2)

    def first(candidates: Case) -> Case | None:
        """The first candidate that is valid and still violates."""
        valid = space.valid(candidates).nonzero().flatten()
        if not len(valid):
            return None
        over = excess({name: value[valid] for name, value in candidates.items()}) > enough
        if not over.any():
            return None
        index = valid[int(over.to(torch.uint8).argmax())]
        return {name: value[index : index + 1] for name, value in candidates.items()}

    reached = [case]  # the last is the smallest so far
    for _ in range(MOST_PASSES):
        steps = len(reached)
        for candidates in _steps(space, reached):
            smaller = first(candidates)
            if smaller is not None:
                reached.append(smaller)
        if len(reached) == steps:
            break
    case = reached[-1]
    size = sum(value.numel() for value in case.values())
    return (size, float(sum(_cost(value).sum() for value in case.values()))), case


def _steps(space: Space[Any], reached: list[Case]) -> Iterator[Case]:
    """Batches of candidates of one pass, each made from the smallest configuration reached so far."""
    for axis in dict.fromkeys(name for names in space.axes.values() for name in names):
        least = space.least.get(axis, 1)
        while (size := _size(space, reached[-1], axis)) >= 2 * max(least, 1):
            yield _restricted(space, reached[-1], axis, [torch.arange(size // 2)])
            if _size(space, reached[-1], axis) == size:
                break
        while (size := _size(space, reached[-1], axis)) > least:
            indices = torch.arange(size)
            yield _restricted(space, reached[-1], axis, [indices[indices != k] for k in reversed(range(size))])
            if _size(space, reached[-1], axis) == size:
                break
    for name, value in reached[-1].items():
        yield from _replaced(reached[-1], name, _simpler(value))
        for index in range(reached[-1][name].numel()):
            flat = reached[-1][name].flatten()
            options = _options(float(flat[index]), name in space.integers)
            changed = [torch.where(torch.arange(len(flat)) == index, option, flat) for option in options]
            yield from _replaced(reached[-1], name, [new.reshape(reached[-1][name].shape) for new in changed])


def _size(space: Space[Any], case: Case, axis: str) -> int:
    return next(case[name].shape[1 + names.index(axis)] for name, names in space.axes.items() if axis in names)


def _restricted(space: Space[Any], case: Case, axis: str, choices: list[Tensor]) -> Case:
    """One configuration per choice of indices, with only those indices of the axis."""
    candidates: Case = {}
    for name, value in case.items():
        names = space.axes[name]
        if axis in names:
            candidates[name] = torch.cat([value.index_select(1 + names.index(axis), indices) for indices in choices])
        else:
            candidates[name] = value.expand(len(choices), *value.shape[1:])
    return candidates


def _replaced(case: Case, name: str, values: list[Tensor]) -> Iterator[Case]:
    """The configurations with another value of one parameter, for the values simpler than the present one."""
    present = _cost(case[name]).sum()
    simpler = [value for value in values if _cost(value).sum() < present]
    if simpler:
        candidates = {other: value.expand(len(simpler), *value.shape[1:]) for other, value in case.items()}
        yield {**candidates, name: torch.cat(simpler)}


def _simpler(value: Tensor) -> list[Tensor]:
    """All numbers of a parameter simplified at once."""
    rounded = [value.round(decimals=digits) for digits in (0, 1, 2)]
    alike = [value[:, :1].expand_as(value)] if value.dim() > 1 and value.shape[1] else []
    return [torch.ones_like(value), torch.zeros_like(value), *alike, *rounded]


def _options(number: float, integer: bool) -> list[float]:
    if integer:
        return [0.0, 1.0, 2.0, number - 1]
    return [*SIMPLE, float(round(number)), round(number, 1), round(number, 2)]


def _cost(values: Tensor) -> Tensor:
    """How hard numbers are to compute with by hand: least for 0 and 1, then small integers, one decimal, two."""
    cost = torch.full_like(values, 50.0)
    cost = torch.where(values == values.round(decimals=2), 8.0, cost)
    cost = torch.where(values == values.round(decimals=1), 6.0, cost)
    cost = torch.where(values == values.round(), 3.0 + values.abs().clamp_max(50) / 25, cost)
    cost = torch.where(values == -1, 2.0, cost)
    return torch.where((values == 1) | (values == 0), 1.0, cost)
