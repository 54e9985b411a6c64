"""The words and charts of an audit."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import polars as pl

from attnscope.results import html
from attnscope.results.words import counted, number, shortened

if TYPE_CHECKING:
    from rich.console import Console

    from attnscope.show.charts import OfflineChart
    from attnscope.studies.audit.report import AuditReport, ClaimReport

_NOTE = "Violated: share of the configurations drawn."
_PLURAL = {"holds": "hold", "fails": "fail", "holds with condition": "hold with a condition", "vacuous": "vacuous"}


def lines(result: AuditReport) -> list[str]:
    """The repr: how many claims hold, which fail, whether a corrected form was violated, what to call next."""
    counts = Counter(claim.verdict for claim in result.claims)
    verdicts = ", ".join(f"{n} {_PLURAL[verdict] if n > 1 else verdict}" for verdict, n in counts.most_common())
    failing = [claim.id for claim in result.claims if claim.verdict == "fails"]
    return [
        f"AuditReport: {counted(len(result.claims), 'claim')}, effort {result.effort}, seed {result.seed}",
        f"Verdicts: {verdicts}",
        *([f"Fails: {shortened(failing, 6)}"] if failing else []),
        _soundness(result),
        'Next: .summary(), .claim("lemma-1"), .table, .plot.violations(), .show()',
    ]


def body(result: AuditReport) -> str:
    """The notebook output: one line for each claim."""
    rows = [
        (
            claim.id,
            claim.place,
            claim.verdict,
            f"{claim.tried:,}",
            *(number(value, "share") for value in rates(claim)),
        )
        for claim in result.claims
    ]
    heads = ("Claim", "Place", "Verdict", "Tried", "Printed violated", "Corrected violated")
    return "".join(
        [
            html.heading("Audit of the paper's claims", f"effort {result.effort}, seed {result.seed}"),
            f'<p class="verdict">{html.escape(_soundness(result))}</p>',
            html.table(heads, rows, words=[1, 2]),
            f'<p class="soft">{_NOTE}</p>',
            html.calls(".summary()", ".claim(id)", ".table", ".plot.violations()", ".show()"),
        ]
    )


def print_summary(console: Console, result: AuditReport, verbose: bool) -> None:
    """What `attnscope audit` prints."""
    from attnscope.studies.audit.printing import print_audit

    print_audit(console, result, verbose)


def pictures(result: AuditReport) -> dict[str, Any]:
    """The charts of the page of `show`."""
    return {"Violations": result.plot.violations()}


def rates(claim: ClaimReport) -> tuple[float | None, float | None]:
    """The shares of configurations that violate the printed form, and the worst corrected one."""
    corrected = max((trial.rate for trial in claim.corrected), default=None)
    return claim.printed.rate if claim.printed else None, corrected


def table(result: AuditReport) -> pl.DataFrame:
    """One line for each claim and form; see `AuditReport.table`."""
    lines = [
        {
            "id": claim.id,
            "place": claim.place,
            "verdict": claim.verdict,
            "form": form,
            "statement": trial.statement,
            "drawn": trial.drawn,
            "attacked": trial.attacked,
            "violated": trial.violated,
            "rate": trial.rate,
            "slack": trial.slack,
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
    kinds: dict[str, Any] = dict.fromkeys(("id", "place", "verdict", "form", "statement"), pl.String)
    kinds |= {"drawn": pl.Int64, "attacked": pl.Int64, "violated": pl.Boolean, "rate": pl.Float64, "slack": pl.Float64}
    return pl.DataFrame(lines, schema=kinds)


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


def _soundness(result: AuditReport) -> str:
    broken = [claim.id for claim in result.claims if claim.corrected_violated]
    return f"A corrected form was violated: {', '.join(broken)}." if broken else "No corrected form was violated."
