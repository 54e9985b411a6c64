"""Figures as SVG, PDF, PNG and Parquet, with their captions.

Rendering a chart takes longer than building it. So `charts.json` next to the images holds a digest of each chart
(data, marks, renderer) and of its images, and an unchanged chart is not rendered again. `captions.json` has the caption
of each figure; it is drawn above the figure only on request.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, get_args

import vl_convert

from attnscope.errors import InputError, parameter
from attnscope.show.figures import DPI, Figure, FigureWidth
from attnscope.store.folders import write_all

if TYPE_CHECKING:
    from pathlib import Path

PNG_DPI = 300
INDEX, CAPTIONS = "charts.json", "captions.json"
FIGURE_WIDTHS: tuple[FigureWidth, ...] = get_args(FigureWidth)


@dataclass(frozen=True)
class FigureStyle:
    """Width of the figures on the page, and whether their captions are drawn above them."""

    width: FigureWidth = "two-column"
    titles: bool = False

    def __post_init__(self) -> None:
        if self.width not in FIGURE_WIDTHS:
            raise InputError(f"{parameter('figure_width')} takes {' or '.join(FIGURE_WIDTHS)}; received {self.width!r}")


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
