"""The help of every command: examples that work, lines of 80 columns; and the commands in the README and the docs."""

from __future__ import annotations

import re
import shlex
import textwrap
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

import pytest
from cyclopts import MissingArgumentError

from attnscope.cli import run
from attnscope.cli.app import app
from attnscope.diagnosis.states import Thresholds

COMMANDS = [[name] for name in app if not name.startswith("-") and name != "bench"]
ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def accepted(command: str) -> None:
    """Have the parser take a command; nothing is run."""
    app.parse_args(shlex.split(command)[1:], exit_on_error=False, print_error=False)


def shown(command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    assert run([*command, "--help"]) == 0
    return capsys.readouterr().out


def test_the_help_of_threshold_names_every_limit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = shown(["scan"], monkeypatch, capsys).partition("One of sink_bound")[2]
    assert {each.name for each in fields(Thresholds)} - {"sink_bound"} <= set(re.findall(r"\w+", listed))


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_the_examples_of_a_command_are_commands(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(command, monkeypatch, capsys)
    examples = re.findall(r"^ • (attnscope .*(?:\n {3}\S.*)*)", text, re.MULTILINE)
    assert len(examples) >= 2
    for example in examples:
        assert example.split()[1 : 1 + len(command)] == command
        accepted(" ".join(example.split()))


@pytest.mark.parametrize("command", [[], *COMMANDS], ids=" ".join)
def test_help_fits_80_columns_and_explains_every_option(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(command, monkeypatch, capsys)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    assert re.findall(r"^│ --[\w-]+(?: -\w)?(?: [A-Z.]+)? *│$", text, re.MULTILINE) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_are_commands(page: Path) -> None:
    text = page.read_text("utf-8")
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        text += "\n" + textwrap.indent(block, "    ")
    for line in re.findall(r"^    (attnscope .*)$", text, re.MULTILINE):
        accepted(re.split(r"\s+#\s|\s*\|\s", line)[0].strip())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_in_the_sentences_of_a_page_exist_with_their_options(page: Path) -> None:
    for command in re.findall(r"`(attnscope [^`]+)`", page.read_text("utf-8")):
        with suppress(MissingArgumentError):  # a command may be named without the arguments it needs
            accepted(re.sub(r"(?<= )[A-Z]\b", "1", command))  # `--to N`


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_targets_and_scripts_of_a_page_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert set(re.findall(r"(?:^    |^|`)make ([a-z-]+)(?=`|\s+#|$)", text, re.MULTILINE)) <= set(targets)
    for script in re.findall(r"(?:^    |`)(?:python )?((?:scripts|benchmarks|examples)/\w[\w./]*)", text, re.MULTILINE):
        assert (ROOT / script).exists(), script
