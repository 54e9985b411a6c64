"""The files made from the tables of a protocol run: figures and `protocol.html`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnscope.experiments.protocol_report.figures import draw_protocol
from attnscope.experiments.protocol_report.page import protocol_page
from attnscope.show.figure_files import draw_into
from attnscope.store.folders import write_all

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import polars as pl

    from attnscope.show.figure_files import FigureStyle

PAGE = "protocol.html"
FOLDER = "protocol"


def write_protocol(
    folder: Path,
    tables: dict[str, pl.DataFrame],
    claims: list[dict[str, Any]],
    run: Mapping[str, Any],
    style: FigureStyle,
) -> dict[str, str]:
    """Draw the figures into `figures/protocol` and write `protocol.html`; returns the paths of the figures' files.

    `claims` are those of `answer_protocol`, alone or combined with the answers of the last rows.
    """
    target = folder / "figures" / FOLDER
    target.mkdir(parents=True, exist_ok=True)
    figures = draw_protocol(tables)
    files = draw_into(target, figures, style)
    pictures = {figure.caption: (target / f"{name}.svg").read_text("utf-8") for name, figure in figures.items()}
    page = protocol_page(claims, run, pictures)
    write_all(folder, {PAGE: lambda path: path.write_text(page, encoding="utf-8")})
    return {name: str(target / name) for name in files}
