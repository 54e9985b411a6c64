"""The order of what a scan prints, and its last lines: files, how to open the report, what to type next."""

from __future__ import annotations

import io
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from families import tiny_model
from models import byte_tokenizer
from rich.console import Console

from attnscope.cli import run
from attnscope.cli.app import app
from attnscope.diagnosis.running import diagnose
from attnscope.errors import InputError
from attnscope.show import command as closing, terminal


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
    for diagnosis in ([], ["--diagnose"]):
        assert run(["scan", *arguments, *diagnosis]) == 0
        printed = capsys.readouterr().out
        commands = [line.strip() for line in printed.splitlines() if line.startswith("  attnscope ")]
        assert len(commands) == 3
        for command in commands:
            app.parse_args(shlex.split(command)[1:], exit_on_error=False, print_error=False)
        assert commands[-1] == f"attnscope serve {shlex.quote(str(tmp_path / 'my runs'))}"


@pytest.mark.skipif(sys.platform == "win32", reason="no POSIX shell")
def test_a_long_command_is_broken_between_words_and_a_shell_reads_it_as_one() -> None:
    words = [
        "echo",
        "scan",
        "/a/folder with spaces/" + "model" * 4,
        "--text",
        "/some/where/war and peace.txt",
        "--verify",
    ]
    text = terminal.broken(words, 60)
    assert max(map(len, text.splitlines())) <= 60
    assert len(text.splitlines()) > 1
    assert subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=True).stdout.split("\n")[0] == (
        " ".join(words[1:])
    )


def test_only_a_terminal_gets_broken_commands() -> None:
    printed = io.StringIO()
    command = closing.command_line("scan", "/a/model/" * 12, "--verify")
    closing.print_closing(Console(file=printed, width=80), commands={command: "why"})
    assert command.removeprefix("attnscope") in printed.getvalue()
    in_terminal = io.StringIO()
    console = Console(file=in_terminal, width=80, force_terminal=True, color_system=None)
    closing.print_closing(console, commands={command: "why"})
    assert " \\\n" in in_terminal.getvalue()


def test_a_model_that_cannot_be_diagnosed_is_not_told_to_be(
    tmp_path: Path, book: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, tokenizer = tiny_model("t5"), byte_tokenizer()
    with pytest.raises(InputError, match="without a diagnosis"):
        diagnose(model, book.read_text(encoding="utf-8"), tokenizer=tokenizer, length=32)
    model.save_pretrained(tmp_path / "t5")
    tokenizer.save_pretrained(tmp_path / "t5")
    arguments = [str(tmp_path / "t5"), "--text", str(book), "--length", "32", "--out", str(tmp_path / "out")]
    assert run(["scan", *arguments]) == 0
    printed = capsys.readouterr().out
    assert "--diagnose" not in printed
    assert "decoder" in printed.split("Measured")[0]  # which layers are whose
    assert run(["doctor", str(tmp_path / "t5")]) == 0
    assert "--diagnose" not in capsys.readouterr().out


def test_an_error_breaks_between_words_in_a_terminal_and_is_one_line_elsewhere(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["scan", "/no/such/model-of-this-name"]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert run(["scan", "/no/such/model-of-this-name"]) == 2
    wrapped = capsys.readouterr().err
    assert max(map(len, wrapped.splitlines())) <= 40
    assert wrapped.split() == line.split()


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
