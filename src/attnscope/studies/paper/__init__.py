"""The paper's experiments on any model: Algorithms 1 to 5 of its appendix, its claims, its figures."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope._process import lazy
from attnscope.store.kinds import Description, Kind, Verb

_VERDICTS = ("agrees", "depends", "disagrees")


def describe(folder: Path, run: Mapping[str, Any]) -> Description:
    """One reproduction as a line of a list; its verdict counts those of the claims."""
    settings = run["settings"]
    size = f"reproduction: {settings['windows']:,} x {settings['lengths'][-1]:,} tokens"
    try:
        claims = json.loads((folder / "claims.json").read_text("utf-8"))["claims"]
        counts = Counter(claim["verdict"] for claim in claims)
    except (OSError, ValueError, LookupError, TypeError):
        counts = Counter()
    verdicts = ", ".join(f"{verdict} {counts[verdict]}" for verdict in _VERDICTS if counts[verdict])
    verdict = f"{counts.total()} claims: {verdicts}" if verdicts else ""
    return Description(run["model"]["name"], run["text"]["source"], size, verdict, run["finished"])


KINDS = (
    Kind(
        "reproduction",
        load="attnscope.studies.paper.reproduction:Reproduction.load",
        describe="attnscope.studies.paper:describe",
        beside=("claims.json", "tables/*.parquet"),
        needs=(("claims.json",),),
        written=(
            *("claims.md", "claims.json", "run.json", "protocol.html", "report.html", "tables/*.parquet"),
            *(f"figures/*/*.{kind}" for kind in ("svg", "pdf", "png", "parquet", "json")),
        ),
        verbs=(Verb("reproduce", "attnscope.studies.paper.verb:reproduce", "The paper"),),
    ),
)

if TYPE_CHECKING:
    from attnscope.studies.paper.reproduction import Reproduction as Reproduction, reproduce as reproduce

_NAMES = dict.fromkeys(("Reproduction", "reproduce"), "attnscope.studies.paper.reproduction")

__getattr__, __dir__ = lazy(__name__, __path__, _NAMES)
