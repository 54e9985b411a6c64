"""The examples in docstrings give what they print, and every public function has one."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import polars as pl
import pytest
import torch

import attnscope
from attnscope.diagnosis.result import DiagnosisPlots
from attnscope.scanning.plots import ScanPlots
from attnscope.store.tables import within_support
from attnscope.studies.audit.view import AuditPlots
from attnscope.studies.compare.view import ComparisonPlots
from attnscope.studies.paper.view import ReproductionPlots
from attnscope.theory.configuration import Configuration

PACKAGE = Path(attnscope.__file__).parent
HEAVY = ("cli", "serve")  # commands, without examples in Python
RESULTS = ("AuditReport", "Comparison", "Diagnosis", "Reproduction", "ScanResult")
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages([str(PACKAGE)], "attnscope."):
        if found.name.split(".")[1] not in HEAVY and "__main__" not in found.name:
            yield importlib.import_module(found.name)


def examples() -> dict[str, doctest.DocTest]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = {}
    for module in (attnscope, *modules()):
        for test in finder.find(module, module.__name__):
            if test.examples:
                found[test.name] = test
    for name, function in inspect.getmembers(attnscope.normalizers, inspect.isfunction):
        if f"{function.__module__}.{name}" not in found:  # made from its class
            made = finder.find(function, f"{function.__module__}.{name}", module=False)
            found |= {test.name: test for test in made if test.examples}
    return found


EXAMPLES = examples()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_gives_what_it_prints(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each in a folder of its own, with what a reader has imported."""
    monkeypatch.chdir(tmp_path)
    test = EXAMPLES[name]
    test.globs |= {"attnscope": attnscope, "torch": torch, "pl": pl, "Path": Path, "Configuration": Configuration}
    said: list[str] = []
    doctest.DocTestRunner(optionflags=OPTIONS).run(test, out=said.append)
    assert not said, "".join(said)


# What a public docstring has


def public() -> dict[str, Any]:
    """The functions and classes at the top of the package and of its rooms for users."""
    rooms = [attnscope, *(getattr(attnscope, room) for room in ("capture", "normalizers", "swapping", "theory"))]
    rooms += [attnscope.studies.audit, attnscope.monitor, attnscope.progress, attnscope.doctor]
    found = {
        f"{room.__name__}.{name}": getattr(room, name)
        for room in rooms
        for name in getattr(room, "__all__", dir(room))
        if not name.startswith("_")
    }
    found["attnscope.studies.compare.guidelines.guidelines"] = attnscope.studies.compare.guidelines.guidelines
    found["attnscope.studies.budget.running.budget"] = attnscope.studies.budget.running.budget
    found["attnscope.capture.forward.run"] = attnscope.capture.forward.run
    found["attnscope.store.tables.within_support"] = within_support
    kinds = {name: value for name, value in found.items() if inspect.isfunction(value) or inspect.isclass(value)}
    return {name: value for name, value in kinds.items() if not issubclass_of_error(value)}


def issubclass_of_error(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, Exception)


PUBLIC = public()


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_has_an_example(name: str) -> None:
    assert ">>> " in (inspect.getdoc(PUBLIC[name]) or "")


def methods() -> dict[str, Any]:
    """What people call on results and on their `plot`."""
    results = [getattr(attnscope, name) for name in attnscope.__all__ if name in RESULTS]
    kinds = [*results, ScanPlots, DiagnosisPlots, ComparisonPlots, ReproductionPlots, AuditPlots]
    shown = ("summary", "save", "show", "head", "claim", "map", "curve", "weights", "pattern", "capacity", "violations")
    return {
        f"{kind.__name__}.{name}": getattr(kind, name)
        for kind in kinds
        for name in (*shown, "figure")
        if hasattr(kind, name)
    }


METHODS = methods()


@pytest.mark.parametrize("name", METHODS)
def test_a_method_of_a_result_begins_with_an_example(name: str) -> None:
    before, _, after = (inspect.getdoc(METHODS[name]) or "").partition(">>> ")
    assert after
    assert "----" not in before


PUBLIC |= METHODS


FUNCTIONS = [name for name, value in PUBLIC.items() if inspect.isfunction(value)]
STATEMENTS = [name for name in FUNCTIONS if name.startswith("attnscope.theory.")]


@pytest.mark.parametrize(
    "name", [name for name in PUBLIC if inspect.isfunction(PUBLIC[name]) and name not in STATEMENTS]
)
def test_a_public_function_describes_its_parameters_and_what_it_returns(name: str) -> None:
    document = inspect.getdoc(PUBLIC[name]) or ""
    signature = inspect.signature(PUBLIC[name])
    parameters = [each for each in signature.parameters if each not in ("self", "args", "kwargs")]
    if re.search(r"with the parameters of `\w+`", document):  # explained once, there
        return
    if parameters:
        section = document.partition("Parameters\n----------\n")[2].partition("Returns\n-------\n")[0]
        names = [line.split(" : ")[0] for line in section.splitlines() if line and not line.startswith(" ")]
        listed = [name.strip(" *") for line in names for name in line.split(",")]
        assert sorted(set(parameters) - set(listed)) == []
    if signature.return_annotation not in (None, "None"):
        assert "Returns\n-------\n" in document or "Yields\n------\n" in document


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_parameter_of_a_statement_is_explained_in_its_file_or_with_the_configuration(name: str) -> None:
    """Once for all statements of a file, instead of once for each."""
    function = PUBLIC[name]
    explained = f"{sys.modules[function.__module__].__doc__}{attnscope.theory.configuration.__doc__}"
    parameters = inspect.signature(function).parameters
    assert [each for each in parameters if not re.search(rf"(`|    ){each}\b", explained)] == []
