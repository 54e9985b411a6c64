"""Build docs/results.md: reproduce the paper on SmolLM2-135M and the sample model, and fill the numbers into the page.

    python scripts/results/build.py MODEL [TEXT [RUNS]]    # MODEL: the SmolLM2 file; TEXT: a copy of the book, by
                                                           # default downloaded; RUNS: folder of the runs

Every number of the page comes from claims.json through a placeholder: {{run claim form}} is the first measurement of
the claim's form, {{run claim form 2}} the second. A suffix selects a part: .low, .high, .percent or .verdict; .without
selects the rows without the first key, and .value, .output or .hidden the kind of vectors. {{run claims}} and
{{run readings}} are tables of all claims, {{run record}} describes the run.

docs/results.json stores the claims that the page was built from. `--check` fills the template from it without running a
model and compares the result with the page.
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
STORED = DOCS / "results.json"
PLACEHOLDER = re.compile(r"\{\{(\w+) ([\w-]+)(?: (printed|corrected))?(?: (\d+))?((?:\.\w+)*)\}\}")
# All kinds of vectors are measured on shorter windows: hidden vectors have the model's full width.
VECTORS: dict[str, Any] = {"vectors": ("value", "output", "hidden"), "windows": 4, "length": 512}

Run = dict[str, Any]


def build(model: str, text: str, runs: Path) -> dict[str, Run]:
    """Run the reproductions and copy their figures; returns the data of the page."""
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
    return {name: _page_data(result) for name, result in results.items()}


def _page_data(result: Reproduction) -> Run:
    run = {key: result.run[key] for key in ("attnscope", "model", "settings", "timings", "text")}
    run["text"] = {"tokens": run["text"]["tokens"]}
    run["model"] = {key: run["model"][key] for key in ("layers", "heads")}
    return {"run": run, "claims": result.claims}


def page(template: str, runs: dict[str, Run]) -> str:
    """The template with its placeholders filled in."""

    def value(match: re.Match[str]) -> str:
        run, what, form, number, suffixes = match.groups()
        result = runs[run]
        if what == "claims":
            return claims_table(result["claims"])
        if what == "readings":
            return readings_table(result["claims"], result["run"]["settings"]["vectors"])
        if what == "record":
            return _record(result["run"])
        return _measured(result["claims"], what, form or "printed", int(number or 1) - 1, set(suffixes.split(".")[1:]))

    return PLACEHOLDER.sub(value, template)


def _measured(claims: list[dict[str, Any]], name: str, form: str, index: int, suffixes: set[str]) -> str:
    kind = next((kind for kind in ("value", "output", "hidden") if kind in suffixes), None)
    claim = next(one for one in claims if one["id"] == name)
    reading = find(claim, form, kind, "dropped" if "without" in suffixes else "kept")
    if reading is None:
        raise KeyError(f"{name} has no {form} form")
    if "verdict" in suffixes:
        return str(reading["verdict"])
    measured = reading["measured"][index]
    low, high = measured["interval"]
    number = low if "low" in suffixes else high if "high" in suffixes else measured["value"]
    number = 0.0 if abs(number) < 1e-9 else number
    return f"{100 * number:.0f}" if "percent" in suffixes else f"{number:.3g}"


def _record(run: Run) -> str:
    model, settings, timings = run["model"], run["settings"], run["timings"]
    windows = f"{settings['windows']} windows of {settings['lengths'][-1]:,} tokens of {run['text']['tokens']:,}"
    timing = f"attnscope {run['attnscope']}, measured in {timings['measure_seconds']:.0f} s"
    return f"{model['layers']} layers, {model['heads']} heads, {windows}, {timing}"


def written() -> str:
    """The page filled from the template and the stored claims."""
    return page((HERE / "template.md").read_text("utf-8"), json.loads(STORED.read_text("utf-8")))


def main(arguments: list[str]) -> int:
    """Build the page, or check it."""
    if arguments == ["--check"]:
        same = (DOCS / "results.md").read_text("utf-8") == written()
        print("docs/results.md matches its template" if same else "docs/results.md differs from its template")
        return 0 if same else 1
    if not arguments:
        print(f"usage: {sys.argv[0]} MODEL [TEXT [RUNS]] | --check", file=sys.stderr)
        return 2
    book = arguments[1] if len(arguments) > 1 else "corpus:war-and-peace"
    runs = Path(arguments[2]) if len(arguments) > 2 else Path("runs") / "results"
    STORED.write_text(json.dumps(build(arguments[0], book, runs), separators=(",", ":")) + "\n", encoding="utf-8")
    (DOCS / "results.md").write_text(written(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
