"""The paper's figures, each one chart object with the data it shows: SVG, PNG and Parquet of each."""

from __future__ import annotations

import json
from itertools import product
from typing import TYPE_CHECKING, Any

import vl_convert

from attnscope.experiments.claims.evidence import Evidence
from attnscope.experiments.figures import circle, distance, gradient, separability
from attnscope.experiments.settings import SINKS
from attnscope.tables import write_all

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl

SCALE = 2  # pixels of the PNG for each of the chart's


def draw(tables: dict[str, pl.DataFrame], vectors: str, sink: str) -> dict[str, tuple[Any, pl.DataFrame]]:
    """Each figure's chart and data under one reading, by name."""
    e = Evidence(tables, vectors, sink)
    found: dict[str, tuple[Any, pl.DataFrame]] = {
        "figure-2a": distance.against_length(e),
        "figure-2b": distance.against_n(e),
        "figure-2c": distance.critical(e),
        "figure-3": separability.figure(e),
        "figure-4": gradient.figure(e),
    }
    tokens = tables["circle"]
    if sink == "kept" and not tokens.is_empty() and tokens["vectors"][0] == vectors:
        found = {"figure-1": (circle.figure(tokens), tokens), **found}
    return found


def draw_all(folder: Path, tables: dict[str, pl.DataFrame], run: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Write every figure of every reading; the paths of the files by reading and figure."""
    written: dict[str, dict[str, str]] = {}
    for vectors, sink in product(run["settings"]["vectors"], SINKS):
        reading = vectors if sink == "kept" else f"{vectors}-without-first-key"
        place = folder / reading
        place.mkdir(parents=True, exist_ok=True)
        files: dict[str, Any] = {}
        for name, (chart, data) in draw(tables, vectors, sink).items():
            specification = json.dumps(chart.to_dict())
            svg = vl_convert.vegalite_to_svg(specification)
            png = vl_convert.svg_to_png(svg, scale=SCALE)
            files[f"{name}.svg"] = lambda path, svg=svg: path.write_text(svg, encoding="utf-8")
            files[f"{name}.png"] = lambda path, png=png: path.write_bytes(png)
            files[f"{name}.parquet"] = data.write_parquet
        write_all(place, files)
        written[reading] = {name: str(place / name) for name in files}
    return written
