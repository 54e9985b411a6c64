"""The paper's figures from the tables of last rows.

Evidence -> draw -> Figure (panels, caption, data) -> Figure.chart(width, titles) -> files
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.experiments.figures import circle, critical, distance, gradient, separability
from attnscope.show.figure_files import draw_into
from attnscope.show.figures import Figure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from attnscope.show.figure_files import FigureStyle
    from attnscope.studies.paper.evidence import Evidence


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
