"""The readings of the protocol next to what the paper prints: `protocol.html`, and the same as Markdown.

The page is one file without scripts: its policy allows no requests, one style (by its hash), and images in the page.
"""

from __future__ import annotations

import base64
import hashlib
import html
import unicodedata
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from attnscope.intervals import coverage_at_most
from attnscope.studies.paper.comparisons import (
    MARKS,
    Comparison,
    Grid,
    comparisons,
    grids,
    nearest,
    summary,
)

ENOUGH = 0.95
INTRODUCTION = (
    "The paper's appendix averages over all rows of a head and compares heads, but does not say what a causal row, the "
    "vectors and the temperature are. Each column is one possible reading. Literal rows count the keys that a row "
    "cannot see as not selected; visible rows leave them out. A number is the median over windows with its 95% "
    "interval, or the range of values if a statement is about several N, L or step sizes."
)


def protocol_page(claims: Sequence[dict[str, Any]], run: Mapping[str, Any], pictures: Mapping[str, str]) -> str:
    """The page as one HTML document; `pictures` has the SVG of each figure by its caption."""
    style = (resources.files("attnscope.studies.paper") / "web" / "protocol.css").read_text("utf-8")
    model, settings = run["model"], run["settings"]
    compared = comparisons(claims)
    title = f"{model['name']}: the paper's protocol"
    record = (
        f"{model['layers']} layers, {model['heads']} heads; {run['text']['source']}; {settings['windows']} windows of "
        f"{settings['lengths'][-1]:,} tokens; attnscope {run['attnscope']}"
    )
    share = coverage_at_most(settings["windows"])
    if share < ENOUGH:
        record += f"; intervals of so few windows contain the true median in at most {share:.0%} of cases, not in 95%"
    near = [f"Figure {one.figure}, {one.paper}: {one.label} ({one.values}; {one.verdict})" for one in nearest(compared)]
    parts = [
        f"<h1>{_text(title)}</h1>",
        f'<p class="soft">{_text(record)}</p>',
        f"<p>{_text(INTRODUCTION)}</p>",
        "<h2>What comes out</h2>",
        _list(summary(compared)),
        *(_table(grid) for grid in grids(compared)),
        "<h2>The reading that comes nearest</h2>",
        _list(near),
        "<h2>Figures</h2>",
        *(_picture(caption, svg) for caption, svg in pictures.items()),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(style)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
        f"<title>{_text(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(parts)
        + "\n</main>\n</body>\n</html>\n"
    )


