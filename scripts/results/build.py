"""Build docs/results.md: reproduce the paper on SmolLM2-135M and the sample model, and fill the numbers into the page.

    python scripts/results/build.py MODEL [TEXT [RUNS]]    # MODEL: the SmolLM2 file; TEXT: a copy of the book, else
                                                           # fetched; RUNS: where the runs are kept

Every number of the page comes from claims.json through a placeholder: {{run claim form}} is the first measurement of
the claim's form, {{run claim form 2}} the second, with .low, .high, .percent or .verdict behind it; .without takes the
rows without the first key, .value, .output and .hidden these vectors. {{run claims}} and {{run readings}} are tables of
all claims, {{run record}} says what was run.

docs/results.json keeps the answers that the page was made of: `--check` fills the template from it, runs no model, and
says whether the page is what comes out.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from attnscope.experiments import Reproduction, reproduce
from attnscope.experiments.page import claims_table, find, readings_table

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"
KEPT = DOCS / "results.json"
PLACE = re.compile(r"\{\{(\w+) ([\w-]+)(?: (printed|corrected))?(?: (\d+))?((?:\.\w+)*)\}\}")
# All kinds of vectors on shorter windows: hidden vectors have as many numbers as the model is wide.
VECTORS: dict[str, Any] = {"vectors": ("value", "output", "hidden"), "windows": 4, "length": 512}

Run = dict[str, Any]


def build(model: str, text: str, runs: Path) -> dict[str, Run]:
    """Reproduce and copy the figures; what the page is made of."""
    results = {
        "smol": reproduce(model, text, out=runs / "smollm2"),
        "vectors": reproduce(model, text, out=runs / "smollm2-vectors", **VECTORS),
        "sample": reproduce(None, None, out=runs / "sample"),
    }
    for name, run, reading, ending in (
        ("smollm2", "smol", "value", ""),
        ("smollm2", "smol", "value-without-first-key", "-without-first-key"),
        ("sample", "sample", "value", ""),
    ):
        for figure in sorted((results[run].folder / "figures" / reading).glob("*.svg")):
            shutil.copy(figure, DOCS / "images" / f"{name}-{figure.stem}{ending}.svg")
    return {name: _kept(result) for name, result in results.items()}


def _kept(result: Reproduction) -> Run:
    run = {key: result.run[key] for key in ("attnscope", "model", "settings", "timings", "text")}
    run["text"] = {"tokens": run["text"]["tokens"]}
    run["model"] = {key: run["model"][key] for key in ("layers", "heads")}
    return {"run": run, "claims": result.claims}


def page(template: str, runs: dict[str, Run]) -> str:
    """The template with its placeholders filled in."""

    def value(match: re.Match[str]) -> str:
        run, what, form, number, wish = match.groups()
        result = runs[run]
        if what == "claims":
            return claims_table(result["claims"])
        if what == "readings":
            return readings_table(result["claims"], result["run"]["settings"]["vectors"])
        if what == "record":
            return _record(result["run"])
        return _measured(result["claims"], what, form or "printed", int(number or 1) - 1, set(wish.split(".")[1:]))

    return PLACE.sub(value, template)


def _measured(claims: list[dict[str, Any]], claim: str, form: str, number: int, wish: set[str]) -> str:
    kind = next((kind for kind in ("value", "output", "hidden") if kind in wish), None)
    found = next(one for one in claims if one["id"] == claim)
    reading = find(found, form, kind, "dropped" if "without" in wish else "kept")
    if reading is None:
        raise KeyError(f"{claim} has no {form} form")
    if "verdict" in wish:
        return str(reading["verdict"])
    measured = reading["measured"][number]
    low, high = measured["interval"]
    shown = low if "low" in wish else high if "high" in wish else measured["value"]
    shown = 0.0 if abs(shown) < 1e-9 else shown
    return f"{100 * shown:.0f}" if "percent" in wish else f"{shown:.3g}"


def _record(run: Run) -> str:
    model, settings, timings = run["model"], run["settings"], run["timings"]
    where = f"{settings['windows']} windows of {settings['lengths'][-1]:,} tokens of {run['text']['tokens']:,}"
    how = f"attnscope {run['attnscope']}, measured in {timings['measure_seconds']:.0f} s"
    return f"{model['layers']} layers, {model['heads']} heads, {where}, {how}"


def written() -> str:
    """The page as the template and the kept answers have it."""
    return page((HERE / "template.md").read_text("utf-8"), json.loads(KEPT.read_text("utf-8")))


def main(arguments: list[str]) -> int:
    """Build the page, or check it."""
    if arguments == ["--check"]:
        same = (DOCS / "results.md").read_text("utf-8") == written()
        print("docs/results.md is what its template gives" if same else "docs/results.md differs from its template")
        return 0 if same else 1
    if not arguments:
        print(f"usage: {sys.argv[0]} MODEL [TEXT] | --check", file=sys.stderr)
        return 2
    book = arguments[1] if len(arguments) > 1 else "corpus:war-and-peace"
    runs = Path(arguments[2]) if len(arguments) > 2 else Path("runs") / "results"
    KEPT.write_text(json.dumps(build(arguments[0], book, runs), separators=(",", ":")) + "\n", encoding="utf-8")
    (DOCS / "results.md").write_text(written(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
