"""docs/results.md matches its template and the stored claims, and its figures exist."""

from __future__ import annotations

import csv
import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("results_build", ROOT / "scripts" / "results" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_its_template_gives(build: ModuleType) -> None:
    page = (ROOT / "docs" / "results.md").read_text("utf-8")
    assert page == build.written()
    assert "{{" not in page


def test_every_figure_of_the_page_is_there() -> None:
    page = (ROOT / "docs" / "results.md").read_text("utf-8")
    named = re.findall(r"!\[[^]]+\]\(([^)]+)\)", page)
    assert len(named) == len(set(named)) >= 15
    for name in named:
        assert (ROOT / "docs" / name).read_text("utf-8").startswith("<svg")


def reading(values: list[float], interval: list[float] | None, **labels: str) -> dict[str, Any]:
    shared = {"form": "printed", "rows": "literal", "vectors": "value", "first_key": "kept", "verdict": "agrees"}
    return shared | labels | {"measured": [{"value": value, "interval": interval} for value in values]}


def test_a_placeholder_takes_its_number(build: ModuleType) -> None:
    readings = [
        reading([0.25, 1e-12, 3.0], [0.125, 0.5]),
        reading([7.0], [6.0, 8.0], rows="visible", vectors="hidden"),
        reading([0.0625], None, significance="0.01"),
        reading([9.0], [8.0, 10.0], rows="last"),
        reading([], None, form="corrected"),
    ]
    claims = [{"id": "a-claim", "readings": readings}]
    wishes = {
        "": "0.25", ".low": "0.125", " printed 2": "<1e-06", ".percent": "25", ".verdict": "agrees",
        ".range": "<1e-06 to 3",
        ".visible": "7", ".visible.hidden.high": "8", ".at001": "0.0625", ".at001.low": "-", ".last": "9",
        " corrected": "not measured",
    }  # fmt: skip
    template = " | ".join(f"{{{{r a-claim{wish}}}}}" for wish in wishes)
    assert build.page(template, {"r": {"claims": claims}}).split(" | ") == list(wishes.values())
    with pytest.raises(KeyError, match="a-claim has no reading"):
        build.page("{{r a-claim.embedding}}", {"r": {"claims": claims}})


def test_times_stand_beside_the_papers(build: ModuleType) -> None:
    """17 h 4 min against 256 s are 240 times faster; eight windows of that take 34 minutes."""
    result = {"algorithm": 3, "measures": "every N", "seconds": 256.0, "paper_seconds": 61440.0, "time_ratio": 40.25}
    size = {"layers": 12, "heads": 12, "length": 1024}
    times = {"paper_machine": "M1 Pro, 10 cores", "threads": 2, "size": size, "results": [result]}
    table = build.page("{{times table}}", {"times": times})
    assert (
        "| algorithm | the paper, M1 Pro, 10 cores | here, 2 cores | times faster | times the plain forward |" in table
    )
    assert "| 3: every N | 17 h 4 min | 256.0 s | 240 | 40.2 |" in table
    assert build.page("{{times minutes}}", {"times": times}) == "34"


def test_the_tables_have_the_numbers_of_the_claims(build: ModuleType) -> None:
    """The first number of every claim is in its cell of the page, or within the range there."""
    page = (ROOT / "docs" / "results.md").read_text("utf-8")
    stored = json.loads(build.STORED.read_text("utf-8"))
    cells: dict[tuple[str, str], str] = {}
    for table in page.split("| the paper |")[1:]:
        header, _, *lines = table.split("\n\n")[0].splitlines()
        for line in lines:
            claim, _, *values = line.strip("| ").split(" | ")
            cells |= {
                (claim, model.strip()): value for model, value in zip(header.split("|")[1:], values, strict=False)
            }
    for run, model in {"smollm2": "SmolLM2-135M", "stories15m": "stories15M", "sample": "sample model"}.items():
        for claim in stored[run]["claims"]:
            readings = (one for one in claim["readings"] if one.get("vectors", "value") == "value")
            first = next(one for one in readings if one.get("significance", "0.01") == "0.01")["measured"][0]["value"]
            cell = cells[claim["claim"].replace("|", "\u2016"), model].split(";")[0]
            shown = sorted(float(each.replace(",", "")) for each in re.findall(r"-?\d[\d,]*\.?\d*", cell))
            least, most = shown[0] - 0.01 * abs(shown[0]), shown[-1] + 0.01 * abs(shown[-1])  # three digits are shown
            assert least <= first <= most, (run, claim["id"])


def test_every_measurement_is_in_the_table_of_readings(build: ModuleType) -> None:
    stored = json.loads(build.STORED.read_text("utf-8"))
    with (ROOT / "docs" / "results.csv").open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    assert {line["run"] for line in lines} == set(stored) - {"times"}
    for run in set(stored) - {"times"}:
        measured = [
            (claim["id"], one["rows"], one["verdict"] or "", float(f"{each['value']:.6g}"))
            for claim in stored[run]["claims"]
            for one in claim["readings"]
            for each in one["measured"]
        ]
        written = [
            (one["claim"], one["rows"], one["verdict"], float(one["value"])) for one in lines if one["run"] == run
        ]
        assert sorted(measured) == sorted(written)
