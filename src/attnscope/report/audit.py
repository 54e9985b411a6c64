"""An audit of claims in the terminal: one line per claim, or one claim in full."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from attnscope.theory.audit import AuditReport, ClaimReport, Counterexample, Trial

WIDE = 190  # terminal width from which a claim is printed on one line
UNLIMITED = 400  # line width of a file or a pipe


def print_audit(console: Console, report: AuditReport) -> None:
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


def print_claim(console: Console, claim: ClaimReport) -> None:
    """Print a claim in full: its forms, how often each was violated, and numbers to check by hand."""
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
