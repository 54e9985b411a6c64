"""Messages name a parameter as the reader gives it: in Python by its name, on the command line as an option."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from models import build, byte_tokenizer

import attnscope
from attnscope.cli import run
from attnscope.errors import InputError, parameter, written_as

SOURCE = Path(attnscope.__file__).parent
# Commands to type are built here.
COMMANDS = {"options.py", "scanning/options.py", "show/command.py", "diagnosis/situation.py", "diagnosis/verdict.py"}


def texts(tree: ast.AST) -> list[str]:
    """The strings of a module that are not docstrings."""
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in statements]
    return [node.value for node in constants if isinstance(node.value, str)]


def test_only_the_command_line_writes_options() -> None:
    files = {file.relative_to(SOURCE).as_posix(): file for file in SOURCE.rglob("*.py")}
    library = {
        name: file
        for name, file in files.items()
        if not name.startswith("cli/") and name not in COMMANDS and not name.endswith("/verb.py")
    }
    found = [
        f"{name}: {text}"
        for name, file in library.items()
        for text in texts(ast.parse(file.read_text("utf-8")))
        if re.search(r"(?<!var\()--[a-z]", text)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("name", "value", "python", "option"),
    [
        ("top_n", None, "top_n", "--top-n"),
        ("top_n", 5, "top_n=5", "--top-n 5"),
        ("vectors", "value", "vectors='value'", "--vectors value"),
        ("verify", True, "verify=True", "--verify"),
        ("temperatures", None, "temperatures", "--temperature"),
        ("calibration", "head", "calibration='head'", "--calibrate head"),
    ],
)
def test_a_parameter_is_written_in_both_ways(name: str, value: object, python: str, option: str) -> None:
    assert parameter(name, value) == python
    with written_as("options"):
        assert parameter(name, value) == option
    assert parameter(name, value) == python


def test_the_style_is_reset_after_an_error() -> None:
    with pytest.raises(KeyError), written_as("options"):
        raise KeyError
    assert parameter("length") == "length"


REFUSED: dict[str, tuple[dict[str, Any], list[str], str]] = {
    "length": ({"length": 0}, ["--length", "0"], "takes a whole number from 1 up; received 0"),
    "windows": ({"windows": 0}, ["--windows", "0"], "takes a whole number from 1 up; received 0"),
    "top_n": ({"top_n": [0]}, ["--top-n", "0"], "takes a whole number from 1 up; received 0"),
    "rows": ({"rows": 0}, ["--rows", "0"], "takes last, all or a whole number from 1 up; received "),
    "memory_budget": ({"memory_budget": "x"}, ["--memory-budget", "x"], "takes a size such as 512MB or 2GB"),
    "temperatures": ({"temperatures": [-1]}, ["--temperature=-1"], "takes positive numbers; received -1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_scan_names_the_parameter_it_refuses(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, options, message = REFUSED[name]
    with pytest.raises(InputError, match=f"^{name} {re.escape(message)}"):
        attnscope.scan("no/such-model", **arguments)  # refused before a model is looked for
    assert run(["scan", *options]) == 2
    assert f"attnscope: {options[0].split('=')[0]} {message}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"length": 1}, "a row of 1 key has no top set"),
        ({"windows": 1}, "windows takes a whole number from 2 up; received 1"),
        ({"rows": 0}, "rows takes a whole number from 1 up; received 0"),
        ({"seed": -1}, "seed takes a whole number from 0 up; received -1"),
        ({"thresholds": {"local": 0.2}}, "thresholds takes attnscope.Thresholds(...); received {'local': 0.2}"),
    ],
    ids=str,
)
def test_a_diagnosis_refuses_wrong_settings_before_a_model_is_looked_for(arguments: Any, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        attnscope.diagnose("no/such-model", **arguments)


def test_thresholds_without_a_diagnosis_are_refused() -> None:
    with pytest.raises(InputError, match="thresholds is for a diagnosis; add diagnose=True or verify=True"):
        attnscope.scan("no/such-model", thresholds=attnscope.Thresholds(local=0.2))


SUMMARIES: dict[str, Callable[[], Any]] = {
    "scan": lambda: attnscope.scan(build("gpt2"), TEXT, tokenizer=byte_tokenizer(), length=61, diagnose=True),
    "diagnose": lambda: attnscope.diagnose(build("gpt2"), TEXT, tokenizer=byte_tokenizer(), length=61),
    "compare": lambda: attnscope.compare(build("gpt2"), TEXT, "sparsemax", tokenizer=byte_tokenizer(), lengths=[31]),
    "audit": lambda: attnscope.audit(["lemma-1", "theorem-2-upper"]),
}
TEXT = "The quick brown fox jumps over the lazy dog; 0123456789 (again and again). " * 9


@pytest.mark.parametrize("name", SUMMARIES)
def test_what_a_result_shows_in_python_has_no_options(name: str) -> None:
    result = SUMMARIES[name]()
    shown = [repr(result), result._repr_html_(), str(result.summary()), str(result.summary(verbose=True))]
    assert [text for text in shown if re.search(r"(?<!var\()(?<![;{])--[a-z]", text)] == []
