"""Build docs/results.md: reproduce the paper on SmolLM2-135M, stories15M and the sample model, and fill in the numbers.

    python scripts/results/build.py SMOLLM2 STORIES [TEXT [RUNS]] [--quick]

SMOLLM2 is the model file and STORIES a folder made by scripts/stories15m; TEXT is a copy of the book (default: download
it); RUNS is the folder of the runs, which are reused. --quick tries the page on two windows of 128 tokens.

Every number of the page comes from claims.json through a placeholder. {{run claim form}} is the first measurement of
the claim's form, {{run claim form 2}} the second. Suffixes choose a reading (.literal, .visible or .last rows; .value,
.output, .hidden, .hidden_unit or .embedding vectors; .at001 or .at005; .closed; .raw or .scaled logits; by default the
first one) and a part of it: .low, .high, .percent, .verdict, or .range for the smallest and largest of several
measurements. {{finding 2a}} is the table of a figure's claims ("other": of those without a figure), {{never supported}}
what no reading supports, {{run best}} the readings that support most, {{run record}} the run. {{times table}} and
{{times minutes}}: those of `python -m benchmarks protocol`.

docs/results.json stores what the page was built from, and docs/results.csv has every reading of every claim in it.
`--render` fills the template from it without running a model, `--check` compares the result with both files.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from attnscope.capture.text import read_text
from attnscope.intervals import coverage_at_most
from attnscope.show.numbers import number
from attnscope.studies.paper import Reproduction, reproduce
from attnscope.studies.paper.settings import PAPER_LENGTHS
from attnscope.studies.paper.view import READING as OPEN, best_readings, contradicted_by_all

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"
STORED = DOCS / "results.json"
READINGS = DOCS / "results.csv"
PLACEHOLDER = re.compile(r"\{\{(\w+) ([\w-]+)(?: (printed|corrected))?(?: (\d+))?((?:\.\w+)*)\}\}")
LABELS = {
    **{rows: ("rows", rows) for rows in ("literal", "visible", "last")},
    **{kind: ("vectors", kind) for kind in ("value", "output", "hidden", "hidden_unit", "embedding")},
    **{logits: ("logit_scale", logits) for logits in ("raw", "scaled")},
    "at001": ("significance", "0.01"),
    "at005": ("significance", "0.05"),
    "closed": ("ball", "closed"),
}
# Hidden vectors have the model's full width: all kinds of vectors are measured on fewer, shorter windows.
KINDS: dict[str, Any] = {
    "vectors": ("value", "output", "hidden", "hidden_unit", "embedding"),
    "windows": 2,
    "length": 512,
}
WINDOWS: dict[str, Any] = {"windows": 3}  # of SmolLM2 at its full length: minutes each
QUICK: dict[str, Any] = {"windows": 2, "length": 128}
GPT2_WINDOWS = 8  # of the command for GPT-2

# The runs and vectors that the tables of the page show; results.csv has the others.
SHOWN = {
    "SmolLM2-135M": ("smollm2", "value"),
    "the same, hidden vectors": ("vectors", "hidden"),
    "stories15M": ("stories15m", "value"),
    "sample model": ("sample", "value"),
}
HIDDEN_SHOWN = {"3"}  # figures whose claims depend on the vectors
CHOICES = {"significance": "0.01", "ball": "open", "logit_scale": "scaled"}
READING = ("form", *OPEN)
MARKS = {"agrees": "\u2713", "disagrees": "\u2717", "depends": "~"}

Run = dict[str, Any]


def build(smollm2: str, stories: str, text: str, runs: Path, quick: bool) -> dict[str, Any]:
    """Run the reproductions and the benchmark, and copy the figures; returns the data of the page."""
    less = QUICK if quick else {}
    book = read_text(text)
    results = {
        "smollm2": reproduce(smollm2, book, out=runs / "smollm2", **(WINDOWS | less)),
        "vectors": reproduce(smollm2, book, out=runs / "vectors", **(KINDS | less)),
        "stories15m": reproduce(stories, book, out=runs / "stories15m", **({"vectors": ("value", "hidden")} | less)),
        "sample": reproduce(None, None, out=runs / "sample", **less),
    }
    for name, result in results.items():
        for figure in sorted((result.folder / "figures" / "protocol").glob("*.svg")):
            if f"images/{name}-{figure.name}" in template():
                shutil.copy(figure, DOCS / "images" / f"{name}-{figure.name}")
    return {name: _page_data(result) for name, result in results.items()} | {"times": _times(quick)}


def _times(quick: bool) -> dict[str, Any]:
    size = ["--length", str(QUICK["length"]), "--repeats", "1"] if quick else []
    command = [sys.executable, "-m", "benchmarks", "protocol", "--json", *size]
    report: dict[str, Any] = json.loads(
        subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=DOCS.parent).stdout
    )
    return report


def _page_data(result: Reproduction) -> Run:
    run = {key: result.run[key] for key in ("attnscope", "model", "settings", "text")}
    run["text"] = {"tokens": run["text"]["tokens"]}
    run["model"] = {key: run["model"][key] for key in ("layers", "heads")}
    return {"run": run, "claims": result.claims}


def page(template: str, data: dict[str, Any]) -> str:
    """The template with its placeholders filled in."""

    def value(match: re.Match[str]) -> str:
        run, what, form, index, suffixes = match.groups()
        if run == "times":
            return {"table": _times_table, "minutes": _minutes}[what](data["times"])
        if run == "finding":
            return _finding(data, what)
        if run == "never":
            return _never_supported(data)
        claims = data[run]["claims"]
        tables = {
            "best": lambda: _best(claims),
            "record": lambda: _record(data[run]["run"]),
        }
        if what in tables:
            return tables[what]()
        return _measured(claims, what, form or "printed", int(index or 1) - 1, suffixes.split(".")[1:])

    return PLACEHOLDER.sub(value, template)


def _finding(data: dict[str, Any], figure: str) -> str:
    """The claims of a figure: a line for each form, a column for each model, its literal and its visible rows."""
    columns = {name: one for name, one in SHOWN.items() if one[1] == "value" or figure in HIDDEN_SHOWN}
    lines = [f"| the paper | measured, and accepted | {' | '.join(columns)} |", "|---" * (len(columns) + 2) + "|"]
    for claim in data["smollm2"]["claims"]:
        if (claim["figure"] or "other") != figure:
            continue
        for form in ("printed", "corrected"):
            cells = [_cell(data[run]["claims"], claim["id"], form, vectors) for run, vectors in columns.values()]
            if any(cells):
                words = (claim["claim"], claim["rule"]) if form == "printed" else ("", _corrected_as(claim))
                lines.append(f"| {' | '.join(map(_bars, (*words, *(cell or '-' for cell in cells))))} |")
    return "\n".join(lines)


def _corrected_as(claim: dict[str, Any]) -> str:
    names = [each["name"] for one in claim["readings"] if one["form"] == "corrected" for each in one["measured"]]
    return claim["corrected_as"] or f"proved bounds: {'; '.join(dict.fromkeys(name.split(',')[0] for name in names))}"


def _cell(claims: list[dict[str, Any]], name: str, form: str, vectors: str) -> str:
    """Verdict and value in literal and in visible rows, e.g. "✓ 1.03; ✓ 1.02", or in the last row."""
    wanted = {"form": form, "vectors": vectors} | CHOICES
    matching = [
        one
        for one in next(claim for claim in claims if claim["id"] == name)["readings"]
        if all(one.get(key, value) == value for key, value in wanted.items())
    ]
    cells = [f"{MARKS.get(one['verdict'], '-')} {_values(one)}" for one in matching]
    return "; ".join(dict.fromkeys(cells))


def _values(reading: dict[str, Any]) -> str:
    values = [one["value"] for one in reading["measured"]]
    if not values:
        return "not measured"
    if reading["rows"] == "last" and len(values) < 3:
        return ", ".join(map(number, values))
    return " to ".join(dict.fromkeys(number(end) for end in (min(values), max(values))))


def _bars(text: str) -> str:
    """The text with the bars of norms replaced, which would end a table cell."""
    return re.sub(r"\|([^|]+)\|", "\u2016\\1\u2016", text)


def _never_supported(data: dict[str, Any]) -> str:
    """The statements that every reading of a run contradicts, with the value and the reading that come nearest."""
    runs = {"SmolLM2-135M, five kinds of vectors": "vectors"} | {
        name: run for name, (run, vectors) in SHOWN.items() if vectors == "value"
    }
    missing = {name: {one["id"]: one for one in contradicted_by_all(data[run]["claims"])} for name, run in runs.items()}
    papers = {name: f"{one['figure']}: {one['claim']}" for found in missing.values() for name, one in found.items()}
    lines = [f"| no reading gives | {' | '.join(runs)} |", "|---" * (len(runs) + 1) + "|"]
    for claim, paper in sorted(papers.items(), key=lambda entry: entry[1]):
        cells = []
        for found in missing.values():
            if claim not in found:
                cells.append("-")
                continue
            near = next(one for one in found[claim]["readings"] if one["nearest"])
            words = [" ".join(near[key] for key in OPEN if key in near)]
            words += [found[claim]["corrected_as"] or "corrected"] if near["form"] == "corrected" else []
            cells.append(f"{_values(near)} ({', '.join(words)})")
        lines.append(f"| {paper} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _best(claims: list[dict[str, Any]]) -> str:
    ranked = best_readings(claims)
    names = [name for name, count, _ in ranked if count == ranked[0][1]]
    return f"{ranked[0][1]} of {ranked[0][2]} ({'; '.join(names)})"


def readings(data: dict[str, Any]) -> str:
    """Every measurement of every reading of every claim, as CSV."""
    written = io.StringIO()
    lines = csv.writer(written, lineterminator="\n")
    lines.writerow(["run", "figure", "claim", *READING, "verdict", "nearest", "measured", "value", "low", "high"])
    for run, stored in data.items():
        for claim in stored.get("claims", ()):
            for one in claim["readings"]:
                reading = [one.get(key, "") for key in READING]
                for each in one["measured"]:
                    ends = [f"{end:.6g}" for end in (each["value"], *(each["interval"] or ()))]
                    marks = [one["verdict"] or "", "yes" if one["nearest"] else ""]
                    lines.writerow([run, claim["figure"] or "", claim["id"], *reading, *marks, each["name"], *ends])
    return written.getvalue()


def _measured(claims: list[dict[str, Any]], name: str, form: str, index: int, suffixes: list[str]) -> str:
    claim = next(one for one in claims if one["id"] == name)
    wanted = {"form": form} | dict(LABELS[suffix] for suffix in suffixes if suffix in LABELS)
    matching = [one for one in claim["readings"] if all(one.get(key) == value for key, value in wanted.items())]
    if not matching:
        raise KeyError(f"{name} has no reading {wanted}")
    reading = matching[0]
    if "verdict" in suffixes:
        return str(reading["verdict"] or "not measured")
    if not reading["measured"]:
        return "not measured"
    values = [one["value"] for one in reading["measured"]]
    if "range" in suffixes:
        return f"{number(min(values))} to {number(max(values))}"
    low, high = reading["measured"][index]["interval"] or (None, None)  # a single window has none
    chosen = low if "low" in suffixes else high if "high" in suffixes else values[index]
    if chosen is None:
        return "-"
    return f"{100 * chosen:.0f}" if "percent" in suffixes else number(chosen)


def _record(run: Run) -> str:
    model, settings = run["model"], run["settings"]
    windows = f"{settings['windows']} windows of {settings['lengths'][-1]:,} tokens of {run['text']['tokens']:,}"
    vectors = f"{', '.join(settings['vectors'])} vectors"
    share = coverage_at_most(settings["windows"])
    caution = "" if share >= 0.95 else f"; its intervals contain the true median in at most {share:.0%} of cases"
    heads = f"{model['layers']} layers, {model['heads']} heads"
    return f"{heads}, {windows}, {vectors}, attnscope {run['attnscope']}{caution}"


def _times_table(times: dict[str, Any]) -> str:
    size = times["size"]
    columns = ("algorithm", f"the paper, {times['paper_machine']}", f"here, {times['threads']} cores")
    lines = [f"| {' | '.join(columns)} | times faster | times the plain forward |", "|---|---|---|---|---|"]
    lines += [
        f"| {one['algorithm']}: {one['measures']} | {_duration(one['paper_seconds'])} | {one['seconds']:.1f} s | "
        f"{_faster(one, size['length'])} | {one['time_ratio']:.1f} |"
        for one in times["results"]
    ]
    lines += ["", f"({size['layers']} layers, {size['heads']} heads, L = {size['length']:,}, one window.)"]
    return "\n".join(lines)


def _faster(one: dict[str, Any], length: int) -> str:
    """How many times faster than the paper; a quick build measures a different length."""
    return f"{one['paper_seconds'] / one['seconds']:,.0f}" if length == PAPER_LENGTHS[-1] else "-"


def _duration(seconds: float) -> str:
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def _minutes(times: dict[str, Any]) -> str:
    """How long the windows of the command for GPT-2 take, from the times of the algorithms at the paper's length."""
    if times["size"]["length"] != PAPER_LENGTHS[-1]:
        return "-"
    return f"{max(1, round(GPT2_WINDOWS * sum(one['seconds'] for one in times['results']) / 60))}"


