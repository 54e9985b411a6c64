"""`attnscope audit`: which theorems of the paper hold as printed."""

from __future__ import annotations

import json as json_module
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from attnscope.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from attnscope.theory.audit import AuditReport, Claim, ClaimReport, Counterexample, Trial

CORRECTED_VIOLATED = 1
# From WIDE columns a terminal shows one line per claim; a file or a pipe gets lines of up to UNLIMITED columns.
WIDE, UNLIMITED = 190, 400


def audit(
    *,
    claim: str | None = None,
    effort: Literal["quick", "full"] = "quick",
    seed: int = 0,
    own: Path | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Test every claim of the paper, printed and corrected, on random and adversarial configurations.

    Prints one line per claim: the verdict, how often each form was violated, how tight it is, and the smallest
    counterexample found. Exits with code 1 if a corrected form is ever violated.

    Examples:

        attnscope audit

        attnscope audit --claim theorem-2-upper

        attnscope audit --own my_bounds.py --effort full --json

    Parameters
    ----------
    claim
        Test one claim only and print it in full, with numbers to check by hand.
    effort
        quick takes less than a minute on two cores, full about ten times as long.
    seed
        Seed for drawing the configurations.
    own
        A Python file with your own claims: every attnscope.theory.audit.Claim in it is tested, instead of the paper's.
    json
        Print one JSON object on standard output and nothing else.
    """
    from rich.console import Console

    from attnscope.theory import audit as referee
    from attnscope.theory.claims import CLAIMS, find_claim

    if seed < 0:
        raise InputError(f"--seed must be 0 or larger, received {seed}")
    claims = _claims_of_file(own) if own else list(CLAIMS)
    if claim is not None:
        claims = [find_claim(claim, claims)]
    with _progress(len(claims)) as progress:
        report = referee.audit(claims, effort, seed, progress)
    if json:
        print(json_module.dumps(_as_json(report), allow_nan=False))
    elif claim is not None:
        _print_claim(Console(highlight=False), report.claims[0])
    else:
        _print_table(Console(highlight=False), report)
    return 0 if report.sound else CORRECTED_VIOLATED


def _claims_of_file(path: Path) -> list[Claim[Any]]:
    """The claims that a Python file defines, in order."""
    import runpy

    from attnscope.theory.audit import Claim

    if not path.is_file():
        raise InputError(f"--own takes a Python file, and {path} is not a file")
    try:
        with redirect_stdout(sys.stderr):  # standard output is for the answer
            defined = runpy.run_path(str(path))
    except (Exception, SystemExit) as error:
        reason = " ".join(str(error).split()) or "no message"
        raise InputError(f"{path} cannot be run: {type(error).__name__}: {reason}") from error
    claims = [value for value in defined.values() if isinstance(value, Claim)]
    if not claims:
        raise InputError(f"{path} defines no attnscope.theory.audit.Claim; see docs/theory.md for an example")
    return claims


@contextmanager
def _progress(total: int) -> Iterator[Callable[[str], None]]:
    """A progress bar on standard error that names the current claim."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("claims"),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)
        started = 0

        def next_claim(name: str) -> None:
            nonlocal started
            bar.update(task, description=name, completed=started)
            started += 1

        yield next_claim


def _print_table(console: Console, report: AuditReport) -> None:
    """One line per claim; in a narrow terminal the places and counterexamples follow in a second list."""
    from rich.table import Table

    if not console.is_terminal:
        console.width = UNLIMITED
    wide = console.width >= WIDE
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("claim", no_wrap=True)
    if wide:
        table.add_column("place", no_wrap=True)
    table.add_column("verdict", no_wrap=wide)
    for heading in ("tried", "printed\nviolated", "\nslack", "corrected\nviolated", "\nslack"):
        table.add_column(heading, justify="right", no_wrap=True)
    if wide:
        table.add_column("smallest counterexample")
    for claim in report.claims:
        cells = [claim.verdict, str(claim.tried), _rate(claim.printed), _slack(claim.printed)]
        cells += [_worst_rate(claim), _slack(_tightest(claim))]
        example = _short(_counterexample(claim))
        table.add_row(claim.id, *([claim.place, *cells, example] if wide else cells))
    console.print(table)
    if not wide:
        console.print("\nPlaces and smallest counterexamples", style="bold")
        for claim in report.claims:
            console.print(f"{claim.id} ({claim.place}) {_short(_counterexample(claim))}")
    console.print(
        f"\nviolated: share of the configurations drawn. slack: median of bound/value, 1 if attained. "
        f"seed {report.seed}, effort {report.effort}."
    )
    if report.sound:
        console.print("No corrected form was violated. attnscope audit --claim ID shows a claim in full.")
    else:
        broken = ", ".join(claim.id for claim in report.claims if claim.corrected_violated)
        console.print(f"A corrected form was violated: {broken}.", style="bold red")


def _print_claim(console: Console, claim: ClaimReport) -> None:
    console.print(f"{claim.id}: {claim.verdict}", style="bold")
    console.print(f"place      {claim.place}\nspace      {claim.space}\ntried      {claim.tried} configurations")
    if claim.condition:
        console.print(f"condition  {claim.condition}")
    if claim.note:
        console.print(f"note       {claim.note}")
    trials = [("printed", claim.printed), ("printed, under the condition", claim.conditioned)]
    trials += [("corrected" if claim.printed else "claimed", trial) for trial in claim.corrected]
    for name, trial in trials:
        if trial is None:
            continue
        console.print(f"\n{name}: {trial.statement}", style="bold", soft_wrap=True)
        console.print(
            f"  violated in {trial.violations} of {trial.drawn} drawn; {trial.attacked} more tested near the worst"
        )
        if trial.slack is not None:
            console.print(f"  slack {_slack(trial)} (median), {_number(trial.least_slack)} (least)")
        if trial.empty:
            console.print(f"  trivially true in {trial.empty:.0%}")
        if trial.counterexample:
            console.print("  smallest counterexample:")
            for key, value in trial.counterexample.values.items():
                console.print(f"    {key} = {_plain(value)}", soft_wrap=True)
            console.print(
                f"    claimed {trial.counterexample.smaller:.6g} <= {trial.counterexample.larger:.6g}, "
                f"off by {trial.counterexample.excess:.6g}"
            )


def _counterexample(claim: ClaimReport) -> Counterexample | None:
    """Counterexample to a corrected form if there is one, which is more serious; else to the printed form."""
    trials = [*claim.corrected, *([claim.printed] if claim.printed else [])]
    return next((trial.counterexample for trial in trials if trial.counterexample), None)


def _tightest(claim: ClaimReport) -> Trial | None:
    """The corrected form with the least median slack."""
    with_slack = [trial for trial in claim.corrected if trial.slack is not None]
    return min(with_slack, key=lambda trial: trial.slack or math.inf, default=None)


def _rate(trial: Trial | None) -> str:
    if trial is None:
        return "-"
    # No drawn configuration violates the form, but one near them does.
    return f"{trial.rate:.1%}" if trial.violations or not trial.violated else "by attack"


def _worst_rate(claim: ClaimReport) -> str:
    return _rate(max(claim.corrected, key=lambda trial: (trial.violated, trial.rate), default=None))


def _slack(trial: Trial | None) -> str:
    return "-" if trial is None or trial.slack is None else _number(trial.slack)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 1e4 else f"{value:.0e}"


def _short(example: Counterexample | None) -> str:
    if example is None:
        return ""
    values = "; ".join(f"{key} {_plain(value)}" for key, value in example.values.items())
    text = f"{values}: {example.smaller:.4g} > {example.larger:.4g}"
    return text if len(text) <= 120 else f"{example.smaller:.4g} > {example.larger:.4g} (see --claim)"


def _plain(value: Any) -> str:
    """Numbers formatted for reading: (0.5, 0.5), and 1 instead of 1.0."""
    if isinstance(value, list):
        runs: list[str] = []
        parts = [_plain(item) for item in value]
        while parts:
            count = next((k for k, part in enumerate(parts) if part != parts[0]), len(parts))
            runs.append(parts[0] if count < 4 else f"{count} x {parts[0]}")
            parts = parts[1:] if count < 4 else parts[count:]
        return f"({', '.join(runs)})"
    return f"{value:.6g}" if isinstance(value, int | float) else str(value)


def _as_json(report: AuditReport) -> dict[str, Any]:
    claims = []
    for claim in report.claims:
        content = asdict(claim) | {"tried": claim.tried}
        trials = [content["printed"], content["conditioned"], *content["corrected"]]
        for trial, source in zip(trials, (claim.printed, claim.conditioned, *claim.corrected), strict=True):
            if source is not None:
                trial["rate"] = source.rate
        claims.append(content)
    return _finite({"effort": report.effort, "seed": report.seed, "sound": report.sound, "claims": claims})


def _finite(value: Any) -> Any:
    """The value with infinities and NaN as strings, which JSON cannot represent as numbers."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
