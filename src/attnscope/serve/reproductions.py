"""Folders of `attnscope reproduce` on the server: how they are listed, and the page of their claims and figures."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from attnscope.errors import OutputError
from attnscope.report.page import packed, policy

FIGURES = "figures"
_SCRIPTS = ("format.js", "colors.js", "svg.js", "model.js", "claims.js")
_VERDICTS = ("agrees", "depends", "disagrees")


def is_reproduction(record: Mapping[str, Any]) -> bool:
    """Whether a `run.json`, or the plan of a run that was stopped, is of `attnscope reproduce`."""
    settings = record.get("settings")
    return isinstance(settings, dict) and "draws" in settings


def told(record: Mapping[str, Any], claims: Mapping[str, Any] | None) -> tuple[str, str]:
    """What was measured, and how the claims came out, in words."""
    settings = record["settings"]
    words = f"reproduction: {settings['windows']} x {settings['lengths'][-1]:,} tokens"
    found = (claims or {}).get("claims")
    counts = Counter(claim.get("verdict") for claim in found) if isinstance(found, list) else Counter()
    shares = ", ".join(f"{verdict} {counts[verdict]}" for verdict in _VERDICTS if counts[verdict])
    return words, f"{counts.total()} claims: {shares}" if shares else ""


def figures(folder: Path) -> list[str]:
    """The pictures of a reproduction, as paths inside its folder; links are left out."""
    place = folder / FIGURES
    if not place.is_dir() or place.is_symlink():
        return []
    readings = sorted(path for path in place.iterdir() if path.is_dir() and not path.is_symlink())
    return [
        f"{FIGURES}/{reading.name}/{path.name}"
        for reading in readings
        for path in sorted(reading.glob("*.svg"))
        if path.is_file() and not path.is_symlink()
    ]


def page(name: str, folder: Path) -> str:
    """The claims and figures of a reproduction as a page of the server."""
    try:
        run = json.loads((folder / "run.json").read_text("utf-8"))
        claims = json.loads((folder / "claims.json").read_text("utf-8"))
        told(run, claims)
        shown = {"run": {key: run[key] for key in ("model", "text", "settings", "finished", "attnscope")}}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise OutputError(f"the reproduction {name!r} cannot be read ({type(error).__name__}); run it again") from None
    style, script, template = _assets()
    return template.substitute(
        policy=policy(script, style, images="'self' data:"),
        style=style,
        script=script,
        data=packed(shown | {"name": name, "claims": claims, "figures": figures(folder)}),
    )


@lru_cache
def _assets() -> tuple[str, str, Template]:
    report, own = resources.files("attnscope.report") / "web", resources.files("attnscope.serve") / "web"
    style = (report / "page.css").read_text("utf-8") + (own / "index.css").read_text("utf-8")
    script = "\n".join((report / "js" / file).read_text("utf-8") for file in _SCRIPTS)
    return (
        style,
        script + (own / "reproduction.js").read_text("utf-8"),
        Template((own / "reproduction.html").read_text()),
    )
