"""A diagnosis in the terminal: a map of the states, the verdict, and the findings, the most pressing first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.padding import Padding
from rich.text import Text

from attnscope.columns import head_name
from attnscope.diagnosis.sentences import counted
from attnscope.diagnosis.states import GROUPS, NO_LABEL
from attnscope.report.states import state_looks, withdrawn_states

if TYPE_CHECKING:
    from rich.console import RenderableType

_SEVERITIES = {"act": "bold #d55e00", "watch": "bold #e69f00", "note": "bold"}
_LISTED = 8


def print_findings(console: Console, findings: dict[str, Any]) -> None:
    """Print a diagnosis: the map, the verdict, the findings, the predictions."""
    states = state_looks(findings["thresholds"], withdrawn_states(findings))
    console.print(Group(Text(), _map(findings["heads"], states), Text(), _verdict(findings["verdict"], states), Text()))
    for finding in findings["findings"]:
        console.print(_finding(finding))
    if findings["verification"]:
        console.print(_predictions(findings["verification"]))
    for head in findings["skipped_heads"]:
        console.print(Text(f"{head_name(head['layer'], head['head'])} not diagnosed: {head['reason']}", style="dim"))


def _verdict(verdict: dict[str, Any], states: dict[str, dict[str, str]]) -> RenderableType:
    """The diagnosis in a few lines."""
    looks = [(GROUPS[group["name"]], group["sentence"]) for group in verdict["groups"]]
    groups = [Padding(Text(f"{look.mark} {words}", style=look.color), (0, 0, 0, 2)) for look, words in looks]
    lost = [f"{states[NO_LABEL]['mark']} {one['sentence']}" for one in verdict.get("withdrawn", ())]
    withdrawn = [Padding(Text(words), (0, 0, 0, 2)) for words in lost]
    trust = Padding(Text(verdict["trust"], style="dim"), (0, 0, 0, 2))
    return Group(Text(f"Verdict: {verdict['headline']}", style="bold"), *groups, *withdrawn, trust)


def _predictions(checked: dict[str, Any]) -> RenderableType:
    """Whether the predictions of the labels held inside the model."""
    heading = Text.assemble(
        ("Predictions tried inside the model", "bold"),
        f": a label names a rule that should be enough for its heads and not for others; measured on "
        f"{counted(checked['windows'], 'held-out window')} of {checked['length']:,} tokens, as KL divergence of the "
        "next-token distribution",
    )
    tried = [Text(("+ " if p["held"] else "- ") + p["sentence"]) for p in checked["predictions"]]
    untried = [
        Text(f"  {state}: not tried, no head carries this label or every head of its layers does.")
        for state in checked["untested"]
    ]
    return Group(heading, *(Padding(line, (0, 0, 0, 2)) for line in (*tried, *untried)))


def _map(heads: list[dict[str, Any]], states: dict[str, dict[str, str]]) -> RenderableType:
    """One letter for each head, a line for each layer."""
    entries = {(head["layer"], head["head"]): head for head in heads}
    width = max(head for _, head in entries) + 1
    lines = [Text.assemble(("Diagnosis", "bold"), ": which simpler rule would give nearly the same output")]
    for layer in sorted({layer for layer, _ in entries}):
        line = Text(f"{'L' + str(layer):>4}  ", style="dim")
        for head in range(width):
            entry = entries.get((layer, head))
            look = states.get(entry["state"] or NO_LABEL) if entry else None
            edge = "?" if entry and entry["edge"] else " "
            line.append(f"{look['mark']}{edge}" if look else "  ", style=look["color"] if look else "default")
        lines.append(line)
    for state, look in states.items():
        count = sum((head["state"] or NO_LABEL) == state for head in heads)
        lines.append(Text.assemble("      ", (look["mark"], look["color"]), f" {state:10} {count:4}  {look['short']}"))
    if any(head["edge"] for head in heads):
        count = sum(head["edge"] is not None for head in heads)
        lines.append(Text(f"      ? {'unsure':10} {count:4}  so near a limit that other rows could give another label"))
    return Group(*lines)


def _finding(finding: dict[str, Any]) -> RenderableType:
    title = Text.assemble(
        f"{finding['rank']:>2}. ",
        (f"{finding['severity'].upper():5} ", _SEVERITIES[finding["severity"]]),
        (finding["title"], "bold"),
    )
    body = Text(finding["sentence"])
    names = [head_name(layer, head) for layer, head in finding["heads"][:_LISTED]]
    if names:
        more = len(finding["heads"]) - len(names)
        body.append(f" Heads: {', '.join(names)}" + (f" and {more} more" if more > 0 else "") + ".", style="dim")
    return Group(
        title, Padding(body, (0, 0, 0, 4)), Padding(Text(f"> {finding['advice']}", style="italic"), (0, 0, 1, 4))
    )
