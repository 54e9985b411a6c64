"""`attnscope audit`: test the claims of the paper, printed and corrected."""

from __future__ import annotations

import json as json_module
import math
import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from attnscope.cli.numbers import WholeNumber
from attnscope.cli.runs import JsonOption, compiling_announced
from attnscope.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from attnscope.theory.audit import AuditReport, Claim, ClaimReport, Counterexample, Trial

CORRECTED_VIOLATED = 1
WIDE = 190  # terminal width from which a claim is printed on one line
UNLIMITED = 400  # line width of a file or a pipe


def audit(
    *,
    claim: str | None = None,
    effort: Literal["quick", "full"] = "quick",
    seed: WholeNumber = 0,
    claims_file: Annotated[Path | None, Parameter(name="--own")] = None,
    json: JsonOption = False,
) -> int:
    """Test every claim of the paper, printed and corrected, on random and adversarial configurations.

    Prints one line per claim: the verdict, how often each form was violated, how tight it is, and the smallest
    counterexample. Exits with code 1 if a corrected form was violated.

    Examples:

        attnscope audit

        attnscope audit --claim theorem-2-upper

        attnscope audit --own my_bounds.py --effort full --json

    Parameters
    ----------
    claim
        Test one claim and print it in full, with numbers to check by hand.
    effort
        quick takes less than a minute on two cores, full about ten times as long.
    seed
        Seed of the random configurations.
    claims_file
        A Python file with your own claims: every attnscope.theory.audit.Claim in it is tested instead.
    """
    from rich.console import Console

    from attnscope.planning import whole_number
    from attnscope.theory import audit as referee
    from attnscope.theory.claims import CLAIMS, find_claim

    seed = whole_number("--seed", seed, 0)
    claims = _load_claims(claims_file) if claims_file else list(CLAIMS)
    if claim is not None:
        claims = [find_claim(claim, claims)]
    with compiling_announced():
        report = referee.audit(claims, effort, seed)
    if json:
        print(json_module.dumps(_as_json(report), allow_nan=False))
    elif claim is not None:
        _print_claim(Console(highlight=False), report.claims[0])
    else:
        _print_table(Console(highlight=False), report)
    return 0 if report.sound else CORRECTED_VIOLATED


def _load_claims(path: Path) -> list[Claim[Any]]:
    """The claims defined in a Python file, in order."""
    import runpy

    from attnscope.theory.audit import Claim

    if not path.is_file():
        raise InputError(f"--own takes a Python file, and there is none at {path}")
    try:
        with redirect_stdout(sys.stderr):  # standard output is for the result
            defined = runpy.run_path(str(path))
    except (Exception, SystemExit) as error:
        reason = " ".join(str(error).split()) or "no message"
        raise InputError(f"{path} cannot be run: {type(error).__name__}: {reason}") from error
    claims = [value for value in defined.values() if isinstance(value, Claim)]
    if not claims:
        raise InputError(f"{path} defines no attnscope.theory.audit.Claim; see docs/theory.md for an example")
    return claims


def _print_table(console: Console, report: AuditReport) -> None:
    """Print one line per claim; in a narrow terminal, places and counterexamples follow in a separate list."""
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
        f"\nviolated: share of the configurations drawn. slack: median of bound/value, 1 is attained. "
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
            f"  violated in {trial.violations} of {trial.drawn} drawn; {trial.attacked} more tried near the worst"
        )
        if trial.slack is not None:
            console.print(f"  slack {_slack(trial)} (median), {_number(trial.least_slack)} (least)")
        if trial.empty:
            console.print(f"  says nothing in {trial.empty:.0%}")
        if trial.counterexample:
            console.print("  smallest counterexample:")
            for key, value in trial.counterexample.values.items():
                console.print(f"    {key} = {_plain(value)}", soft_wrap=True)
            console.print(
                f"    claimed {trial.counterexample.smaller:.6g} <= {trial.counterexample.larger:.6g}, "
                f"off by {trial.counterexample.excess:.6g}"
            )


def _counterexample(claim: ClaimReport) -> Counterexample | None:
    """The counterexample to a corrected form, which matters most, or else to the printed form."""
    trials = [*claim.corrected, *([claim.printed] if claim.printed else [])]
    return next((trial.counterexample for trial in trials if trial.counterexample), None)


def _tightest(claim: ClaimReport) -> Trial | None:
    """The corrected form with the smallest median slack."""
    trials = [trial for trial in claim.corrected if trial.slack is not None]
    return min(trials, key=lambda trial: trial.slack or math.inf, default=None)


def _rate(trial: Trial | None) -> str:
    if trial is None:
        return "-"
    # The attack may violate a form that holds in every drawn configuration.
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
    """A value as short text: (0.5, 0.5) for lists, 1 instead of 1.0, and runs of equal values as 5 x 0.5."""
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
    """The value with infinities and NaN as strings, which JSON numbers cannot express."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
