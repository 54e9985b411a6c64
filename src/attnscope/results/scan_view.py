"""The words and pictures of a scan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnscope import columns
from attnscope.results import html
from attnscope.results.diagnosis_view import ranked_html, state_map, verdict_html, verdict_lines
from attnscope.results.heat_map import Cell, color_of, head_map, scale_key
from attnscope.results.words import counted, measured, model_name, subject
from attnscope.scanning import overview

if TYPE_CHECKING:
    from rich.console import Console

    from attnscope.scanning.result import ScanResult

KEY_NUMBERS = ("separability", "participation", "sink_weight", "jacobian_norm")


def lines(result: ScanResult) -> list[str]:
    """The repr: what was run, the verdict, key numbers, what to call next."""
    found = [f"ScanResult: {model_name(result.run)}, {subject(result.run)}"]
    if result.findings is not None:
        found += verdict_lines(result.findings)
    if not result.heads.is_empty():
        found.append(f"Median over heads {overview.shown_rows(result.run)}: {', '.join(_medians(result))}")
    if result.skipped_heads:
        found.append(f"Left out: {counted(len(result.skipped_heads), 'head')} (.skipped_heads has the reasons)")
    if result.findings is None:
        found.append("Without labels: attnscope.scan(..., diagnose=True) says which heads need many tokens.")
    findings = "" if result.findings is None else ".findings, "
    calls = f'.summary(), .heads, .head(layer, head), {findings}.plot.map("separability"), .show(), .save(folder)'
    return [*found, f"Next: {calls}"]


def body(result: ScanResult) -> str:
    """The notebook output: verdict, maps, key numbers."""
    parts = [html.heading(f"Scan of {model_name(result.run)}", subject(result.run))]
    findings = result.findings
    if findings is not None:
        parts.append(verdict_html(findings))
    if not result.heads.is_empty():
        maps = [state_map(findings)] if findings is not None else []
        parts.append(f'<div class="maps">{"".join([*maps, _separability_map(result)])}</div>')
        medians = f"Median over heads {overview.shown_rows(result.run)}: {', '.join(_medians(result))}"
        parts.append(f"<p>{html.escape(medians)}</p>")
    if findings is not None:
        parts.append(ranked_html(findings))
    if result.skipped_heads:
        parts.append(f"<p>{counted(len(result.skipped_heads), 'head')} left out: <code>.skipped_heads</code></p>")
    more = [] if findings is None else [".findings"]
    parts.append(
        html.calls(".summary()", ".heads", ".head(layer, head)", *more, '.plot.map("participation")', ".show()")
    )
    return "".join(parts)


def print_summary(console: Console, result: ScanResult, verbose: bool) -> None:
    """What `attnscope scan` prints."""
    from attnscope.report.summary import print_summary as print_scan

    print_scan(console, result.overview, result.findings, verbose)


def pictures(result: ScanResult) -> dict[str, Any]:
    """None: a scan has a report."""
    return {}


def _medians(result: ScanResult) -> list[str]:
    n = result.overview.n
    medians: dict[str, Any] = {name: result.heads[name].median() for name in KEY_NUMBERS}
    return [f"{columns.label(name, n)} {measured(name, median)}" for name, median in medians.items()]


def _separability_map(result: ScanResult) -> str:
    n = result.overview.n
    cells = {
        (layer, head): Cell(color_of(value), f"{columns.head_name(layer, head)} {measured('separability', value)}")
        for layer, head, value in result.heads.select("layer", "head", "separability").iter_rows()
    }
    title = columns.label("separability", n)
    drawn = head_map(cells, f"Map of the heads: {title}") + scale_key("0%", "100%")
    return f"<div><h4>{html.escape(title)}</h4>{drawn}</div>"
