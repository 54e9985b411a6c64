"""The paper's figures as charts with their data, written as SVG, PNG and Parquet.

Rendering a chart takes longer than building it. So `charts.json` next to the images holds a digest of each chart
(data, marks, renderer) and of its images, and an unchanged chart is not rendered again.
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

SCALE = 2  # pixels of the PNG per pixel of the chart
INDEX = "charts.json"


def draw(e: Evidence) -> dict[str, tuple[Any, pl.DataFrame]]:
    """The chart and data of each figure, by name, for one kind of vectors with or without the first key."""
    figures: dict[str, tuple[Any, pl.DataFrame]] = {
        "figure-2a": distance.against_length(e),
        "figure-2b": distance.against_n(e),
        "figure-2c": distance.critical(e),
        "figure-3": separability.figure(e),
        "figure-4": gradient.figure(e),
    }
    tokens = e.tables["circle"]
    if e.sink == "kept" and not tokens.is_empty() and tokens["vectors"][0] == e.vectors:
        figures = {"figure-1": (circle.figure(tokens), tokens), **figures}
    return figures


def draw_all(folder: Path, readings: Sequence[Evidence]) -> dict[str, dict[str, str]]:
    """Write every figure of every reading; returns the paths of the files by reading and figure."""
    written: dict[str, dict[str, str]] = {}
    for e in readings:
        reading = e.vectors if e.sink == "kept" else f"{e.vectors}-without-first-key"
        target = folder / reading
        written[reading] = {name: str(target / name) for name in draw_into(target, draw(e))}
    return written


def draw_into(folder: Path, figures: dict[str, tuple[Any, pl.DataFrame]]) -> list[str]:
    """Write charts and their data by name, rendering those that changed; returns the names of the files."""
    rendered, index = _index(folder), {}
    files: dict[str, Any] = {}
    names = []
    for name, (chart, data) in figures.items():
        specification = json.dumps(chart.to_dict(validate=False), sort_keys=True)
        key = _digest(f"{version('vl-convert-python')} {SCALE} {specification}".encode())
        pictures = [f"{name}.svg", f"{name}.png"]
        if rendered.get(name, {}).get("chart") != key or rendered[name]["pictures"] != _digests(folder, pictures):
            svg = vl_convert.vegalite_to_svg(specification)
            drawn = {f"{name}.svg": svg.encode(), f"{name}.png": vl_convert.svg_to_png(svg, scale=SCALE)}
            files |= {file: lambda path, body=body: path.write_bytes(body) for file, body in drawn.items()}
            rendered[name] = {"chart": key, "pictures": [_digest(body) for body in drawn.values()]}
        index[name] = rendered[name]
        files[f"{name}.parquet"] = data.write_parquet
        names += [*pictures, f"{name}.parquet"]
    text = json.dumps(index, indent=1) + "\n"
    write_all(folder, files | {INDEX: lambda path: path.write_text(text, encoding="utf-8")})
    return names


def _index(folder: Path) -> dict[str, Any]:
    """The digests of the charts and images of an earlier run; empty if they cannot be read."""
    try:
        index = json.loads((folder / INDEX).read_text("utf-8"))
        return {name: {"chart": one["chart"], "pictures": one["pictures"]} for name, one in index.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _digests(folder: Path, names: list[str]) -> list[str] | None:
    try:
        return [_digest((folder / name).read_bytes()) for name in names]
    except OSError:
        return None


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
