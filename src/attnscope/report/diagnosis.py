"""A diagnosis in the terminal: the verdict with the heads that matter most, the map, and on request all findings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.text import Text

from attnscope.columns import head_name, label
from attnscope.diagnosis.states import GROUPS, NO_LABEL, times
from attnscope.errors import parameter
from attnscope.report.maps import state_map
from attnscope.report.states import state_looks, withdrawn_states
from attnscope.report.terminal import add_row, paragraph, table, titled
from attnscope.results.words import counted, measured

if TYPE_CHECKING:
    from rich.console import RenderableType

_SEVERITIES = {"act": "bold #d55e00", "watch": "bold #e69f00", "note": "bold"}
_LISTED = 8


def print_findings(console: Console, findings: Mapping[str, Any], verbose: bool = False) -> None:
    """Print a diagnosis: the verdict, the map; if `verbose` also all findings and the tests of the labels in words."""
    print_verdict(console, findings, verbose)
    print_state_map(console, findings)
    if verbose:
        print_details(console, findings)


def print_verdict(console: Console, findings: Mapping[str, Any], verbose: bool = False) -> None:
    """Print the headline, the groups of heads, how far to trust them, and the heads that matter most."""
    verdict = findings["verdict"]
    states = state_looks(findings["thresholds"], withdrawn_states(findings))
    console.print(Text(f"Verdict: {verdict['headline']}", style="bold"))
    for group in verdict["groups"]:
        look = GROUPS[group["name"]]
        console.print(paragraph(group["sentence"], 2, f"{look.mark} ", look.color))
    for one in verdict.get("withdrawn", ()):
        console.print(paragraph(one["sentence"], 2, f"{states[NO_LABEL]['mark']} "))
    for warning in verdict.get("warnings", ()):
        console.print(paragraph(warning, 2, "! ", "bold"))
    console.print(paragraph(verdict["trust"], 2, style="dim"))
    console.print()
    if findings["verification"] and findings["verification"]["predictions"]:
        console.print(_tests(findings["verification"], findings["thresholds"]["held_ratio"]))
        console.print()
    if verdict.get("heads"):
        _print_ranked(console, verdict, findings["heads"], verbose)
        console.print()


def print_state_map(console: Console, findings: Mapping[str, Any]) -> None:
    """Print the map of the states."""
    console.print(state_map(findings["heads"], state_looks(findings["thresholds"], withdrawn_states(findings))))
    console.print()


def print_details(console: Console, findings: Mapping[str, Any]) -> None:
    """Print all findings, the most pressing first, the tests of the labels in words, and the heads left out."""
    console.print(Text("Findings", style="bold"))
    for position, finding in enumerate(findings["findings"]):
        console.print(Group(Text(), _finding(finding)) if position else _finding(finding))
    if findings["verification"]:
        console.print()
        console.print(_predictions(findings["verification"]))
    for head in findings["skipped_heads"]:
        words = f"{head_name(head['layer'], head['head'])} not diagnosed: {head['reason']}"
        console.print(paragraph(words, style="dim"))


def _print_ranked(console: Console, verdict: dict[str, Any], heads: list[dict[str, Any]], verbose: bool) -> None:
    """The heads that matter most in a table; the first of them, or all, in words."""
    evidence = {(head["layer"], head["head"]): head["evidence"] for head in heads}
    ranked = verdict["heads"]
    by = "kl" if ranked[0]["kl"] is not None else "residual_change"
    if ranked[0][by] is None:
        by = "error_top_share"
    title = verdict.get("heads_title") or "The heads that matter most"
    ranked_by = f"{'. R' if verdict.get('heads_note') else ', r'}anked by {label(by)}: {verdict['ranked_by']}"
    console.print(paragraph(Text.assemble((title, "bold"), ranked_by)))
    if verdict.get("heads_note"):
        console.print(paragraph(verdict["heads_note"], 2, "! ", "bold"))
    made = table(["", "Head", "State", label(by), label("tokens_needed"), "What to do"], (0, 1, 2, 5))
    for rank, one in enumerate(ranked, 1):
        numbers = evidence[one["layer"], one["head"]]
        value = one[by] if by in one else numbers[by]
        cells = [measured(by, value), measured("tokens_needed", numbers["tokens_needed"])]
        add_row(made, f"{rank}.", one["name"], one["state"] or NO_LABEL, *cells, one["what"])
    console.print(made)
    for one in ranked if verbose else ranked[:1]:
        console.print(paragraph(" ".join(filter(None, (one["why"], one["when"]))), 2, f"{one['name']}  "))
    if verdict.get("heads_when"):
        console.print(paragraph(f"They matter {_lower(verdict['heads_when'])}", 2))
    if not verbose and len(ranked) > 1:
        console.print(paragraph(f"The others in words: {parameter('verbose', True)}, or the report.", 2, style="dim"))


def _lower(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]


def _tests(checked: dict[str, Any], held_ratio: float) -> RenderableType:
    """The tests of the labels inside the model, one line each."""
    where = f"{counted(checked['windows'], 'other window')} of {checked['length']:,} tokens"
    made = table(["Label", "Heads", "Result", "Measured"], range(4))
    for one in checked["predictions"]:
        result = Text("held", "green") if one["held"] else Text("withdrawn", "red")
        add_row(made, one["state"], str(one["heads"]), result, times(one))
    note = (
        "Measured: how many times as much the label's rule changes the next-token distribution (KL) in heads where it "
        f"should as in heads where it should not. Accepted: at least {held_ratio:g} times, and more than 1 in every "
        "window."
    )
    return Group(titled(f"Labels tested inside the model, on {where}", made), paragraph(note, style="dim"))


def _predictions(checked: dict[str, Any]) -> RenderableType:
    """Whether the predictions of the labels held inside the model, in words."""
    heading = (
        "The labels inside the model: a label names a rule that should be enough for its heads and not for others; "
        f"measured on {counted(checked['windows'], 'held-out window')} of {checked['length']:,} tokens, as KL "
        "divergence of the next-token distribution"
    )
    tried = [paragraph(p["sentence"], 2, "+ " if p["held"] else "- ") for p in checked["predictions"]]
    untried = [
        paragraph(f"{state}: not tested, no head has this label or every head of its layers has.", 4)
        for state in checked["untested"]
    ]
    return Group(paragraph(heading, style="bold"), *tried, *untried)


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
    return Group(title, paragraph(body, 4), paragraph(finding["advice"], 4, "> ", "italic"))
