"""Results of `attnscope reproduce` on the server: their entry in the list, and the page of their claims and figures."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnscope.errors import OutputError
from attnscope.report.page import packed, policy
from attnscope.serve.assets import load_assets

FIGURES = "figures"
_SCRIPTS = ("format.js", "colors.js", "svg.js", "model.js", "claims.js")
_VERDICTS = ("agrees", "depends", "disagrees")


def is_reproduction(record: Mapping[str, Any]) -> bool:
    """Whether a `run.json`, or the plan of a stopped run, was written by `attnscope reproduce`."""
    settings = record.get("settings")
    return isinstance(settings, dict) and "draws" in settings


def describe(record: Mapping[str, Any], claims: Mapping[str, Any] | None) -> tuple[str, str]:
    """One line each about what was measured and how many claims have which verdict."""
    settings = record["settings"]
    size = f"reproduction: {settings['windows']} x {settings['lengths'][-1]:,} tokens"
    answers = (claims or {}).get("claims")
    counts = Counter(claim.get("verdict") for claim in answers) if isinstance(answers, list) else Counter()
    verdicts = ", ".join(f"{verdict} {counts[verdict]}" for verdict in _VERDICTS if counts[verdict])
    return size, f"{counts.total()} claims: {verdicts}" if verdicts else ""


def figures(folder: Path) -> list[str]:
    """The SVG figures of a reproduction, as paths relative to its folder; links are left out."""
    parent = folder / FIGURES
    if not parent.is_dir() or parent.is_symlink():
        return []
    readings = sorted(path for path in parent.iterdir() if path.is_dir() and not path.is_symlink())
    return [
        f"{FIGURES}/{reading.name}/{path.name}"
        for reading in readings
        for path in sorted(reading.glob("*.svg"))
        if path.is_file() and not path.is_symlink()
    ]


def captions(folder: Path) -> dict[str, str]:
    """What the figures show, by the path of the figure; those of a damaged file are left out."""
    found = {}
    for figure in figures(folder):
        reading, name = Path(figure).parent, Path(figure).stem
        try:
            caption = json.loads((folder / reading / "captions.json").read_text("utf-8"))[name]
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            continue
        if isinstance(caption, str):
            found[figure] = caption
    return found


def page(name: str, folder: Path) -> str:
    """The HTML page with the claims and figures of a reproduction."""
    try:
        run = json.loads((folder / "run.json").read_text("utf-8"))
        claims = json.loads((folder / "claims.json").read_text("utf-8"))
        describe(run, claims)  # fails on a damaged record
        record = {key: run[key] for key in ("model", "text", "settings", "finished", "attnscope")}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise OutputError(f"the reproduction {name!r} cannot be read ({type(error).__name__}); run it again") from None
    template, style, script = load_assets("reproduction", _SCRIPTS)
    data = {"run": record, "name": name, "claims": claims, "figures": figures(folder), "captions": captions(folder)}
    return template.substitute(
        policy=policy(script, style, images="'self' data:"), style=style, script=script, data=packed(data)
    )