def template() -> str:
    """The page with its placeholders."""
    return (HERE / "template.md").read_text("utf-8")


def written() -> str:
    """The page filled from the template and the stored numbers."""
    return page(template(), json.loads(STORED.read_text("utf-8")))


def render() -> None:
    """Write the page and the table of readings from the stored numbers."""
    (DOCS / "results.md").write_text(written(), encoding="utf-8")
    READINGS.write_text(readings(json.loads(STORED.read_text("utf-8"))), encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Build the page, write it from the stored numbers, or check it."""
    if arguments == ["--render"]:
        render()
        return 0
    if arguments == ["--check"]:
        same = (DOCS / "results.md").read_text("utf-8") == written()
        same &= READINGS.read_text("utf-8") == readings(json.loads(STORED.read_text("utf-8")))
        print("docs/results.md matches its template" if same else "docs/results.md differs from its template")
        return 0 if same else 1
    quick = "--quick" in arguments
    places = [argument for argument in arguments if argument != "--quick"]
    if len(places) < 2:
        print(f"usage: {sys.argv[0]} SMOLLM2 STORIES [TEXT [RUNS]] [--quick] | --render | --check", file=sys.stderr)
        return 2
    book = places[2] if len(places) > 2 else "corpus:war-and-peace"
    runs = Path(places[3]) if len(places) > 3 else Path("runs") / "results"
    data = build(places[0], places[1], book, runs, quick)
    STORED.write_text(json.dumps(data, separators=(",", ":")) + "\n", encoding="utf-8")
    render()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
