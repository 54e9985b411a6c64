"""The report: one HTML file with everything inside, readable from disk with no network.

The data is packed JSON in base64, so nothing in it (model names, paths, tokens) can end its element or be taken
for markup, and the script writes all of it as text. The page's policy allows no request at all, and no script or
style but those of the page, named by their hashes.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
from importlib import resources
from string import Template
from typing import TYPE_CHECKING, Any

from attnscope.report.data import page_data

if TYPE_CHECKING:
    from attnscope.report.overview import Overview
    from attnscope.store.tables import TokenWeights

# In the order in which they use each other.
_SCRIPTS = (
    "format.js",
    "colors.js",
    "svg.js",
    "axes.js",
    "charts.js",
    "model.js",
    "hints.js",
    "states.js",
    "fields.js",
    "map.js",
    "text.js",
    "pattern.js",
    "head_words.js",
    "head_charts.js",
    "horizon.js",
    "head_tables.js",
    "panel.js",
    "verdict.js",
    "findings.js",
    "verification.js",
    "list.js",
    "compare.js",
    "controls.js",
    "model_charts.js",
    "claims.js",
    "run_facts.js",
    "printing.js",
    "main.js",
)


def render(
    view: Overview,
    findings: dict[str, Any] | None = None,
    token_weights: TokenWeights | None = None,
    claims: dict[str, Any] | None = None,
    horizon: dict[str, Any] | None = None,
) -> str:
    """The report of a run as one HTML document."""
    return document(page_data(view, findings, token_weights, claims) | {"horizon": horizon})


def document(data: dict[str, Any], other: dict[str, Any] | None = None, links: dict[str, Any] | None = None) -> str:
    """The page for the data of one run, or of two to compare; `links` lead to other pages of a server."""
    name = str(data["run"]["model"]["name"])
    style, script = asset("page.css"), "\n".join(asset(f"js/{file}") for file in _SCRIPTS)
    return Template(asset("page.html")).substitute(
        title=html.escape(f"{name}: attention report"),
        policy=policy(script, style),
        style=style,
        script=script,
        data=packed(data),
        other="" if other is None else packed(other),
        links=packed(links or {}),
    )


def policy(script: str, style: str, more: str = "", images: str = "data: blob:") -> str:
    """A content security policy that lets nothing run or load but this script and this style."""
    return (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src {images}; "
        f"base-uri 'none'; form-action 'none'{more}"
    )


def packed(value: object) -> str:
    """JSON, compressed, in base64."""
    content = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()


def unpacked(text: str) -> Any:
    """The value that `packed` encoded."""
    return json.loads(gzip.decompress(base64.b64decode(text)))


def asset(name: str) -> str:
    """A file of `web/`, as text."""
    return (resources.files("attnscope.report") / "web" / name).read_text("utf-8")


def _digest(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"
