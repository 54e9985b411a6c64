"""The readings of the protocol side by side in the terminal, against what the paper prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from attnscope.experiments.protocol_report import Comparison

STYLE = {"agrees": "green", "disagrees": "red", "depends": "yellow"}
UNLIMITED = 400  # line width of a file or a pipe


def print_protocol(console: Console, claims: list[dict[str, Any]]) -> None:
    """Print one table per subject, then the best readings and what no reading gives."""
    from rich.markup import escape
    from rich.table import Table

    from attnscope.experiments.protocol_report.comparisons import MARKS, comparisons, disagreements, grids, summary

    if not console.is_terminal:
        console.width = UNLIMITED
    compared = comparisons(claims)
    for grid in grids(compared):
        table = Table(title=grid.title, title_justify="left", box=None, pad_edge=False, header_style="bold")
        table.add_column("the paper prints", max_width=52)
        for column in grid.columns:
            table.add_column(column, justify="right")
        for line in grid.lines:
            paper = f"{line.figure}  {line.paper}" + (f" ({line.detail})" if line.detail else "")
            table.add_row(escape(paper), *(_cell(one, MARKS) for one in line.cells))
        console.print(table)
        console.print()
    good, bad, maybe = (MARKS[verdict] for verdict in STYLE)
    console.print(f"{good} as the paper prints it, {bad} not, {maybe} depends on the window; * the nearest reading")
    for sentence in (*summary(compared), *(f"The last rows differ: {one}" for one in disagreements(claims))):
        console.print(escape(sentence), soft_wrap=True)


def _cell(one: Comparison | None, marks: dict[str, str]) -> str:
    if one is None or not one.measured:
        return "-"
    text = f"{'*' if one.nearest else ''}{one.values.split(' [')[0]}"
    return f"[{STYLE[one.verdict]}]{text} {marks[one.verdict]}[/]" if one.verdict else text
