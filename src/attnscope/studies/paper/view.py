"""What a reproduction shows: for each claim what the paper says, what this model shows, and the verdict.

The readings behind a verdict are behind a fold, with the rule that made it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.errors import InputError, parameter, shown
from attnscope.intervals import coverage_at_most
from attnscope.show.blocks import Block, Chart, Details, Heading, Items, Note, Span, Table, Tone, Verdict
from attnscope.show.numbers import counted, number, number_range, short_path, shortened

if TYPE_CHECKING:
    import polars as pl

    from attnscope.show.figures import Figure

Claim = Mapping[str, Any]
TONES: dict[str, Tone] = {"agrees": "good", "disagrees": "bad", "depends": "warning", "not measured": "soft"}
_PLURAL = {"agrees": "agree", "disagrees": "disagree", "depends": "depend on the reading"}
_LEAST = 1e-300
ENOUGH_WINDOWS = 6  # with fewer, no bootstrap interval reaches a coverage of 95%
READING = ("rows", "vectors", "logit_scale", "significance", "ball")  # what distinguishes readings
LEGEND = (
    "Measured: the median over windows, or its range over the N, T or eps measured, of the form as printed, in the "
    "reading nearest to the paper. agrees: in every form and reading the 95% interval over windows lies inside the "
    "accepted range; disagrees: outside; depends: neither, or they differ. 2a to 4: the figures of the paper."
)
OPEN_CHOICES = (
    "The paper's appendix averages over all rows of a head and compares heads, but does not say what a causal row, the "
    "vectors and the temperature are. Each possibility is a reading. Literal rows count the keys that a row cannot see "
    "as not selected; visible rows leave them out."
)


def blocks(claims: Sequence[Claim], run: Mapping[str, Any], figures: Iterable[tuple[str, Path]] = ()) -> list[Block]:
    """The claims with their verdicts, the readings behind them, and the figures by caption."""
    model, text, settings = run["model"], run["text"], run["settings"]
    size = f"{counted(model['layers'], 'layer')}, {counted(model['heads'], 'head')}"
    dropped = ", without the first token" if settings["first_key"] == "dropped" else ""
    where = f"{counted(settings['windows'], 'window')} of {settings['lengths'][-1]:,} tokens{dropped}"
    skipped = run.get("skipped_heads", [])
    rows = [
        (f"{_figure(claim)}{claim['claim']}", *measured_and_accepted(claim),
         Span(claim["verdict"], TONES[claim["verdict"]]))
        for claim in claims
    ]  # fmt: skip
    found: list[Block] = [
        Heading(short_path(model["name"]), f"{size}; {short_path(text['source'])}, {where}"),
        Verdict(f"Of the paper's {counted(len(claims), 'claim')}, {_counts(claims)}."),
    ]
    if skipped:
        found.append(Note(f"Left out: {counted(len(skipped), 'head')}; run.json has the reasons.", "warning"))
    if settings["windows"] < ENOUGH_WINDOWS:
        found.append(Note(_caution(settings["windows"]), "warning"))
    return [
        *found,
        Table(("Claim of the paper", "Measured", "Accepted", "Verdict"), rows, texts=(0, 3), notes=(LEGEND,)),
        Details("What no reading gives, and which give most", [Note(OPEN_CHOICES), Items(summary(claims))]),
        *(_readings(claim) for claim in claims),
        *(Chart(caption, file.read_text, f"{file.parent.parent.name}/{file.parent.name}/{file.name}")
          for caption, file in figures),
    ]  # fmt: skip


def title(run: Mapping[str, Any]) -> str:
    """What a browser calls the page."""
    return f"reproduction on {short_path(run['model']['name'])}"


def _figure(claim: Claim) -> str:
    return f"{claim['figure']}  " if claim["figure"] else ""


def _counts(claims: Sequence[Claim]) -> str:
    counts = Counter(claim["verdict"] for claim in claims)
    words = ((verdict, counts[verdict]) for verdict in TONES if counts[verdict])
    return ", ".join(f"{count} {verdict if count == 1 else _PLURAL.get(verdict, verdict)}" for verdict, count in words)


def named(claims: Sequence[Claim]) -> Iterable[str]:
    """The claims that do not simply agree, by verdict."""
    for verdict in ("disagrees", "depends"):
        names = [claim["id"] for claim in claims if claim["verdict"] == verdict]
        if names:
            yield f"{verdict.capitalize()}: {shortened(names, 6)}"


def shown_reading(claim: Claim, form: str = "printed") -> Claim | None:
    """The reading of a form that comes nearest to the paper, or else the first that was measured."""
    measured = [one for one in claim["readings"] if one["form"] == form and one["measured"]]
    return next((one for one in measured if one["nearest"]), next(iter(measured), None))


def measured_and_accepted(claim: Claim) -> tuple[str, str]:
    """The number of a claim's printed form, in the reading nearest to the paper or else the first, and its range."""
    reading = shown_reading(claim)
    if reading is None:
        return "-", "-"
    ranges = list(dict.fromkeys(_range(*one["accepted"]) for one in reading["measured"]))
    return values(reading, interval=False), ranges[0] if len(ranges) == 1 else "several"


