"""The order of what a scan prints, and its last lines: files, how to open the report, what to type next."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from attnscope.cli import closing, run
from attnscope.cli.app import app


@pytest.fixture
def book(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "a book.txt"
    path.write_text(text * 4, encoding="utf-8")
    return path


def test_the_verdict_comes_first_and_the_next_command_last(
    model_folder: Path, book: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = [str(model_folder), "--text", str(book), "--length", "64", "--out", str(out)]
    assert run(["scan", *arguments, "--diagnose"]) == 0
    printed = capsys.readouterr().out
    parts = ("3 layers x 5 heads", "Verdict: ", "heads that matter most", "Map: ", "Key number", "Files", "Next")
    places = [printed.index(part) for part in parts]
    assert places == sorted(places)
    assert "Findings" not in printed
    assert run(["scan", *arguments, "--diagnose", "--verbose"]) == 0
    assert "Findings" in capsys.readouterr().out


def test_every_next_command_is_a_command(
    model_folder: Path, book: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["attnscope"])
    arguments = [str(model_folder), "--text", str(book), "--length", "64", "--out", str(tmp_path / "my runs" / "out")]
    for diagnose in ([], ["--diagnose"]):
        assert run(["scan", *arguments, *diagnose]) == 0
        printed = capsys.readouterr().out
        commands = [line.strip() for line in printed.splitlines() if line.startswith("  attnscope ")]
        assert len(commands) == 3
        for command in commands:
            app.parse_args(shlex.split(command)[1:], exit_on_error=False, print_error=False)
        assert commands[-1] == f"attnscope serve {shlex.quote(str(tmp_path / 'my runs'))}"


@pytest.mark.parametrize(
    ("platform", "openers", "expected"),
    [
        ("linux", ("xdg-open",), "xdg-open 'my runs/report.html'"),
        ("darwin", ("open",), "open 'my runs/report.html'"),
        ("win32", (), 'start "" "my runs/report.html"'),
    ],
)
def test_how_a_page_is_opened(
    platform: str, openers: tuple[str, ...], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(closing.shutil, "which", lambda name: name if name in openers else None)
    assert closing.open_command(Path("my runs/report.html")) == expected


def test_without_an_opener_there_is_the_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(closing.shutil, "which", lambda name: None)
    assert closing.open_command(tmp_path / "my runs.html") == f"file://{tmp_path}/my%20runs.html"


@pytest.mark.parametrize(
    ("called", "on_path", "expected"),
    [
        ("/usr/bin/attnscope", "/usr/bin/attnscope", "attnscope"),
        (".venv/bin/attnscope", None, ".venv/bin/attnscope"),
        ("my env/attnscope", "/usr/bin/attnscope", "'my env/attnscope'"),
        ("/somewhere/attnscope/__main__.py", None, "python -m attnscope"),
        ("/usr/bin/pytest", None, "attnscope"),
    ],
)
def test_commands_are_printed_as_they_can_be_typed(
    called: str, on_path: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [called])
    monkeypatch.setattr(closing.shutil, "which", lambda name: on_path)
    assert closing.program() == expected
