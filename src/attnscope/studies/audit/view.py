"""What an audit shows: the verdict, a table of all claims, one claim in full, and a chart of the violations."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import polars as pl

from attnscope.show.blocks import Block, Chart, Details, Facts, Heading, Note, Span, Table, Tone, Verdict, Words
from attnscope.show.numbers import counted, number

if TYPE_CHECKING:
    from attnscope.show.charts import OfflineChart

    AuditReport = Any  # of report.py, which imports this file
    ClaimReport = Any
    Counterexample = Any
    Trial = Any

_TONES: dict[str, Tone] = {"fails": "bad", "holds with condition": "warning", "vacuous": "warning", "holds": "good"}
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


def blocks(report: AuditReport) -> list[Block]:
    """The verdict and one line for each claim; behind a fold, where it is printed and the counterexamples."""
    broken = [claim.id for claim in report.claims if claim.corrected_violated]
    sound = f"A corrected form was violated: {', '.join(broken)}." if broken else "No corrected form was violated."
    rows: list[list[Words]] = [
        [
            (Span(claim.id, "strong"), f"\n{_statement(claim)}"),
            Span(claim.verdict, _TONES[claim.verdict]),
            _rate(claim.printed),
            _worst_rate(claim),
        ]
        for claim in report.claims
    ]
    headings = ["Claim and its statement", "Verdict", "Printed, violated", "Corrected, violated"]
    details: list[Block] = [Note("Slack: median of bound / value where both are positive; 1 is attained.", "soft")]
    for claim in report.claims:
        slack = f"slack {_slack(claim.printed)} printed, {_slack(_tightest(claim))} corrected"
        details.append(Note(f"{claim.place}; {claim.tried:,} configurations; {slack}", mark=f"{claim.id}  ", indent=2))
        example = _counterexample(claim)
        if example is not None:
            details.append(Note(_short(example), indent=4))
    return [
        Verdict(_verdict(report)),
        Note(sound, "bad" if broken else "good"),
        Table(headings, rows, texts=(0, 1), notes=(_LEGEND,)),
        Details("Places, configurations, slack and smallest counterexamples", details),
        Chart("Violations", report.plot.violations),
    ]


def _verdict(report: AuditReport) -> str:
    counts = Counter(str(claim.verdict) for claim in report.claims if claim.printed is not None)
    verbs = {verdict: one if counts[verdict] == 1 else several for verdict, (one, several) in _COUNTED.items()}
    words = ", ".join(f"{counts[verdict]} {verb}" for verdict, verb in verbs.items() if counts[verdict])
    of_paper = f"Of {counted(counts.total(), 'claim')} as the paper prints them, {words}. " if words else ""
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


def claim_blocks(claim: ClaimReport) -> list[Block]:
    """A claim in full: its forms, how often each was violated, and numbers to check by hand."""
    facts = {"Place": claim.place, "Space": claim.space, "Tried": f"{claim.tried:,} configurations"}
    found: list[Block] = [
        Heading((f"{claim.id}: ", Span(claim.verdict, _TONES[claim.verdict]))),
        Facts(facts | {"Condition": claim.condition or "", "Note": claim.note}),
    ]
    trials = [("Printed", claim.printed), ("Printed, under the condition", claim.conditioned)]
    trials += [("Corrected" if claim.printed else "Claimed", trial) for trial in claim.corrected]
    for name, trial in trials:
        if trial is not None:
            found += [Heading(f"{name}: {trial.statement}", level=2), *_trial_notes(trial)]
    return [*found, Note(_LEGEND, "soft")]


def _trial_notes(trial: Trial) -> list[Block]:
    words = f"violated in {trial.violations:,} of {trial.drawn:,} drawn ({trial.rate:.1%}; accepted: 0%)"
    found: list[Block] = [Note(f"{words}; {trial.attacked:,} more tried near the worst", indent=2)]
    if trial.slack is not None:
        words = f"slack {_slack(trial)} (median), {number(trial.least_slack)} (least): bound / value, 1 is attained"
        found.append(Note(words, indent=2))
    if trial.empty:
        found.append(Note(f"says nothing in {trial.empty:.0%} of the configurations", indent=2))
    example = trial.counterexample
    if example:
        found.append(Note("smallest counterexample:", indent=2))
        found += [Note(_plain(value), mark=f"{key} = ", indent=4) for key, value in example.values.items()]
        off = f"claimed {example.smaller:.6g} <= {example.larger:.6g}, off by {example.excess:.6g}"
        found.append(Note(off, indent=4))
    return found


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
    return number(None if trial is None else trial.slack)


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


_OF_TRIAL: dict[str, Any] = {
    "statement": pl.String, "drawn": pl.Int64, "attacked": pl.Int64, "violated": pl.Boolean, "rate": pl.Float64,
    "slack": pl.Float64,
}  # fmt: skip


def table(result: AuditReport) -> pl.DataFrame:
    """One line for each claim and form; see `AuditReport.table`."""
    lines = [
        {
            "id": claim.id,
            "place": claim.place,
            "verdict": claim.verdict,
            "form": form,
            **{name: getattr(trial, name) for name in _OF_TRIAL},
        }
        for claim in result.claims
        for form, trials in (
            ("printed", [claim.printed]),
            ("conditioned", [claim.conditioned]),
            ("corrected", claim.corrected),
        )
        for trial in trials
        if trial is not None
    ]
    return pl.DataFrame(lines, schema=dict.fromkeys(("id", "place", "verdict", "form"), pl.String) | _OF_TRIAL)


class AuditPlots:
    """The charts of an audit."""

    def __init__(self, result: AuditReport) -> None:
        self._result = result

    def violations(self) -> OfflineChart:
        """The share of configurations that violate each form of each claim.

        >>> attnscope.audit(["lemma-1", "corollary-3"], progress=False).plot.violations().save("violations.svg")

        Returns
        -------
        OfflineChart
            An Altair chart, which a notebook displays without a network.
        """
        import altair as alt

        from attnscope.show.charts import BOUND, LINE, axis, chart, data, legend

        lines = self._result.table.filter(pl.col("form") != "conditioned").group_by("id", "form", maintain_order=True)
        worst = lines.agg(pl.col("rate").max())
        colors = alt.Scale(domain=["printed", "corrected"], range=[BOUND, LINE])
        marks = alt.Chart(data(worst)).mark_point(filled=True, size=60, opacity=0.9)
        marks = marks.encode(
            x=alt.X("rate:Q", title="Share of configurations that violate the claim", axis=axis(format="%")),
            y=alt.Y("id:N", title=None, sort=None, axis=axis(labelLimit=260, grid=True, labelOverlap=False)),
            color=alt.Color("form:N", scale=colors, legend=legend("Form")),
            shape=alt.Shape("form:N", scale=alt.Scale(domain=["printed", "corrected"], range=["circle", "diamond"])),
            tooltip=["id:N", "form:N", alt.Tooltip("rate:Q", format=".3~%")],
        )
        claims = worst["id"].n_unique()
        words = f"effort {self._result.effort}, seed {self._result.seed}"
        return chart("Violations of the paper's claims", words, [marks], 360, 18 * claims)
