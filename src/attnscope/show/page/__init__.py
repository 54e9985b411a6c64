"""The live pages, of a scan and of a training run: one HTML file each, readable from disk with no network.

The data is packed JSON in base64, so nothing in it (model names, paths, tokens) can end its element or be taken
for markup, and the script writes all of it as text. The page's policy allows no request at all, and no script or
style but those of the page, named by their hashes.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
from functools import cache
from importlib import resources
from string import Template
from typing import Any

from attnscope.show.html import policy

# In the order in which they use each other.
_DRAWING = ("format", "colors", "svg", "axes", "charts", "model", "hints", "states", "fields", "map")
_SCAN = (
    *("text", "pattern", "head_words", "head_charts", "horizon", "head_tables", "panel", "verdict", "findings"),
    *("verification", "list", "compare", "controls", "model_charts", "claims", "run_facts", "printing", "main"),
)
_TRAINING = ("training_run", "curves", "steps", "alarms", "live", "main")


def scan_page(data: dict[str, Any], other: dict[str, Any] | None = None, links: dict[str, Any] | None = None) -> str:
    """The page for the data of one scan, or of two to compare; `links` lead to other pages of a server."""
    style, script = asset("page.css"), _scripts("js", _DRAWING + _SCAN)
    return Template(asset("page.html")).substitute(
        title=html.escape(f"{data['run']['model']['name']}: attention report"),
        policy=policy(script, style),
        style=style,
        script=script,
        data=packed(data),
        other="" if other is None else packed(other),
        links=packed(links or {}),
    )


def training_page(data: dict[str, Any], links: dict[str, str] | None = None) -> str:
    """The page for the data of a training run; `links` lead to a server's list of runs, new data and events."""
    style = asset("page.css") + asset("training/training.css")
    script = f"{_scripts('js', _DRAWING)}\n{_scripts('training', _TRAINING)}"
    return Template(asset("training/training.html")).substitute(
        title=html.escape(f"{data['run']['model']['name']}: training run"),
        policy=policy(script, style, "; connect-src 'self'" if links else ""),
        style=style,
        script=script,
        data=packed(data),
        links=packed(links or {}),
    )


def packed(value: object) -> str:
    """JSON, compressed, in base64."""
    content = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()


def unpacked(text: str) -> Any:
    """The value that `packed` encoded."""
    return json.loads(gzip.decompress(base64.b64decode(text)))


@cache
def asset(name: str) -> str:
    """A file of this folder, as text."""
    return (resources.files(__name__) / name).read_text("utf-8")


def _scripts(folder: str, names: tuple[str, ...]) -> str:
    return "\n".join(asset(f"{folder}/{name}.js") for name in names)
