"""The audit of a claim: draw configurations, search near the worst, shrink violations, and judge.

For each form of a claim, configurations are drawn from its space and the claimed inequality is evaluated. If none
violates it, those nearest to a violation are attacked: varied at random for some rounds, keeping the worst. A violation
is shrunk to a small configuration that still shows it. The verdict follows from these results alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch

from attnscope.errors import InputError, shown, whole_number
from attnscope.progress import Progress, Step, reporting
from attnscope.studies.audit.report import AuditReport, ClaimReport, Counterexample, Trial, Verdict
from attnscope.studies.audit.search import attack, shrink, take

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.studies.audit.contract import Case, Claim, Condition, Form, Inequality, Space

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
    from attnscope.studies.audit.claims import CLAIMS, find_claim
    from attnscope.studies.audit.contract import Claim

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