def _policy(style: str) -> str:
    """A content security policy that allows nothing but this style and images embedded in the page."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"


def _table(grid: Grid) -> str:
    head = "".join(f'<th scope="col">{_text(column)}</th>' for column in grid.columns)
    lines = []
    for line in grid.lines:
        detail = f"<div>{_text(line.detail)}</div>" if line.detail else ""
        rule = f'<div class="detail">{_text(line.rule)}</div>'
        paper = f'<th scope="row">{_text(f"{line.figure}: {line.paper}")}{detail}{rule}</th>'
        lines.append(f"<tr>{paper}{''.join(map(_cell, line.cells))}</tr>")
    return (
        f'<h2>{_text(grid.title)}</h2>\n<div class="scroll"><table>\n'
        "<caption>\u2713 as the paper prints it, \u2717 not, ~ depends on the window; shaded: the nearest</caption>\n"
        f'<thead><tr><th scope="col">the paper prints</th>{head}</tr></thead>\n<tbody>\n'
        + "\n".join(lines)
        + "\n</tbody>\n</table></div>"
    )


def _cell(one: Comparison | None) -> str:
    if one is None or not one.measured:
        return "<td>-</td>"
    verdict = one.verdict or ""
    values = "; ".join(f"{m['name']}: {m['value']:.4g}" for m in one.measured)
    near = ' class="nearest"' if one.nearest else ""
    mark = f'<span class="{_text(verdict)}">{MARKS.get(verdict, "")} {_text(one.values)}</span>'
    return f'<td{near} title="{_text(values)}">{mark}</td>'


def _list(lines: Sequence[str]) -> str:
    return (
        f"<ul>{''.join(f'<li>{_text(line)}</li>' for line in lines)}</ul>" if lines else "<p>Nothing was measured.</p>"
    )


def _picture(caption: str, svg: str) -> str:
    data = base64.b64encode(svg.encode()).decode()
    image = f'<img alt="{_text(caption)}" src="data:image/svg+xml;base64,{data}">'
    return f"<figure>{image}<figcaption>{_text(caption)}</figcaption></figure>"


def _text(value: object) -> str:
    """The value as HTML text, with invisible characters and those that reorder text written as escapes."""
    shown = "".join(c if unicodedata.category(c)[0] != "C" else f"\\u{ord(c):04x}" for c in str(value))
    return html.escape(shown)


def markdown_tables(compared: Sequence[Comparison]) -> str:
    """The grids as Markdown tables; the nearest reading of a statement is in bold."""
    parts = []
    for grid in grids(compared):
        parts += [f"**{grid.title}**", "", f"| the paper prints | {' | '.join(grid.columns)} |"]
        parts.append("|---|" + "---|" * len(grid.columns))
        for line in grid.lines:
            paper = f"{line.figure}: {line.paper}" + (f" ({line.detail})" if line.detail else "")
            parts.append(f"| {paper} | {' | '.join(map(_markdown_cell, line.cells))} |")
        parts.append("")
    return "\n".join(parts)


def _markdown_cell(one: Comparison | None) -> str:
    if one is None or not one.measured:
        return "-"
    text = f"{MARKS.get(one.verdict or '', '')} {one.values}"
    return f"**{text}**" if one.nearest else text


FORMS = ("printed", "corrected")


def claims_markdown(claims: Sequence[dict[str, Any]]) -> str:
    """One line per claim: measurements and verdicts of its printed and corrected form in the reading that comes nearest
    to the paper (for the corrected form: the first), then the overall verdict.
    """
    lines = [
        "| claim | place | printed form: measured | | corrected form: measured | | overall |",
        "|---|---|---|---|---|---|---|",
    ]
    for claim in claims:
        cells = []
        for form in FORMS:
            reading = shown_reading(claim, form)
            cells += [numbers(reading["measured"]), verdict_text(reading)] if reading else ["the same", "-"]
        verdict = claim["verdict"] + (f" on {', '.join(claim['depends_on'])}" if claim["depends_on"] else "")
        lines.append(f"| {_bars(claim['claim'])} | {claim['place']} | {' | '.join(map(_bars, cells))} | {verdict} |")
    return "\n".join(lines) + "\n"


def shown_reading(claim: Mapping[str, Any], form: str) -> dict[str, Any] | None:
    """The reading of a form that comes nearest to the paper, or else the first that was measured."""
    of_form: list[dict[str, Any]] = [one for one in claim["readings"] if one["form"] == form]
    measured = [one for one in of_form if one["measured"]]
    return next((one for one in (measured or of_form) if one["nearest"]), next(iter(measured or of_form), None))


def numbers(measured: list[dict[str, Any]]) -> str:
    """The measurements of a form as text: a single one with its interval, else the first three values."""
    if not measured:
        return "not measured"
    if len(measured) == 1:
        return f"{measured[0]['name']}: {value(measured[0])}"
    more = "; ..." if len(measured) > 3 else ""
    return "; ".join(f"{one['name']}: {one['value']:.3g}" for one in measured[:3]) + more


def value(measured: dict[str, Any]) -> str:
    """The value of a measurement with its interval."""
    if measured["interval"] is None:
        return f"{measured['value']:.3g} (one window)"
    low, high = measured["interval"]
    return f"{measured['value']:.3g} ({low:.3g} to {high:.3g})"


def verdict_text(reading: dict[str, Any]) -> str:
    """The verdict of a reading, with what it depends on or the N, eps or T at which the claim fails."""
    verdict = reading["verdict"] or "-"
    if verdict == "depends":
        return f"depends on {', '.join(reading['depends_on'])}"
    failed = reading["fails_at"]
    return f"{verdict} at {_conditions(failed)}" if failed and reading["holds_at"] else verdict


def _conditions(conditions: list[str]) -> str:
    """The conditions joined by commas, "N = 16, N = 32" shortened to "N = 16, 32"."""
    pairs = [condition.split(" = ") for condition in conditions]
    if all(len(pair) == 2 and pair[0] == pairs[0][0] for pair in pairs):
        return f"{pairs[0][0]} = {', '.join(pair[1] for pair in pairs)}"
    return ", ".join(conditions)


def _bars(text: str) -> str:
    """The text with the bars of norms replaced, which would end a table cell."""
    for inner in ("alpha_i x_i", "alpha x"):
        text = text.replace(f"|{inner}|", f"\u2016{inner}\u2016")
    return text
