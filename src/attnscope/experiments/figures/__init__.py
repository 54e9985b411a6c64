"""The paper's figures with their data, written as SVG, PDF, PNG and Parquet.

    Evidence -> draw -> Figure (panels, caption, data) -> Figure.chart(width, titles) -> files

Rendering a chart takes longer than building it. So `charts.json` next to the images holds a digest of each chart
(data, marks, renderer) and of its images, and an unchanged chart is not rendered again. `captions.json` has the caption
of each figure; it is drawn above the figure only on request.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import vl_convert

from attnscope.experiments.figures import circle, critical, distance, gradient, separability
from attnscope.experiments.settings import FigureStyle
from attnscope.show.figures import DPI, Figure
from attnscope.store.folders import write_all
from attnscope.studies.compare import chart as capacity

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from attnscope.experiments.claims.evidence import Evidence

__all__ = ["Figure", "capacity", "draw", "draw_all", "draw_into", "render"]

PNG_DPI = 300
INDEX, CAPTIONS = "charts.json", "captions.json"


def draw(e: Evidence) -> dict[str, Figure]:
    """The figures by name, for one kind of vectors with or without the first key."""
    figures = {
        "figure-2a": distance.against_length(e),
        "figure-2b": distance.against_n(e),
        "figure-2c": critical.figure(e),
        "figure-3": separability.figure(e),
        "figure-4": gradient.figure(e),
    }
    tokens = e.tables["circle"]
    if e.sink == "kept" and not tokens.is_empty() and tokens["vectors"][0] == e.vectors:
        figures = {"figure-1": circle.figure(tokens), **figures}
    return figures


def draw_all(folder: Path, readings: Sequence[Evidence], style: FigureStyle) -> dict[str, dict[str, str]]:
    """Write every figure of every reading; returns the paths of the files by reading and file name."""
    written: dict[str, dict[str, str]] = {}
    for e in readings:
        reading = e.vectors if e.sink == "kept" else f"{e.vectors}-without-first-key"
        target = folder / reading
        written[reading] = {name: str(target / name) for name in draw_into(target, draw(e), style)}
    return written


def draw_into(folder: Path, figures: Mapping[str, Figure], style: FigureStyle) -> list[str]:
    """Write the figures with their data and captions, rendering those that changed; returns the names of the files."""
    rendered, index = _index(folder), {}
    files: dict[str, Callable[[Path], object]] = {}
    names = []
    for name, figure in figures.items():
        specification = json.dumps(figure.chart(style.width, style.titles).to_dict(validate=False), sort_keys=True)
        key = _digest(f"{version('vl-convert-python')} {PNG_DPI} {specification}".encode())
        pictures = [f"{name}.svg", f"{name}.pdf", f"{name}.png"]
        if rendered.get(name, {}).get("chart") != key or rendered[name]["pictures"] != _digests(folder, pictures):
            bodies = dict(zip(pictures, render(specification), strict=True))
            files |= {file: partial(_write, body=body) for file, body in bodies.items()}
            rendered[name] = {"chart": key, "pictures": [_digest(body) for body in bodies.values()]}
        index[name] = rendered[name]
        files[f"{name}.parquet"] = figure.data.write_parquet
        names += [*pictures, f"{name}.parquet"]
    texts = {INDEX: index, CAPTIONS: {name: figure.caption for name, figure in figures.items()}}
    for file, content in texts.items():
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        files[file] = partial(_write, body=text.encode())
    write_all(folder, files)
    return names


def render(specification: str) -> tuple[bytes, bytes, bytes]:
    """SVG, PDF and PNG of a Vega-Lite chart in its physical size; text stays text in SVG and PDF."""
    svg = vl_convert.vegalite_to_svg(specification)
    png = vl_convert.svg_to_png(svg, scale=72 / DPI, ppi=PNG_DPI)
    return svg.encode(), vl_convert.svg_to_pdf(_in_points(svg)), png


def _in_points(svg: str) -> str:
    """The image with its size in points, the unit that the conversion to PDF assumes."""
    return _SIZE.sub(lambda size: "".join(f' {side}="{float(size[side]) * 72 / DPI:g}"' for side in _SIDES), svg, 1)


_SIDES = ("width", "height")
_SIZE = re.compile(r' width="(?P<width>[\d.]+)" height="(?P<height>[\d.]+)"')


def _write(path: Path, body: bytes) -> None:
    path.write_bytes(body)


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
