"""An audit of claims in the terminal: the verdict, a table of all claims, or one claim in full."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from rich.text import Text

from attnscope.report.terminal import add_row, paragraph, table
from attnscope.results.words import counted

if TYPE_CHECKING:
    from rich.console import Console

    from attnscope.studies.audit import AuditReport, ClaimReport, Counterexample, Trial

_STYLES = {"fails": "red", "holds with condition": "yellow", "vacuous": "yellow", "holds": "green"}
_COUNTED = {  # one, several
    "fails": ("fails", "fail"),
    "holds with condition": ("holds with a condition", "hold with a condition"),
    "vacuous": ("is vacuous", "are vacuous"),
    "holds": ("holds", "hold"),
}
_LEGEND = (
    "holds: no configuration violates the form; holds with condition: none that meets a condition does; fails: some "
    "configuration does; vacuous: it says nothing in 99% of the configurations. Violated: share of the configurations "
    "drawn at random; accepted is 0%, also for those that a search then finds near the worst (by attack). Where the "
    "paper prints no form (-), the verdict is on the corrected one."
)


def print_audit(console: Console, report: AuditReport, verbose: bool = False) -> None:
    """Print the verdict and one entry per claim; if `verbose` also where it is printed and the counterexamples."""
    console.print(paragraph(Text.assemble(("Verdict: ", "bold"), _verdict(report))))
    broken = [claim.id for claim in report.claims if claim.corrected_violated]
    if broken:
        console.print(paragraph(f"A corrected form was violated: {', '.join(broken)}.", style="bold red"))
    else:
        console.print(paragraph("No corrected form was violated.", style="bold green"))
    console.print()
    made = table(["Claim and its statement", "Verdict", "Printed, violated", "Corrected, violated"], (0, 1))
    made.columns[1].max_width = len("condition")
    for claim in report.claims:
        name = Text.assemble((claim.id, "bold"), f"\n{_statement(claim)}")
        rates = (_rate(claim.printed), _worst_rate(claim))
        add_row(made, name, Text(claim.verdict, _STYLES[claim.verdict]), *rates)
    console.print(made)
    console.print()
    console.print(paragraph(_LEGEND, style="dim"))
    if verbose:
        _print_details(console, report)


def _verdict(report: AuditReport) -> str:
    counts = Counter(str(claim.verdict) for claim in report.claims if claim.printed is not None)
    verbs = {verdict: one if counts[verdict] == 1 else several for verdict, (one, several) in _COUNTED.items()}
    words = ", ".join(f"{counts[verdict]} {verb}" for verdict, verb in verbs.items() if counts[verdict])
    of_paper = f"of {counted(counts.total(), 'claim')} as the paper prints them, {words}. " if words else ""
    own = [claim for claim in report.claims if claim.printed is None]
    hold = sum(claim.verdict == "holds" for claim in own)
    beyond = (
        f"Of {counted(len(own), 'claim')} beyond the paper, {hold} {'holds' if hold == 1 else 'hold'}. " if own else ""
    )
    return f"{of_paper}{beyond}Effort {report.effort}, seed {report.seed}."


def _statement(claim: ClaimReport) -> str:
    """The form as printed; for claims that the paper does not print, the first one claimed."""
    if claim.printed is not None:
        return claim.printed.statement
    first, *more = (trial.statement for trial in claim.corrected)
    return f"{first} (and {len(more)} more)" if more else first


def _print_details(console: Console, report: AuditReport) -> None:
    console.print(Text("\nPlaces, configurations, slack and smallest counterexamples", style="bold"))
    words = "Slack: median of bound / value where both are positive; 1 is attained."
    console.print(paragraph(words, style="dim"))
    for claim in report.claims:
        slack = f"slack {_slack(claim.printed)} printed, {_slack(_tightest(claim))} corrected"
        console.print(paragraph(f"{claim.place}; {claim.tried:,} configurations; {slack}", 2, f"{claim.id}  "))
        example = _counterexample(claim)
        if example is not None:
            console.print(paragraph(_short(example), 4))


def print_claim(console: Console, claim: ClaimReport) -> None:
    """Print a claim in full: its forms, how often each was violated, and numbers to check by hand."""
    console.print(Text.assemble((claim.id, "bold"), ": ", (claim.verdict, _STYLES[claim.verdict])))
    facts = {"Place": claim.place, "Space": claim.space, "Tried": f"{claim.tried:,} configurations"}
    facts |= {"Condition": claim.condition or "", "Note": claim.note}
    for name, words in facts.items():
        if words:
            console.print(paragraph(words, 2, f"{name:10} "))
    trials = [("Printed", claim.printed), ("Printed, under the condition", claim.conditioned)]
    trials += [("Corrected" if claim.printed else "Claimed", trial) for trial in claim.corrected]
    for name, trial in trials:
        if trial is not None:
            console.print()
            console.print(paragraph(f"{name}: {trial.statement}", style="bold"))
            _print_trial(console, trial)
    console.print()
    console.print(paragraph(_LEGEND, style="dim"))


def _print_trial(console: Console, trial: Trial) -> None:
    words = f"violated in {trial.violations:,} of {trial.drawn:,} drawn ({trial.rate:.1%}; accepted: 0%)"
    console.print(paragraph(f"{words}; {trial.attacked:,} more tried near the worst", 2))
    if trial.slack is not None:
        words = f"slack {_slack(trial)} (median), {_number(trial.least_slack)} (least): bound / value, 1 is attained"
        console.print(paragraph(words, 2))
    if trial.empty:
        console.print(paragraph(f"says nothing in {trial.empty:.0%} of the configurations", 2))
    if trial.counterexample:
        console.print(paragraph("smallest counterexample:", 2))
        for key, value in trial.counterexample.values.items():
            console.print(paragraph(_plain(value), 4, f"{key} = "))
        console.print(
            paragraph(
                f"claimed {trial.counterexample.smaller:.6g} <= {trial.counterexample.larger:.6g}, "
                f"off by {trial.counterexample.excess:.6g}",
                4,
            )
        )


def _counterexample(claim: ClaimReport) -> Counterexample | None:
    """The counterexample to a corrected form, which matters most, or else to the printed form."""
    trials = [*claim.corrected, *([claim.printed] if claim.printed else [])]
    return next((trial.counterexample for trial in trials if trial.counterexample), None)


def _tightest(claim: ClaimReport) -> Trial | None:
    """The corrected form with the smallest median slack."""
    known = [(trial.slack, index) for index, trial in enumerate(claim.corrected) if trial.slack is not None]
    return claim.corrected[min(known)[1]] if known else None


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


def _short(example: Counterexample) -> str:
    values = "; ".join(f"{key} {_plain(value)}" for key, value in example.values.items())
    text = f"{values}: {example.smaller:.4g} > {example.larger:.4g}"
    return text if len(text) <= 120 else f"{example.smaller:.4g} > {example.larger:.4g} (numbers: the claim in full)"


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
