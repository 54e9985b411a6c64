"""A reproduction in the terminal: one line per claim, and the readings of the protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.report.protocol_table import print_protocol

if TYPE_CHECKING:
    from rich.console import Console

    from attnscope.experiments.reproduction import Reproduction

ENOUGH_WINDOWS = 6  # with fewer, no bootstrap interval reaches a coverage of 95%


def print_claims(console: Console, result: Reproduction) -> None:
    """Print what was run, one line per claim, and where the files are."""
    from rich.table import Table

    model, text, settings = result.run["model"], result.run["text"], result.run["settings"]
    console.print(
        f"{model['name']}: {model['layers']} layers, {model['heads']} heads; {text['source']}; "
        f"{settings['windows']} windows of {settings['lengths'][-1]:,} tokens\n"
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("claim", "printed", "corrected", "overall"):
        table.add_column(heading)
    style = {"agrees": "green", "disagrees": "red", "depends": "yellow"}
    for claim in result.claims:
        cells = [
            f"[{style[verdict]}]{verdict}[/]" if verdict else "-" for verdict in (claim["printed"], claim["corrected"])
        ]
        on = f" on {', '.join(claim['depends_on'])}" if claim["depends_on"] else ""
        table.add_row(claim["id"], *cells, f"{claim['verdict']}{on}")
    console.print(table)
    if settings["windows"] < ENOUGH_WINDOWS:
        console.print(f"\n{_caution(settings['windows'])}")
    page = ""
    if "protocol" in result.figures:
        console.print()
        print_protocol(console, result.claims)
        page = f"\nprotocol {result.folder / 'protocol.html'}"
    console.print(
        f"\nfigures  {result.folder / 'figures'}\nclaims   {result.folder / 'claims.json'}, claims.md{page}",
        soft_wrap=True,
    )


def _caution(windows: int) -> str:
    """A warning that there are too few windows for the verdicts."""
    from attnscope.experiments.intervals import coverage_at_most

    if windows == 1:
        return "One window gives no interval, so only the claims about every row have a verdict; use --windows 8."
    return (
        f"The intervals of {windows} windows contain the true median in at most {coverage_at_most(windows):.0%} of "
        f"cases, not in 95%; use --windows {ENOUGH_WINDOWS} or more."
    )