def values(reading: Claim, interval: bool = True) -> str:
    """The value of a reading, with its interval, or the range of several values."""
    measured = reading["measured"]
    if not measured:
        return "-"
    numbers = [one["value"] for one in measured]
    text = number_range(min(numbers), max(numbers))
    ends = measured[0]["interval"]
    return text + (f" [{number(ends[0])}, {number(ends[1])}]" if interval and len(numbers) == 1 and ends else "")


def _range(low: float | None, high: float | None) -> str:
    if low is not None and 0 < low < _LEAST:  # the least number above 0
        return "> 0"
    if low is None or high is None:
        return f"<= {number(high)}" if low is None else f">= {number(low)}"
    return number_range(low, high)


def _readings(claim: Claim) -> Details:
    """Every reading of a claim, behind a fold, with the rule."""
    rows = [
        (f"{one['form']}, {label(one)}{' (nearest)' if one['nearest'] else ''}", values(one),
         Span(f"{one['verdict'] or '-'}{_failing(one)}", TONES.get(one["verdict"] or "", "")))
        for one in claim["readings"]
    ]  # fmt: skip
    corrected = f"Corrected: {claim['corrected_as']}." if claim["corrected_as"] else ""
    on = f"Depends on: {', '.join(claim['depends_on'])}." if claim["depends_on"] else ""
    told = [
        Note(" ".join(filter(None, (f"{claim['id']}: {claim['place']}. Accepted: {claim['rule']}.", corrected, on))))
    ]
    table = [Table(("Reading", "Measured", "Verdict"), rows, texts=(0, 2))] if rows else []
    return Details(f"{_figure(claim)}{claim['claim']}", [*told, *table])


def _failing(reading: Claim) -> str:
    """What the verdict of a reading depends on, or the N, eps or T at which the claim fails."""
    if reading["verdict"] == "depends":
        return f" ({', '.join(reading['depends_on'])})"
    return f" at {', '.join(reading['fails_at'])}" if reading["fails_at"] and reading["holds_at"] else ""


def label(reading: Claim) -> str:
    """A reading in words, e.g. "literal rows, value vectors, significance 0.01"."""
    words = {"significance": "significance {}", "rows": "{} rows", "logit_scale": "{} logits"}
    chosen = {key: reading[key] for key in READING if key in reading}
    if chosen.get("rows") == "last":
        chosen["rows"], words["rows"] = "last", "{} row"
    return ", ".join(words.get(key, f"{{}} {key}").format(value) for key, value in chosen.items())


