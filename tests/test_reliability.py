"""docs/reliability.md stays true: its promises are numbered, and held by tests that exist and say so."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NOT_BUILT: set[int] = set()

LINES = re.findall(
    r"^\| (\d+) \| (.+?) \| (.+) \|$", (ROOT / "docs" / "reliability.md").read_text("utf-8"), re.MULTILINE
)
HOLDERS = {int(number): re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", tests) for number, _, tests in LINES}


def faults(docstring: str | None) -> set[int]:
    """The numbers that a docstring names, e.g. 2, 3 and 29 for "Faults 2, 3 and 29: ..."."""
    lists = re.findall(r"\bFaults? (\d+(?:(?:, | and )\d+)*)", docstring or "")
    return {int(number) for some in lists for number in re.findall(r"\d+", some)}


@cache
def faults_by_test(file: str) -> dict[str, set[int]]:
    """The tests of a file, each with the faults that its docstring or the file's names."""
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    of_file = faults(ast.get_docstring(tree))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    return {node.name: of_file | faults(ast.get_docstring(node)) for node in functions}


def test_the_promises_are_numbered_without_a_gap() -> None:
    assert [int(number) for number, *_ in LINES] == list(range(1, 36))


@pytest.mark.parametrize("number", HOLDERS)
def test_a_promise_is_held_by_tests_that_say_so(number: int) -> None:
    assert bool(HOLDERS[number]) == (number not in NOT_BUILT)
    assert len(HOLDERS[number]) <= 4
    assert [(file, name) for file, name in HOLDERS[number] if number not in faults_by_test(file).get(name, set())] == []


def test_every_fault_that_a_test_names_is_a_promise() -> None:
    files = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "tests").rglob("test_*.py"))]
    named = {number for file in files for numbers in faults_by_test(file).values() for number in numbers}
    assert named == set(HOLDERS) - NOT_BUILT
