"""Scan a model: measure every head on a text or on tensors, and fill the tables.

`running.py` holds `scan`, which plans what the engine runs on a text or on tensors; `measuring.py` measures attention
calls and makes tables and patterns of them; `result.py` holds the result, `options.py` what can be asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope._process import lazy
from attnscope.store.kinds import Description, Kind

if TYPE_CHECKING:
    from attnscope.progress import Progress as Progress, Step as Step
    from attnscope.scanning.result import ScanResult as ScanResult
    from attnscope.scanning.running import scan as scan

_NAMES = {
    "Progress": "attnscope.progress",
    "ScanResult": "attnscope.scanning.result",
    "Step": "attnscope.progress",
    "scan": "attnscope.scanning.running",
}


def describe(folder: Path, run: Mapping[str, Any]) -> Description:
    """One scan as a line of a list; its verdict is the headline of the diagnosis, if it has one."""
    from attnscope.diagnosis import headline

    settings = run["settings"]
    rows = "last rows" if settings.get("rows", "last") == "last" else f"{settings['rows']} rows"
    size = f"{settings['windows']:,} x {settings['length']:,} tokens, {rows}"
    return Description(run["model"]["name"], run["text"]["source"], size, headline(folder), run["finished"])


KINDS = (
    Kind(
        "scan",
        load="attnscope.scanning.result:ScanResult.load",
        describe="attnscope.scanning:describe",
        page="attnscope.scanning.result:served_page",
        side_by_side=True,
        needs=(("rows.parquet", "parts/manifest.jsonl"), ("topn.parquet", "parts/manifest.jsonl")),
        schema=2,
        beside=("topn.parquet", "parts/manifest.jsonl"),
        written=(
            *("findings.json", "rows.parquet", "topn.parquet", "run.json", "report.html"),
            *("weights.parquet", "patterns.parquet", "tokens.json"),
            *("parts/manifest.jsonl", "parts/*.parquet", "parts/overview.json"),
        ),
    ),
)

__getattr__, __dir__ = lazy(__name__, __path__, _NAMES)
