"""docs/results.md matches its template and the stored claims, and its figures exist."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


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


def test_a_placeholder_takes_its_number(build: ModuleType) -> None:
    reading: dict[str, Any] = {"form": "printed", "vectors": "value", "first_key": "kept", "verdict": "agrees"}
    measured = [{"value": 0.25, "interval": [0.125, 0.5]}, {"value": 1e-12, "interval": [-1e-12, 3.0]}]
    hidden = reading | {"vectors": "hidden", "first_key": "dropped", "measured": [{"value": 7.0, "interval": [6, 8]}]}
    claims = [{"id": "a-claim", "readings": [reading | {"measured": measured}, hidden]}]
    wishes = ("", ".low", " printed 2.high", " printed 2", ".percent", ".verdict", ".hidden.without")
    template = " ".join(f"{{{{r a-claim{wish}}}}}" for wish in wishes)
    filled = build.page(template, {"r": {"claims": claims}})
    assert filled == "0.25 0.125 3 0 25 agrees 7"


def test_the_numbers_of_the_table_are_those_of_the_answers(build: ModuleType) -> None:
    """The first number of every stored claim appears in the page."""
    page = (ROOT / "docs" / "results.md").read_text("utf-8")
    stored = json.loads(build.STORED.read_text("utf-8"))
    for run in ("smol", "sample"):
        for claim in stored[run]["claims"]:
            first = claim["readings"][0]["measured"][0]
            cell = f"{first['name']}: {first['value']:.3g}".replace("|", "\u2016")
            assert cell in page, (run, claim["id"])
