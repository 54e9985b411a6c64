"""A diagnosis in the terminal: a map of the states, then what was found, the most pressing first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.padding import Padding
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import RenderableType

# A letter and a color for each state, Okabe-Ito; the letter alone is enough to read the map.
_STATES = {
    "sink-bound": ("s", "#56b4e9", "only the first key counts"),
    "constant": ("c", "#999999", "puts out nearly the same in every row"),
    "local": ("l", "#009e73", "the first key and the nearest ones are enough"),
    "selective": (".", "#e69f00", "a few of its keys are enough"),
    "broad": ("B", "#d55e00", "needs many tokens"),
}
_SEVERITIES = {"act": "bold #d55e00", "watch": "bold #e69f00", "note": "bold"}
_LISTED = 8


def print_findings(console: Console, findings: dict[str, Any]) -> None:
    """Print what a diagnosis found."""
    console.print(Group(Text(), _map(findings["heads"]), Text()))
    for finding in findings["findings"]:
        console.print(_finding(finding))
    if findings["verification"]:
        checked = findings["verification"]
        tried = [Text(("+ " if p["held"] else "- ") + p["sentence"]) for p in checked["predictions"]]
        untried = [
            Text(f"  {state}: not tried, no head carries this label or every head does.")
            for state in checked["untested"]
        ]
        console.print(Group(Text("Predictions tried inside the model", style="bold"), *tried, *untried))
    for head in findings["skipped_heads"]:
        console.print(Text(f"layer {head['layer']} head {head['head']} not diagnosed: {head['reason']}", style="dim"))


def _map(heads: list[dict[str, Any]]) -> RenderableType:
    """One letter for each head, a line for each layer."""
    states = {(head["layer"], head["head"]): head["state"] for head in heads}
    width = max(head for _, head in states) + 1
    lines = [Text.assemble(("Diagnosis", "bold"), ": which simpler rule would do a head's work")]
    for layer in sorted({layer for layer, _ in states}):
        line = Text(f"{'L' + str(layer):>4}  ", style="dim")
        for head in range(width):
            letter, color, _ = _STATES.get(states.get((layer, head), ""), (" ", "default", ""))
            line.append(f"{letter} ", style=color)
        lines.append(line)
    for state, (letter, color, meaning) in _STATES.items():
        count = sum(found == state for found in states.values())
        lines.append(Text.assemble("      ", (letter, color), f" {state:10} {count:4}  {meaning}"))
    return Group(*lines)


def _finding(finding: dict[str, Any]) -> RenderableType:
    title = Text.assemble(
        f"{finding['rank']:>2}. ",
        (f"{finding['severity'].upper():5} ", _SEVERITIES[finding["severity"]]),
        (finding["title"], "bold"),
    )
    body = Text(finding["sentence"])
    places = [f"L{layer}.h{head}" for layer, head in finding["heads"][:_LISTED]]
    if places:
        more = len(finding["heads"]) - len(places)
        body.append(f" Heads: {', '.join(places)}" + (f" and {more} more" if more > 0 else "") + ".", style="dim")
    return Group(
        title, Padding(body, (0, 0, 0, 4)), Padding(Text(f"> {finding['advice']}", style="italic"), (0, 0, 1, 4))
    )
