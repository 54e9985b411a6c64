"""The names at the top of the package, what completes after a dot, and what a text is in every function."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from models import build

import attnscope
from attnscope.capture.text import given_text
from attnscope.errors import InputError
from attnscope.studies.budget.running import budget
from attnscope.studies.compare.guidelines import guidelines

FUNCTIONS = {"audit", "compare", "diagnose", "load_model", "load_run", "reproduce", "scan", "swap"}
RESULTS = {"AuditReport", "Comparison", "Diagnosis", "Reproduction", "ScanResult", "TrainingRun"}
ROOMS = ["theory", "normalizers", "swapping", "capture"]


def test_the_top_of_the_package_has_the_functions_and_their_results() -> None:
    assert set(attnscope.__all__) >= FUNCTIONS | RESULTS | set(ROOMS)
    assert all(inspect.isfunction(getattr(attnscope, name)) for name in FUNCTIONS)
    assert all(inspect.isclass(getattr(attnscope, name)) for name in RESULTS)
    assert dir(attnscope) == sorted(attnscope.__all__)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'attnscope' has no attribute 'sacn'"):
        _ = attnscope.sacn


@pytest.mark.parametrize("room", ROOMS)
def test_everything_that_a_room_lists_can_be_used(room: str) -> None:
    module = importlib.import_module(f"attnscope.{room}")
    names = dir(module)
    assert not any(name.startswith("_") for name in names)
    assert all(hasattr(module, name) for name in names)
    folder = Path(str(module.__file__)).parent
    submodules = {path.stem for path in folder.glob("[a-z]*.py")} | {
        path.parent.name for path in folder.glob("[a-z]*/*.py")
    }
    assert submodules <= set(names)


def test_theory_lists_all_its_functions() -> None:
    folder = Path(attnscope.theory.__file__).parent
    defined = {
        node.name
        for file in folder.glob("[a-z]*.py")
        for node in ast.parse(file.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    }
    assert defined <= set(dir(attnscope.theory))
    assert attnscope.theory.jacobian_norm is attnscope.theory.gradient.jacobian_norm


def test_importing_the_package_and_listing_it_is_light() -> None:
    code = (
        "import sys, attnscope; dir(attnscope); attnscope.progress.Step; attnscope.capture; attnscope.experiments\n"
        "heavy = ('torch', 'transformers', 'polars', 'altair', 'rich', 'numba')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# Texts

LONG: dict[str, Any] = {
    "scan": lambda text, out: attnscope.scan(None, text),
    "diagnose": lambda text, out: attnscope.diagnose(None, text),
    "compare": lambda text, out: attnscope.compare(None, text),
    "guidelines": lambda text, out: guidelines(None, text),
    "budget": lambda text, out: budget(None, text),
    "reproduce": lambda text, out: attnscope.reproduce(None, text, out=out),
}


@pytest.mark.parametrize("name", LONG)
def test_a_string_that_names_a_file_is_refused_everywhere(name: str, tmp_path: Path) -> None:
    book = tmp_path / "book.txt"
    book.write_text("words " * 500)
    with pytest.raises(InputError, match=re.escape(f"{str(book)!r} is a file; give pathlib.Path({str(book)!r})")):
        LONG[name](str(book), tmp_path / "out")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("corpus:war-and-peace", "is the name of a corpus; give attnscope.capture.corpus('war-and-peace')"),
        ("war-and-peace", "is the name of a corpus; give attnscope.capture.corpus('war-and-peace')"),
        ("missing.txt", "looks like the name of a file, and there is none; a string is the text itself"),
        ("/tmp/some-folder/missing.md", "looks like the name of a file"),
        ("", "the string given is empty"),
    ],
)
def test_strings_that_cannot_be_meant_as_texts_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        given_text(text)


@pytest.mark.parametrize("text", [b"bytes of a text", 3, ["a text"]])
def test_other_kinds_of_objects_are_refused_as_texts(text: Any) -> None:
    with pytest.raises(
        InputError,
        match=re.escape(f"a text is a string, a pathlib.Path or an attnscope.capture.Text; received {text!r}"),
    ):
        given_text(text)


@pytest.mark.parametrize(
    "text", ["one.two three", "A sentence. Another one.", "e.g.", "3.14", "corpus: a noun", "x" * 300]
)
def test_short_texts_are_texts(text: str) -> None:
    assert given_text(text).content == text


def test_a_string_and_the_file_with_it_are_measured_alike(tokenizer: Any, text: str, tmp_path: Path) -> None:
    book = tmp_path / "book.txt"
    book.write_text(text, encoding="utf-8")
    options: Any = {"tokenizer": tokenizer, "length": 31, "top_n": [3]}
    one, other = (attnscope.scan(build("gpt2"), given, **options) for given in (text, book))
    assert one.rows.equals(other.rows)
    assert one.run["text"]["sha256"] == other.run["text"]["sha256"]
