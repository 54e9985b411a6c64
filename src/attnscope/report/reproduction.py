"""A reproduction in the terminal: the verdict, every claim with its number and accepted range, and the readings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.text import Text

from attnscope.errors import parameter
from attnscope.report.protocol_table import STYLES, print_protocol
from attnscope.report.terminal import add_row, paragraph, short_path, table
from attnscope.results.words import counted, number

if TYPE_CHECKING:
    from rich.console import Console

    from attnscope.studies.paper.reproduction import Reproduction

_LEAST = 1e-300
ENOUGH_WINDOWS = 6  # with fewer, no bootstrap interval reaches a coverage of 95%
_LEGEND = (
    "agrees: the 95% interval over windows lies inside the accepted range, for every N, T or eps measured; disagrees: "
    "outside; depends: neither, or the readings differ. Measured: the median over windows, or its range over the N, T "
    "or eps measured, of the form as printed, in the reading nearest to the paper. Corrected: the verdict on the "
    "corrected form, - if there is none. 2a to 4: the figures of the paper."
)


def print_claims(console: Console, result: Reproduction, verbose: bool = False) -> None:
    """Print what was run, the verdict and every claim; if `verbose` also the readings of the protocol."""
    model, text, settings = result.run["model"], result.run["text"], result.run["settings"]
    console.print(
        Text.assemble(
            (short_path(model["name"]), "bold"),
            f": {counted(model['layers'], 'layer')}, {counted(model['heads'], 'head')}; {settings['windows']} x "
            f"{settings['lengths'][-1]:,} tokens of {short_path(text['source'])}",
        )
    )
    console.print()
    counts = Counter(claim["verdict"] for claim in result.claims)
    words = ", ".join(f"{counts[verdict]} {_verb(verdict, counts[verdict])}" for verdict in STYLES if counts[verdict])
    console.print(
        paragraph(Text.assemble(("Verdict: ", "bold"), f"of the paper's {len(result.claims)} claims, {words}."))
    )
    if settings["windows"] < ENOUGH_WINDOWS:
        console.print(paragraph(_caution(settings["windows"]), style="bold yellow"))
    console.print()
    made = table(["Claim", "Measured", "Accepted", "Printed", "Corrected"], (0, 3, 4))
    for claim in result.claims:
        value, accepted = measured_and_accepted(claim)
        where = f"{claim['figure']}  " if claim.get("figure") else ""
        verdicts = (Text(claim[form] or "-", STYLES.get(claim[form] or "", "")) for form in ("printed", "corrected"))
        add_row(made, f"{where}{claim['claim']}", value, accepted, *verdicts)
    console.print(made)
    console.print()
    console.print(paragraph(_LEGEND, style="dim"))
    if verbose:
        console.print(Text("\nHow each number is measured, and accepted", style="bold"))
        for claim in result.claims:
            console.print(paragraph(claim["rule"], 0, f"{claim['id']}  "))
    if verbose:
        console.print()
        print_protocol(console, result.claims)


def _verb(verdict: str, count: int) -> str:
    if verdict == "not measured":
        return verdict
    return verdict if count == 1 else verdict.removesuffix("s")


def measured_and_accepted(claim: Mapping[str, Any]) -> tuple[str, str]:
    """The number of a claim's printed form, in the reading nearest to the paper or else the first, and its range."""
    printed = [one for one in claim["readings"] if one["form"] == "printed" and one["measured"]]
    if not printed:
        return "-", "-"
    measured = next((one for one in printed if one.get("nearest")), printed[0])["measured"]
    values = [one["value"] for one in measured]
    low, high = number(min(values)), number(max(values))
    ranges = list(dict.fromkeys(_range(*one["accepted"]) for one in measured))
    return low if low == high else f"{low} to {high}", ranges[0] if len(ranges) == 1 else "several"


def _range(low: float | None, high: float | None) -> str:
    if low is not None and 0 < low < _LEAST:  # the least number above 0
        return "> 0"
    if low is None or high is None:
        return f"<= {number(high)}" if low is None else f">= {number(low)}"
    return number(low) if low == high else f"{number(low)} to {number(high)}"


def _caution(windows: int) -> str:
    """A warning that there are too few windows for the verdicts."""
    from attnscope.intervals import coverage_at_most

    if windows == 1:
        return (
            "One window gives no interval, so only the claims about every row have a verdict; use "
            f"{parameter('windows', 8)}."
        )
    return (
        f"The intervals of {windows} windows contain the true median in at most {coverage_at_most(windows):.0%} of "
        f"cases, not in 95%; use {parameter('windows', ENOUGH_WINDOWS)} or more."
    )
