"""docs/architecture.md stays true: the way of one number, the tables of columns, and every file that the docs name."""

from __future__ import annotations

import gc
import importlib
import inspect
import re
import runpy
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import attnscope
from attnscope.cli import run

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path(attnscope.__file__).resolve().parent
PAGE = ROOT / "docs" / "architecture.md"
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]

EXAMPLES = {"file.py", "mine.py", "my_bounds.py"}  # files that users would write

WAY = PAGE.read_text("utf-8").split("## The way of one number")[1].split("\n## ")[0]
STEPS: list[tuple[str, str]] = re.findall(r"^\d+\. `([^`:]+):([^`]+)`", WAY, re.MULTILINE)
MOST_FILES = 60  # in which a scan calls a function, from the command to the page


def function_of(file: str, name: str) -> Any:
    """The function that a step names; of a property its getter."""
    parts = ["attnscope", *file.removesuffix(".py").removesuffix("/__init__").split("/")]
    found: Any = importlib.import_module(".".join(parts))
    for attribute in name.split("."):
        found = inspect.getattr_static(found, attribute)
    return found.fget if isinstance(found, property) else inspect.unwrap(found)


def is_compiled(file: str, name: str) -> bool:
    return hasattr(function_of(file, name), "py_func")


@pytest.mark.parametrize(("file", "name"), STEPS, ids=[":".join(step) for step in STEPS])
def test_every_step_names_a_function_of_its_file(file: str, name: str) -> None:
    function = function_of(file, name)
    code = getattr(function, "py_func", function).__code__
    assert Path(code.co_filename).resolve() == PACKAGE / file


def test_the_page_counts_its_steps() -> None:
    files = {file for file, _ in STEPS}
    assert f"{len(STEPS)} calls in {len(files)} files" in WAY


@pytest.fixture(scope="module")
def first_calls(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    """The functions of the package that `attnscope scan` calls, as (file, name), by their first call."""
    folder = tmp_path_factory.mktemp("traced")
    text = folder / "text.txt"
    text.write_text("An ordinary sentence, repeated: an ordinary sentence, twice. " * 3, "utf-8")
    command = ["scan", str(model_folder), "--text", str(text), "--length", "61", "--out", str(folder / "run")]
    assert run(command) == 0  # what modules do when they are imported, and compiling, is not on the way
    calls: dict[tuple[str, str], None] = {}
    prefix = f"{PACKAGE}/"

    def profile(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(prefix):
            calls.setdefault((code.co_filename.removeprefix(prefix), code.co_qualname))

    gc.collect()  # what other tests left behind ends before, not on the way
    before = sys.getprofile()
    sys.setprofile(profile)  # of this thread: torch has one thread in tests, and so has measuring
    try:
        assert run(command) == 0
    finally:
        sys.setprofile(before)
    return list(calls)


def test_a_scan_takes_the_steps_in_their_order(first_calls: list[tuple[str, str]]) -> None:
    # Profilers do not see compiled loops on every version of numba.
    steps = [step for step in STEPS if not is_compiled(*step)]
    assert [step for step in steps if step not in first_calls] == []
    assert sorted(steps, key=first_calls.index) == steps


def test_a_scan_passes_few_files(first_calls: list[tuple[str, str]]) -> None:
    assert len({file for file, _ in first_calls}) <= MOST_FILES


def test_the_tables_of_columns_are_what_is_declared() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "columns"))
    for name in script["TABLES"]:
        page = (ROOT / "docs" / name).read_text("utf-8")
        assert script["with_tables"](page, name) == page, "run: make columns"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_the_docs_name_exists(page: Path) -> None:
    text = page.read_text("utf-8")
    names = set(re.findall(r"(?<![\w/.-])((?:\w+/)*\w+\.(?:py|js))\b", text)) - EXAMPLES
    names |= {f"{name}.py" for name in re.findall(r"`((?:\w+/)*_[a-z_]+)`", text)}  # modules of the package
    folders = ("src", "tests", "scripts", "benchmarks", "examples")
    files = [f"/{path.relative_to(ROOT).as_posix()}" for folder in folders for path in (ROOT / folder).rglob("*.*")]
    assert [name for name in sorted(names) if not any(file.endswith(f"/{name}") for file in files)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_public_name_in_the_docs_exists(page: Path) -> None:
    missing = []
    for name in sorted(set(re.findall(r"(?<![\w./])attnscope(?:\.\w+)+", page.read_text("utf-8")))):
        found: Any = attnscope
        for attribute in name.split(".")[1:]:
            try:
                found = getattr(found, attribute)
            except AttributeError:
                try:
                    found = importlib.import_module(f"{found.__name__}.{attribute}")
                except (AttributeError, ImportError):
                    missing.append(name)
                    break
    assert missing == []
