"""The words and charts of a reproduction of the paper."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from attnscope.errors import InputError, shown
from attnscope.report.terminal import short_path
from attnscope.results import html
from attnscope.results.words import counted, shortened

if TYPE_CHECKING:
    from rich.console import Console

    from attnscope.show.figures import Figure
    from attnscope.studies.paper.reproduction import Reproduction

FORMS = ("printed", "corrected")
_PLURAL = {"agrees": "agree", "disagrees": "disagree", "depends": "depend on the reading"}


def lines(result: Reproduction) -> list[str]:
    """The repr: what was run, how the claims came out, what to call next."""
    counts = f"{len(result.claims)} claims of the paper, overall: {_counts(result)}"
    found = [f"Reproduction: {_subject(result)}", counts]
    for verdict in ("disagrees", "depends"):
        names = [claim["id"] for claim in result.claims if claim["verdict"] == verdict]
        if names:
            found.append(f"{verdict.capitalize()}: {shortened(names, 6)}")
    if result.skipped_heads:
        found.append(f"Left out: {counted(len(result.skipped_heads), 'head')} (.skipped_heads has the reasons)")
    calls = ".summary(), .claims, .tables, .plot.names, .plot.figure(name), .show()"
    return [*found, f"Files: {result.folder}", f"Next: {calls}"]


def body(result: Reproduction) -> str:
    """The notebook output: one line for each claim."""
    rows = []
    for claim in result.claims:
        on = f" on {', '.join(claim['depends_on'])}" if claim["depends_on"] else ""
        forms = (claim[form] or "-" for form in FORMS)
        rows.append((claim["id"], claim["claim"], *forms, f"{claim['verdict']}{on}"))
    table = html.table(("Claim", "Statement", "Printed form", "Corrected form", "Overall"), rows, words=range(5))
    return "".join(
        [
            html.heading("Reproduction of the paper", _subject(result)),
            f'<p class="verdict">{len(result.claims)} claims, overall: {html.escape(_counts(result))}</p>',
            table,
            html.calls(".summary()", ".claims", ".tables", ".plot.figure(name)", ".show()"),
        ]
    )


def print_summary(console: Console, result: Reproduction, verbose: bool) -> None:
    """What `attnscope reproduce` prints."""
    from attnscope.report.reproduction import print_claims

    print_claims(console, result, verbose)


def pictures(result: Reproduction) -> dict[str, Any]:
    """The figures of the first reading."""
    return {name: result.plot.figure(name) for name in result.plot.names}


class ReproductionPlots:
    """The figures of a reproduction, drawn from its tables."""

    def __init__(self, result: Reproduction) -> None:
        self._result = result

    @property
    def names(self) -> list[str]:
        """The names of the figures."""
        return list(self._figures())

    def figure(self, name: str, vectors: str | None = None) -> Any:
        """A figure of the paper on this model, printed and corrected quantities side by side.

        >>> attnscope.load_run("runs/reproduce-gpt2").plot.figure("figure-2a").save("2a.svg")  # doctest: +SKIP

        Parameters
        ----------
        name
            One of `names`, e.g. "figure-2a-value"; "figure-2a" is the first of them.
        vectors
            Kind of vectors, of those that were measured. Default: the first.

        Returns
        -------
        Chart
            An Altair chart, which a notebook displays without a network.
        """
        from attnscope.show.charts import offline

        figures = self._figures()
        kinds = self._result.run["settings"]["vectors"]
        if vectors is not None and vectors not in kinds:
            raise InputError(f"vectors {shown(vectors)} were not measured; there are {', '.join(kinds)}")
        names = (name, f"{name}-{vectors or kinds[0]}", f"{name}-scaled")
        chosen = next((figures[one] for one in names if one in figures), None)
        if chosen is None:
            raise InputError(f"no figure {shown(name)}; there are {', '.join(figures)}")
        return offline(chosen.chart(titles=True))

    def _figures(self) -> dict[str, Figure]:
        from attnscope.studies.paper.figures import draw

        return draw(self._result.tables)


def _counts(result: Reproduction) -> str:
    counts = Counter(claim["verdict"] for claim in result.claims)
    return ", ".join(f"{count} {_PLURAL.get(verdict, verdict)}" for verdict, count in counts.most_common())


def _subject(result: Reproduction) -> str:
    model, text, settings = (result.run[name] for name in ("model", "text", "settings"))
    size = f"{counted(model['layers'], 'layer')}, {counted(model['heads'], 'head')}"
    return (
        f"{short_path(model['name'])}, {size}; {short_path(text['source'])}, "
        f"{counted(settings['windows'], 'window')} of {settings['lengths'][-1]:,} tokens"
    )
