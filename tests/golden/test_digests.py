"""What every command measures on the embedded model is what it was: moving code changes no number.

If a change of numbers is meant, `scripts/golden` writes the new digests.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from table_digests import CASES, TOLERANCE, agree, differences, digest, digests

EXPECTED = json.loads((Path(__file__).parent / "digests.json").read_text("utf-8"))
QUICK = [name for name, case in CASES.items() if case.quick] + ["monitor"]


@pytest.mark.parametrize(
    "name", [*(pytest.param(name, marks=() if name in QUICK else pytest.mark.thorough) for name in EXPECTED)]
)
def test_the_tables_are_what_they_were(name: str, tmp_path: Path) -> None:
    tolerance = CASES[name].tolerance if name in CASES else TOLERANCE
    assert "\n".join(differences(EXPECTED[name], digests(name, tmp_path), tolerance)) == ""


def test_every_case_has_digests() -> None:
    assert EXPECTED.keys() == {*CASES, "monitor"}


def test_one_changed_value_changes_a_digest() -> None:
    values = [0.1 * place for place in range(200)]
    before = digest(values)
    assert agree(before, digest([value * (1 + 1e-9) for value in values]))
    for changed in (values[:-1], [*values[:-1], None], [*values[:70], 7.01, *values[71:]], values[::-1]):
        assert not agree(before, digest(changed))


def test_a_difference_names_the_column() -> None:
    expected = {"rows": {"entropy": digest([0.5, 0.25]), "length": digest([1, 2])}}
    found = {"rows": {"entropy": digest([0.5, 0.26]), "support": digest([1, 2])}}
    said = differences(expected, found)
    assert [line.split(" ")[:3] for line in said] == [
        ["rows:", "column", "entropy"], ["rows:", "column", "length"], ["rows:", "column", "support"],
    ]  # fmt: skip