def summary(claims: Sequence[Claim]) -> list[str]:
    """Sentences: the reading that gives most of what the paper prints, and what no reading gives."""
    best = best_readings(claims)
    top = [name for name, count, _ in best if count == best[0][1]]
    lines = [f"Most statements of Figures 2 and 3 ({best[0][1]} of {best[0][2]}): {'; '.join(top)}."] if best else []
    undecided = [claim for claim in claims if claim["figure"] and _given(claim) == "depends"]
    for what, missing in (
        ("No reading gives", contradicted_by_all(claims)),
        ("Depends on the window in every reading that may give it", undecided),
    ):
        for claim in missing:
            reading = next(one for one in claim["readings"] if one["nearest"])
            corrected = f", {claim['corrected_as'] or 'corrected'}" if reading["form"] == "corrected" else ""
            near = f"Nearest: {values(reading)} with {label(reading)}{corrected}"
            lines.append(f"{what}: {claim['claim']} (Figure {claim['figure']}). {near}.")
    return lines


def best_readings(claims: Sequence[Claim]) -> list[tuple[str, int, int]]:
    """For each pair of rows and vectors: how many statements on Figures 2 and 3 hold as printed, and out of how many.

    A statement that is measured at several significance levels, or with two balls, holds if it does for one of them.
    The pair with the most comes first.
    """
    counts: dict[str, dict[str, bool]] = {}
    for claim in (one for one in claims if one["figure"]):
        for one in claim["readings"]:
            if one["form"] == "printed" and "vectors" in one and one["measured"]:
                given = counts.setdefault(f"{one['rows']} rows, {one['vectors']} vectors", {})
                given[claim["id"]] = given.get(claim["id"], False) or one["verdict"] == "agrees"
    ranked = [(name, sum(given.values()), len(given)) for name, given in counts.items()]
    return sorted(ranked, key=lambda entry: -entry[1])


def contradicted_by_all(claims: Sequence[Claim]) -> list[Claim]:
    """The statements on figures that every reading contradicts."""
    return [claim for claim in claims if claim["figure"] and _given(claim) == "disagrees"]


def _given(claim: Claim) -> str | None:
    """Whether some reading gives a statement: the best verdict of its readings."""
    verdicts = {one["verdict"] for one in claim["readings"]}
    return next((one for one in ("agrees", "depends", "disagrees") if one in verdicts), None)


def _caution(windows: int) -> str:
    """A warning that there are too few windows for the verdicts."""
    if windows == 1:
        return (
            "One window gives no interval, so only the claims about every row have a verdict; use "
            f"{parameter('windows', 8)}."
        )
    return (
        f"The intervals of {windows} windows contain the true median in at most {coverage_at_most(windows):.0%} of "
        f"cases, not in 95%; use {parameter('windows', ENOUGH_WINDOWS)} or more."
    )


def claims_markdown(claims: Sequence[Claim]) -> str:
    """The claims as a Markdown table: measured and accepted, the verdict of each form, and the overall one."""
    from attnscope.show import markdown

    rows = [
        (claim["claim"], claim["place"], *measured_and_accepted(claim), claim["printed"] or "-",
         claim["corrected"] or "-", ": on ".join(filter(None, (claim["verdict"], ", ".join(claim["depends_on"])))))
        for claim in claims
    ]  # fmt: skip
    headings = ("Claim", "Place", "Measured", "Accepted", "Printed form", "Corrected form", "Verdict")
    return markdown.text([Table(headings, rows, texts=(0, 1, 4, 5, 6))]).rstrip() + "\n"


class ReproductionPlots:
    """The figures of a reproduction, drawn from its tables."""

    def __init__(self, tables: dict[str, pl.DataFrame], vectors: Sequence[str]) -> None:
        self._tables, self._vectors = tables, vectors

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

        figures, kinds = self._figures(), self._vectors
        if vectors is not None and vectors not in kinds:
            raise InputError(f"vectors {shown(vectors)} were not measured; there are {', '.join(kinds)}")
        names = (name, f"{name}-{vectors or kinds[0]}", f"{name}-scaled")
        chosen = next((figures[one] for one in names if one in figures), None)
        if chosen is None:
            raise InputError(f"no figure {shown(name)}; there are {', '.join(figures)}")
        return offline(chosen.chart(titles=True))

    def _figures(self) -> dict[str, Figure]:
        from attnscope.studies.paper.figures import draw

        return draw(self._tables)
