"""The test of the paper's guidelines in the terminal."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from rich.text import Text

from attnscope.columns import COLUMNS, label
from attnscope.report.terminal import add_row, paragraph, short_path, table
from attnscope.results.words import measured, number

if TYPE_CHECKING:
    from rich.console import Console

    from attnscope.studies.compare.guidelines import Guidelines

_STYLES = {"agrees": "green", "disagrees": "red", "undecided": "yellow"}
_COUNTED = {  # one, several
    "agrees": ("agrees with the model", "agree with the model"),
    "disagrees": ("disagrees", "disagree"),
    "undecided": ("is undecided", "are undecided"),
}
_SWEEPS = {"share": "Share of the keys", "length": "Length", "temperature": "Temperature"}
_LEGEND = (
    "agrees: the numbers move as predicted along the whole sweep; disagrees: the other way; undecided: by at most 2%, "
    "or both ways."
)
_UNDEFINED = "-: not defined, as fewer keys than the top set get weight."


def print_guidelines(console: Console, result: Guidelines) -> None:
    """Print the verdicts, then each guideline with what it predicts and the numbers of its sweep."""
    run = result.comparison.run
    settings = run["settings"]
    where = f"{settings['windows']} x {settings['length']:,} tokens of {short_path(run['text']['source'])}"
    console.print(Text.assemble((short_path(run["model"]), "bold"), f": the paper's guidelines; {where}"))
    counts = Counter(str(finding.verdict) for finding in result.findings)
    found = [verdict for verdict in _STYLES if counts[verdict]]
    words = ", ".join(f"{counts[verdict]} {_COUNTED[verdict][counts[verdict] > 1]}" for verdict in found)
    console.print(Text.assemble(("\nVerdict: ", "bold"), f"of {len(result.findings)} guidelines, {words}."))
    for finding in result.findings:
        console.print()
        name = finding.guideline[0].upper() + finding.guideline[1:]
        console.print(Text.assemble((name, "bold"), ": ", (finding.verdict, _STYLES[finding.verdict])))
        console.print(paragraph(finding.predicts, 2, "Predicts  "))
        names = [key for key in finding.table[0] if key != "defined"] if finding.table else []
        made = table([_SWEEPS.get(key) or label(key) for key in names], ())
        for line in finding.table:
            add_row(made, *(_cell(line, key) for key in names))
        console.print(made)
    console.print()
    console.print(paragraph(_LEGEND, style="dim"))
    if any(line[key] is None for finding in result.findings for line in finding.table for key in line):
        console.print(paragraph(_UNDEFINED, style="dim"))


def _cell(line: dict[str, Any], key: str) -> str:
    value = line[key]
    if key == "length":
        return f"{value:,}"
    if key == "share":
        return number(value, "share")
    return measured(key, value) if key in COLUMNS else number(value)
