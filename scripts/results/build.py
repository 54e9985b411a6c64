"""Build docs/results.md: reproduce the paper on SmolLM2-135M and the sample model, and fill the numbers into the page.

    python scripts/results/build.py MODEL [TEXT]      # MODEL: the SmolLM2 file; TEXT: a copy of the book, else fetched

Every number of the page comes from claims.json through a placeholder: {{run claim form}} is the first measurement of
the claim's form, {{run claim form 2}} the second, with .low, .high, .percent or .verdict behind it; .without takes the
rows without the first key.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

from attnscope.experiments import Reproduction, reproduce
from attnscope.experiments.page import claims_table

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"
PLACE = re.compile(r"\{\{(\w+) ([\w-]+)(?: (printed|corrected))?(?: (\d+))?((?:\.\w+)*)\}\}")


def build(model: str, text: str, runs: Path) -> str:
    """Reproduce, copy the figures, and return the page."""
    smol = reproduce(model, text, out=runs / "smollm2")
    sample = reproduce(None, None, out=runs / "sample")
    for name, run in (("smollm2", smol), ("sample", sample)):
        for figure in sorted((run.folder / "figures" / "value").glob("*.svg")):
            shutil.copy(figure, DOCS / "images" / f"{name}-{figure.name}")
    return page((HERE / "template.md").read_text("utf-8"), {"smol": smol, "sample": sample})


def page(template: str, runs: dict[str, Reproduction]) -> str:
    """The template with its placeholders filled in."""

    def value(match: re.Match[str]) -> str:
        run, what, form, number, wish = match.groups()
        result = runs[run]
        if what == "claims":
            return claims_table(result.claims)
        if what == "record":
            return _record(result)
        return _measured(result.claims, what, form or "printed", int(number or 1) - 1, set(wish.split(".")[1:]))

    return PLACE.sub(value, template)


def _measured(claims: list[dict[str, Any]], claim: str, form: str, number: int, wish: set[str]) -> str:
    found = next(one for one in claims if one["id"] == claim)
    first_key = "dropped" if "without" in wish else "kept"
    reading = next(one for one in found["readings"] if one["form"] == form and one["first_key"] == first_key)
    if "verdict" in wish:
        return str(reading["verdict"])
    measured = reading["measured"][number]
    low, high = measured["interval"]
    shown = low if "low" in wish else high if "high" in wish else measured["value"]
    shown = 0.0 if abs(shown) < 1e-9 else shown
    return f"{100 * shown:.0f}" if "percent" in wish else f"{shown:.3g}"


def _record(result: Reproduction) -> str:
    model, settings, timings = result.run["model"], result.run["settings"], result.run["timings"]
    where = f"{settings['windows']} windows of {settings['lengths'][-1]:,} tokens of {result.run['text']['tokens']:,}"
    how = f"attnscope {result.run['attnscope']}, measured in {timings['measure_seconds']:.0f} s"
    return f"{model['layers']} layers, {model['heads']} heads, {where}, {how}"


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(f"usage: {sys.argv[0]} MODEL [TEXT]")
    book = sys.argv[2] if len(sys.argv) > 2 else "corpus:war-and-peace"
    (DOCS / "results.md").write_text(build(sys.argv[1], book, Path("runs") / "results"), encoding="utf-8")
