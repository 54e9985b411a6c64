"""The words and pictures of a diagnosis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attnscope.columns import head_name
from attnscope.diagnosis.states import NO_LABEL
from attnscope.report.states import state_looks, withdrawn_states
from attnscope.report.terminal import short_path
from attnscope.results import html
from attnscope.results.heat_map import UNKNOWN, Cell, head_map
from attnscope.results.words import counted, number

if TYPE_CHECKING:
    from rich.console import Console

    from attnscope.diagnosis.result import Diagnosis


def lines(result: Diagnosis) -> list[str]:
    """The repr: what was run, the verdict, how far to trust it, the findings, what to call next."""
    agreed = result["agreement"]
    kappa = "" if agreed["kappa"] is None else f" (kappa {agreed['kappa']:.2f})"
    trust = f"Labels from the two halves of the windows agree for {agreed['share']:.0%} of the heads{kappa}"
    checked = result["verification"]
    if checked:
        held = sum(one["held"] for one in checked["predictions"])
        trust += f"; inside the model {held} of {len(checked['predictions'])} held"
    titles = [one["title"] for one in result["findings"]]
    return [
        f"Diagnosis: {_subject(result)}",
        *verdict_lines(result),
        trust,
        f"{counted(len(titles), 'finding')}, the first: {titles[0]}" if titles else "No findings",
        'Next: .summary(), .heads, ["findings"], .plot.map("tokens_needed"), .show()',
    ]


def body(result: Diagnosis) -> str:
    """The notebook output: verdict, map of the states, findings."""
    return "".join(
        [
            html.heading("Diagnosis", _subject(result)),
            verdict_html(result),
            f'<div class="maps">{state_map(result)}</div>',
            ranked_html(result),
            "<h4>Findings</h4>",
            html.listed((one["title"] for one in result["findings"]), "ol"),
            html.calls(".summary()", ".heads", '["findings"]', '.plot.map("tokens_needed")', ".show()"),
        ]
    )


def print_summary(console: Console, result: Diagnosis, verbose: bool) -> None:
    """What `attnscope scan --diagnose` prints of it."""
    from attnscope.report.diagnosis import print_findings

    print_findings(console, result.content, verbose)


def pictures(result: Diagnosis) -> dict[str, Any]:
    """The charts of the page of `show`."""
    return {"States": result.plot.map("state"), "Tokens needed": result.plot.map("tokens_needed")}


def verdict_lines(findings: Diagnosis) -> list[str]:
    """The verdict in lines of a repr."""
    verdict = findings["verdict"]
    ranked = [one["name"] for one in verdict.get("heads", ())]  # older findings rank no heads
    found = [f"Verdict: {findings.headline}", f"States: {state_counts(findings)}"]
    found += [f"{_ranked_title(verdict)}: {', '.join(ranked)}"] if ranked else []
    step = verdict.get("next")
    return [*found, f"Suggested: {step['python']}"] if step else found


def state_counts(findings: Diagnosis) -> str:
    """How many heads have each state, in words."""
    counts = findings.heads["state"].fill_null(NO_LABEL).value_counts().sort("count", "state", descending=[True, False])
    return ", ".join(f"{count} {state}" for state, count in counts.iter_rows())


def verdict_html(findings: Diagnosis) -> str:
    """The verdict and its groups of heads."""
    verdict = findings["verdict"]
    groups = [one["sentence"] for one in (*verdict["groups"], *verdict.get("withdrawn", ()))]
    warnings = "".join(f"<p><b>{html.escape(warning)}</b></p>" for warning in verdict.get("warnings", ()))
    trust = f'<p class="soft">{html.escape(verdict["trust"])}</p>'
    return f'<p class="verdict">{html.escape(findings.headline)}</p>{warnings}{html.listed(groups)}{trust}'


def ranked_html(findings: Diagnosis) -> str:
    """The heads that matter most, why, and what to do; nothing for findings of older versions."""
    verdict = findings["verdict"]
    lines = [f"{one['name']}: {one['why']} {one['what']}" for one in verdict.get("heads", ())]
    if not lines:
        return ""
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in [verdict.get("heads_note")] if note)
    return f"<h4>{html.escape(_ranked_title(verdict))}</h4>{notes}{html.listed(lines, 'ol')}"


def _ranked_title(verdict: Mapping[str, Any]) -> str:
    """The title of the ranked heads; older findings have none."""
    return verdict.get("heads_title") or "The heads that matter most"


def state_map(findings: Diagnosis) -> str:
    """A cell for each head in the color of its state, and what the colors mean."""
    looks = state_looks(findings["thresholds"], withdrawn_states(findings.content))
    cells = {}
    for line in findings.heads.iter_rows(named=True):
        state = line["state"] or NO_LABEL
        look = looks.get(state, {"color": UNKNOWN, "mark": ""})
        words = f"{head_name(line['layer'], line['head'])} {state}, needs {number(line['tokens_needed'])} tokens"
        cells[line["layer"], line["head"]] = Cell(look["color"], words, look["mark"])
    present = set(findings.heads["state"].fill_null(NO_LABEL))
    key = "".join(
        f'<div><span class="key" style="background:{look["color"]}"></span>'
        f"{html.escape(state)}: {html.escape(look['short'])}</div>"
        for state, look in looks.items()
        if state in present
    )
    return f"<div><h4>State</h4>{head_map(cells, 'Map of the heads: state')}<div>{key}</div></div>"


def _subject(result: Diagnosis) -> str:
    model = result.get("model")  # older findings do not name it
    what = f"{short_path(model)} on {short_path(result['text'])}; " if model else ""
    windows = counted(result["windows"], "window")
    return f"{what}{counted(len(result['heads']), 'head')}, {windows} of {result['length']:,} tokens"
