"""The paper's figures, each one chart object with the data it shows: SVG, PNG and Parquet of each.

Turning a chart into a picture takes longer than making it. So `charts.json` beside the pictures has a digest of each
chart (data, marks, renderer) and of its pictures, and a chart that is the same as the one drawn is not drawn again.
"""

from __future__ import annotations

import hashlib
import json
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import vl_convert

from attnscope.experiments.figures import circle, distance, gradient, separability
from attnscope.tables import write_all

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import polars as pl

    from attnscope.experiments.claims.evidence import Evidence

SCALE = 2  # pixels of the PNG for each of the chart's
INDEX = "charts.json"


def draw(e: Evidence) -> dict[str, tuple[Any, pl.DataFrame]]:
    """Each figure's chart and data under one reading, by name."""
    found: dict[str, tuple[Any, pl.DataFrame]] = {
        "figure-2a": distance.against_length(e),
        "figure-2b": distance.against_n(e),
        "figure-2c": distance.critical(e),
        "figure-3": separability.figure(e),
        "figure-4": gradient.figure(e),
    }
    tokens = e.tables["circle"]
    if e.sink == "kept" and not tokens.is_empty() and tokens["vectors"][0] == e.vectors:
        found = {"figure-1": (circle.figure(tokens), tokens), **found}
    return found


def draw_all(folder: Path, readings: Sequence[Evidence]) -> dict[str, dict[str, str]]:
    """Write every figure of every reading; the paths of the files by reading and figure."""
    written: dict[str, dict[str, str]] = {}
    for e in readings:
        reading = e.vectors if e.sink == "kept" else f"{e.vectors}-without-first-key"
        place = folder / reading
        place.mkdir(parents=True, exist_ok=True)
        written[reading] = {name: str(place / name) for name in _draw_into(place, draw(e))}
    return written


def _draw_into(place: Path, figures: dict[str, tuple[Any, pl.DataFrame]]) -> list[str]:
    """Write the figures of one reading, drawing those that changed; the names of their files."""
    kept, index = _index(place), {}
    files: dict[str, Any] = {}
    names = []
    for name, (chart, data) in figures.items():
        specification = json.dumps(chart.to_dict(validate=False), sort_keys=True)
        key = _digest(f"{version('vl-convert-python')} {SCALE} {specification}".encode())
        pictures = [f"{name}.svg", f"{name}.png"]
        if kept.get(name, {}).get("chart") != key or kept[name]["pictures"] != _digests(place, pictures):
            svg = vl_convert.vegalite_to_svg(specification)
            drawn = {f"{name}.svg": svg.encode(), f"{name}.png": vl_convert.svg_to_png(svg, scale=SCALE)}
            files |= {file: lambda path, body=body: path.write_bytes(body) for file, body in drawn.items()}
            kept[name] = {"chart": key, "pictures": [_digest(body) for body in drawn.values()]}
        index[name] = kept[name]
        files[f"{name}.parquet"] = data.write_parquet
        names += [*pictures, f"{name}.parquet"]
    text = json.dumps(index, indent=1) + "\n"
    write_all(place, files | {INDEX: lambda path: path.write_text(text, encoding="utf-8")})
    return names


def _index(place: Path) -> dict[str, Any]:
    """What was drawn before; nothing if that cannot be read."""
    try:
        found = json.loads((place / INDEX).read_text("utf-8"))
        return {name: {"chart": one["chart"], "pictures": one["pictures"]} for name, one in found.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _digests(place: Path, names: list[str]) -> list[str] | None:
    try:
        return [_digest((place / name).read_bytes()) for name in names]
    except OSError:
        return None


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
