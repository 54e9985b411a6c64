"""The report: one HTML file with everything inside, readable from disk with no network.

Text from outside (model names, paths) is escaped wherever it goes: as HTML in the page, and in the embedded
JSON so that nothing in it can close its script element.
"""

from __future__ import annotations

import html
import json
from importlib import resources
from string import Template
from typing import TYPE_CHECKING, Any

from attnscope.report import overview

if TYPE_CHECKING:
    import polars as pl


def render(rows: pl.DataFrame, topn: pl.DataFrame, run: dict[str, Any]) -> str:
    """The report of a run as one HTML document."""
    import vl_convert

    from attnscope.report.charts import overview_chart

    template = Template((resources.files("attnscope.report") / "page.html").read_text("utf-8"))
    chart = {} if topn.is_empty() else overview_chart(rows, topn, run).to_dict()
    return template.substitute(
        title=html.escape(f"attnscope: {run['model']['name']}"),
        model=html.escape(run["model"]["name"]),
        facts=_facts(run),
        skipped=_skipped(run),
        by_n="" if topn.is_empty() else _table(overview.median_by_n(topn, run), _BY_N),
        by_length="" if rows.is_empty() else _table(overview.median_by_length(rows, run), _BY_LENGTH),
        chart=_script_json(chart),
        run=_script_json(run),
        library=vl_convert.javascript_bundle(),  # type: ignore[call-arg]  # optional, whatever the stub says
    )


_BY_N = {
    "n": "N",
    "top_mass": "weight of the top set",
    "distance": "distance",
    "distance_lower": "proved lower",
    "distance_upper": "proved upper",
    "distance_bound_printed": "printed bound",
    "expected_lower": "random set, lower",
    "expected_upper": "random set, upper",
    "expected_printed": "random set, printed",
    "separability": "separability",
    "separability_q05": "5% of heads below",
    "separability_q95": "5% of heads above",
}
_BY_LENGTH = {
    "length": "length",
    "entropy_ratio": "entropy / ln L",
    "max_weight": "largest weight",
    "sink_weight": "weight of the first key",
    "participation": "tokens in use",
    "jacobian_norm": "Jacobian norm",
}


def _facts(run: dict[str, Any]) -> str:
    """How it was run, as a definition list."""
    model, text, settings = run["model"], run["text"], run["settings"]
    heads = sum(entry["heads"] for entry in model["heads"])
    facts = {
        "model": f"{model['name']} ({model['family']}, {len(model['heads'])} layers, {heads} heads)",
        "revision": model["revision"] or "local",
        "weights": f"{model['parameters']:,} parameters in {model['dtype']} on {model['device']}",
        "text": f"{text['source']}, {text['tokens']:,} tokens, SHA-256 {text['sha256'][:16]}",
        "windows": f"{settings['windows']} of {settings['length']:,} tokens",
        "lengths": ", ".join(f"{length:,}" for length in settings["lengths"]),
        "rows": str(settings["rows"]),
        "vectors": settings["vectors"],
        "time": f"{run['timings']['scan_seconds']:.1f} s, finished {run['finished']}",
        "attnscope": run["attnscope"],
    }
    return "".join(f"<dt>{html.escape(key)}</dt><dd>{html.escape(value)}</dd>" for key, value in facts.items())


def _skipped(run: dict[str, Any]) -> str:
    if not run["skipped_heads"]:
        return ""
    lines = "".join(
        f"<li>layer {head['layer']}, head {head['head']}: {html.escape(head['reason'])}</li>"
        for head in run["skipped_heads"]
    )
    return f'<section class="warning"><h2>Heads left out</h2><ul>{lines}</ul></section>'


def _table(table: pl.DataFrame, columns: dict[str, str]) -> str:
    head = "".join(f'<th scope="col">{html.escape(label)}</th>' for label in columns.values())
    body = "".join(
        "<tr>" + "".join(f"<td>{_number(value)}</td>" for value in line) + "</tr>"
        for line in table.select(*columns).iter_rows()
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _number(value: float | int | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _script_json(value: object) -> str:
    """JSON that is safe inside a script element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
