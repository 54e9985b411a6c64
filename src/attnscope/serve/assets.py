"""Templates, style sheets and scripts of the server's pages."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from string import Template
from typing import NamedTuple


class Assets(NamedTuple):
    """The parts of a page: its template, and the style and script to be inlined into it."""

    template: Template
    style: str
    script: str


@lru_cache
def load_assets(page: str, report_scripts: tuple[str, ...]) -> Assets:
    """The assets of one of the server's pages, whose script follows `report_scripts` of the report."""
    report, serve = resources.files("attnscope.report") / "web", resources.files("attnscope.serve") / "web"
    scripts = [*(report / "js" / name for name in report_scripts), serve / f"{page}.js"]
    return Assets(
        Template((serve / f"{page}.html").read_text("utf-8")),
        (report / "page.css").read_text("utf-8") + (serve / "index.css").read_text("utf-8"),
        "\n".join(script.read_text("utf-8") for script in scripts),
    )
