"""Diagnosis of heads: which simpler rule would give a head's output, how sure that is, and what follows from it.

The states are in `states.py`; docs/diagnosis.md has the data behind them. A diagnosis has a folder for itself if it was
saved without a scan.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnscope.store.kinds import Description, Kind

FILE = "findings.json"


def headline(folder: Path) -> str:
    """The verdict of the diagnosis in a folder, in one sentence; empty if there is none that can be read."""
    try:
        return str(json.loads((folder / FILE).read_text("utf-8"))["verdict"]["headline"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return ""


def describe(folder: Path, found: Mapping[str, Any]) -> Description:
    """One diagnosis as a line of a list."""
    size = f"diagnosis: {found['windows']:,} x {found['length']:,} tokens"
    return Description(found["model"], found["text"], size, found["verdict"]["headline"])


KINDS = (
    Kind(
        "diagnosis",
        load="attnscope.diagnosis.result:Diagnosis.load",
        describe="attnscope.diagnosis:describe",
        record=FILE,
        schema=2,
        written=(FILE, "report.html"),
    ),
)
