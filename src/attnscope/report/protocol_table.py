"""The readings of the protocol side by side in the terminal, against what the paper prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from attnscope.report.terminal import paragraph, tables, titled

if TYPE_CHECKING:
    from rich.console import Console

    from attnscope.studies.paper.comparisons import Comparison

STYLES = {"agrees": "green", "disagrees": "red", "depends": "yellow", "not measured": "dim"}
_STATEMENT = 28  # columns of a statement, at least


def print_protocol(console: Console, claims: list[dict[str, Any]]) -> None:
    """Print one table per subject, then the best readings and what no reading gives."""
    from attnscope.studies.paper.comparisons import MARKS, comparisons, grids, summary

    compared = comparisons(claims)
    for grid in grids(compared):
        rows: list[list[str | Text]] = []
        for line in grid.lines:
            paper = f"{line.figure}  {line.paper}" + (f" ({line.detail})" if line.detail else "")
            rows.append([paper, *(_cell(one, MARKS) for one in line.cells)])
        made = tables(["The paper prints", *grid.columns], rows, console.width, _STATEMENT)
        console.print(titled(grid.title, *made))
        console.print()
    marks = f"{MARKS['agrees']} as the paper prints it, {MARKS['disagrees']} not, {MARKS['depends']} depends on the "
    console.print(paragraph(f"{marks}window; * the nearest reading", style="dim"))
    for sentence in summary(compared):
        console.print(paragraph(sentence, 0, "- "))


def _cell(one: Comparison | None, marks: dict[str, str]) -> Text:
    if one is None or not one.measured:
        return Text("-")
    text = f"{'*' if one.nearest else ''}{one.values.split(' [')[0]}"
    return Text(f"{text} {marks[one.verdict]}", STYLES[one.verdict]) if one.verdict else Text(text)
